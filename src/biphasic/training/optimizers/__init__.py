"""Optimizers: their settings, and how they update weights."""
