"""Names of files and folders of studies."""

from __future__ import annotations

STORE = "store"
"""Folder with the states, results and jobs of all studies of a root."""
RESOLVED = "config.json"
"""File with a study's settings, in its folder."""
