"""Studies, from a study file to its report; names of their files."""

STORE = "store"  # Folder with the states, results and jobs of all studies of a root.
DEFAULT_ROOT = "runs"  # Folder of studies and their shared store.
EXAMPLE_TOKENS = 256  # Assumed mean tokens of a fine-tuning example.
RESOLVED = "config.json"  # File with a study's settings, in its folder.
