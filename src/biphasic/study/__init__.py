"""Studies, from a study file to its report; names of their files."""

EXAMPLE_TOKENS = 256  # Assumed mean tokens of a fine-tuning example.
RESOLVED = "config.json"  # File with a study's settings, in its folder.
