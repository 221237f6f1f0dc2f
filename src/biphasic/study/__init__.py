"""Studies, from a study file to its report; names of their files."""

STORE = "store"  # Folder with the states, results and jobs of all studies of a root.
DEFAULT_ROOT = "runs"  # Folder of studies and their shared store.
RESOLVED = "config.json"  # File with a study's settings, in its folder.
