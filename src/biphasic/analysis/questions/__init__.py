"""Answers to the questions that a study asked before its results."""
