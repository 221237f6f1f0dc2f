"""Names of files and folders of studies."""

from __future__ import annotations

STORE = "store"
"""Holds the states, results and jobs of all studies of a root."""
RESOLVED = "config.json"
"""A study's settings in its folder, as they are run."""
