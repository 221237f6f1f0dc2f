"""Names in exported folders; nothing heavy is imported for them."""

from __future__ import annotations

CARD = "README.md"
FILL_IN = "# to fill in"
"""Behind a field of the card's front matter that records say nothing of."""
STATE_FILES = ("state.json", "optimizer.safetensors", "metrics.jsonl")
"""What makes a folder a state of ours; none of it is for others."""
