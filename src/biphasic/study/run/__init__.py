"""A study run from its plan to its report."""
