"""Study files: arms, axes, names, settings."""
