"""Write a copy of a SQuAD 2.0 task folder without its unanswerable questions.

Run it as `python answerable.py data/squad data/squad-answerable`.
"""

import json
import sys
from pathlib import Path


def main(source: Path, out: Path) -> None:
    """Copy the three splits, keeping the questions that have an answer."""
    out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "test"):
        lines = (source / f"{split}.jsonl").read_text("utf-8").splitlines()
        kept = [line for line in lines if json.loads(line)["answers"]["text"]]
        (out / f"{split}.jsonl").write_text("\n".join(kept) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
