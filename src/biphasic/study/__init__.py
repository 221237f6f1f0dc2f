"""Studies: plan the grid, run missing jobs, reuse finished ones."""
