"""Running a study, from its plan to its report."""
