"""Pairs of texts for contrastive training: on disk, and as the rows of a step."""
