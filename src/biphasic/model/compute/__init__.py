"""Forward passes: attention, kernels and devices."""
