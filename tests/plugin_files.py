"""Files of plugins that tests name."""

from __future__ import annotations

from pathlib import Path

STRIDE = '''"""Masked language modelling of every n-th token."""

from dataclasses import replace

import numpy as np
from pydantic import PositiveInt

from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision


class Stride(ObjectiveConfig):
    """Hide every n-th token of a text; predict it from both sides."""

    every: PositiveInt = 4
    """Distance between hidden tokens."""

    @property
    def directions(self):
        return frozenset({False})

    def supervise(self, batch, vocabulary, *, mask_seed):
        rows = batch.packed
        texts = [np.arange(start, end) for start, end in batch.texts]
        positions = np.concatenate(texts)[:: self.every]
        input_ids = rows.input_ids.copy()
        labels = input_ids.reshape(-1)[positions].copy()
        input_ids.reshape(-1)[positions] = vocabulary.mask_id
        hidden = replace(rows, input_ids=input_ids)
        return (Supervision(rows=hidden, positions=positions, labels=labels, causal=False),)
'''


def write_stride(folder: Path, *edits: tuple[str, str]) -> Path:
    """Write the objective `Stride`, with edits of its text."""
    text = STRIDE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / "stride.py"
    path.write_text(text, encoding="utf-8")
    return path
