"""Copies tasks with few examples in validation and test.

Usage: subset.py FROM TO, two folders; FROM has sst2/, uner_en/ and trec/.
"""

import random
import shutil
import sys
from pathlib import Path

SIZES = {"sst2": (64, 800), "uner_en": (64, 800), "trec": (64, 500)}

here, there = map(Path, sys.argv[1:])
for task, sizes in SIZES.items():
    (there / task).mkdir(parents=True, exist_ok=True)
    for name in ("labels.json", "train.jsonl"):
        shutil.copy(here / task / name, there / task / name)
    for split, size in zip(("validation", "test"), sizes, strict=True):
        lines = (here / task / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        draw = random.Random(f"few/{task}/{split}")  # noqa: S311 - not for cryptography
        kept = sorted(draw.sample(range(len(lines)), min(size, len(lines))))
        text = "".join(lines[number] + "\n" for number in kept)
        (there / task / f"{split}.jsonl").write_text(text, encoding="utf-8")
