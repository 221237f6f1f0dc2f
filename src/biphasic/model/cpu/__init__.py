"""Kernels of ours for CPUs."""
