"""Write the store that later versions must read: `make.py ARCHIVE.tar.gz`.

An archive is made once, by the version whose files it keeps, and never again. A change of formats
gets an archive of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml

PROGRAM = (sys.executable, "-c", "from biphasic.cli.main import main; main()")
WORDS = ("sun", "moon", "star", "sea", "hill", "rain")
MODEL = {
    "num_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_key_value_heads": 1,
}
STUDY: dict[str, Any] = {
    "name": "old",
    "title": "A store to be read for ever",
    "corpus": {"folder": "corpus"},
    "recipe": {
        "model": MODEL,
        "max_seqlen": 32,
        "rows_per_step": 2,
        "precision": "fp32",
        "learning_rate": {"peak": 1e-2, "warmup_steps": 2, "decay_steps": 2},
    },
    "heldout_every": 4,
    "arms": [
        {"name": "mlm", "phases": [{"objective": "mlm", "steps": 8}]},
        {
            "name": "both",
            "phases": [{"objective": "clm", "steps": 4}, {"objective": "mlm", "steps": 4}],
            "recipe": {"optimizer": {"name": "muon"}},
        },
    ],
    "tasks": [
        {"name": "first-word", "source": "sc:tables"},
        {"name": "order", "source": "mp:order.jsonl"},
    ],
    "questions": [
        {
            "name": "Q1",
            "question": "Is CLM, then MLM, better than MLM alone?",
            "comparisons": [
                {
                    "arms": ["both", "mlm"],
                    "tasks": ["first-word"],
                    "forecast": {"difference": 0, "interval": [-20, 20]},
                }
            ],
        }
    ],
    "finetuning": {
        "learning_rates": [1e-2],
        "seeds": 2,
        "protocol": {
            "max_steps": 20,
            "max_epochs": 20,
            "batch_size": 4,
            "max_seqlen": 32,
            "precision": "fp32",
        },
    },
}
RECIPE = {**STUDY["recipe"], "phases": [{"objective": "clm", "steps": 400}]}
"""Of a training that is stopped on its way."""


def write_inputs(folder: Path) -> None:
    """Write text, tables with a label for each text, pairs of sentences, and the study file."""
    texts = [" ".join(f"{WORDS[(n + k * k) % 6]} {n}" for k in range(20)) for n in range(60)]
    rows = [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(texts)]
    (folder / "text.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    (folder / "tables").mkdir()
    for split in ("train", "validation", "test"):
        lines = [f"{word} and {split} {n},{word}" for n in range(6) for word in WORDS[:2]]
        (folder / f"tables/{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    pairs = [
        {"sentence_good": f"the {word} is", "sentence_bad": f"is {word} the", "UID": "order"}
        for word in WORDS
    ]
    lines = [json.dumps(pair) for pair in pairs]
    (folder / "order.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "old.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False), "utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False), "utf-8")


def stop_on_the_way() -> None:
    """Kill a training after its first checkpoint."""
    with subprocess.Popen(
        [*PROGRAM, "pretrain", "recipe.yaml", "--corpus", "corpus", "--checkpoint-every", "20"]
    ) as process:
        while not [*Path("runs").glob("store/progress/*/step-*/manifest.json")]:
            if process.poll() is not None:
                raise SystemExit("it ended before its first checkpoint")
        process.kill()


def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out pages, figures and logs, which no command reads."""
    path = Path(member.name)
    is_made_again = path.suffix in {".html", ".png", ".svg"} or "logs" in path.parts
    return None if is_made_again else member


def main() -> None:
    """Build the corpus, register and run the study, export a state, and pack it all."""
    archive = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        write_inputs(Path())
        for arguments in (
            "corpus build text.jsonl --out corpus --vocab-size 300 --heldout-fraction 0.2",
            "study register old.yaml",
            "study run old.yaml --workers 1",
        ):
            subprocess.run([*PROGRAM, *arguments.split()], check=True)
        record = json.loads(Path("runs/old/study.json").read_text("utf-8"))
        state = next(arm["state"] for arm in record["arms"] if arm["name"] == "both")
        export = f"export runs/store/states/{state} export --format sentence-transformers"
        subprocess.run([*PROGRAM, *export.split()], check=True)
        finetune = "finetune export --task sc:tables --out sorter --learning-rate 1e-2 --seed 0"
        subprocess.run([*PROGRAM, *finetune.split()], check=True)
        stop_on_the_way()
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(".", arcname="old", filter=kept)


if __name__ == "__main__":
    main()
