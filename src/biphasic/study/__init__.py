"""Studies, from a study file to its report; names of their files."""

STORE = "store"  # Folder with the states, results and jobs of all studies of a root.
RESOLVED = "config.json"  # File with a study's settings, in its folder.
