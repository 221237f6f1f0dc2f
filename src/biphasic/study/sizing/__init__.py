"""Memory and time of a run, before it is trained."""
