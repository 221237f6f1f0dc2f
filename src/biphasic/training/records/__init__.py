"""Records of a run: metrics, held-out losses, costs, environment."""
