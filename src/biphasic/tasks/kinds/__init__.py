"""Kinds of tasks: a class for each, and a registry."""
