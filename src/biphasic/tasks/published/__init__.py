"""The datasets of the reference study, from the hub or from local copies."""
