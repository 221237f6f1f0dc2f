"""What a phase trains for: labels, masks, and the summed loss."""
