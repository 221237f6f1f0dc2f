"""Garbage collection and verification of a store."""
