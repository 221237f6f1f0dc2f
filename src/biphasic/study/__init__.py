"""Studies: plan the grid, run what is missing, keep what is finished."""
