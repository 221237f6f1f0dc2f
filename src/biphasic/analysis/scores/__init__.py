"""Scores of models on datasets, from a study, from other tools, or from the paper."""
