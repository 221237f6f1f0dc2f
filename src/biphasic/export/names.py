"""Names in exported folders, without heavy imports."""

from __future__ import annotations

CARD = "README.md"
FILL_IN = "# to fill in"
"""Marks fields of the card's front matter that the user has to fill in."""
STATE_FILES = ("state.json", "optimizer.safetensors", "metrics.jsonl")
"""Files that only training states have; exports omit them."""
