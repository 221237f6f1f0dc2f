"""Lets tests import what they share with `record.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
