"""Rows of task files, and what is in their columns."""
