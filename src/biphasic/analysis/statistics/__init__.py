"""Differences, and how sure they are."""
