"""What a study file says: arms, axes, names, settings."""
