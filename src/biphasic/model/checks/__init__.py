"""Checks of a model before use."""
