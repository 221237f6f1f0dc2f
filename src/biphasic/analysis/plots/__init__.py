"""Figures of scores and of training: data first, then one way to draw all of them."""
