"""Training objectives: labels, masks, and the summed loss."""
