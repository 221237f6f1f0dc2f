"""Tuning: the search for the peak learning rates of a study."""
