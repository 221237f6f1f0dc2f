"""Differences between models, and their significance."""
