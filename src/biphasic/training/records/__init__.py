"""What a run records: metrics, held-out losses, costs, environment."""
