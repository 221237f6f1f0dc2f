"""Scores of models on datasets, from a study, from other people's results, or from the paper."""
