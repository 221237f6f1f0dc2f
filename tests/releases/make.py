"""Write what later versions must read: `python tests/releases/make.py 0.1.0.tar.xz`.

An archive is made once, by the release whose files it keeps. A release that changes a format adds
an archive of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml

PROGRAM = (sys.executable, "-m", "biphasic")
WORDS = ("sun", "moon", "star", "sea", "hill", "rain")
SPLITS = ("train", "validation", "test")
KINDS = ("sc", "ml", "sr", "tc", "qa", "ir", "zs")
STUDY: dict[str, Any] = {
    "name": "kept",
    "title": "A study of every kind of task",
    "corpus": {"folder": "corpus"},
    "recipe": {
        "model": {
            "num_layers": 1,
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_heads": 2,
            "num_key_value_heads": 1,
        },
        "max_seqlen": 32,
        "rows_per_step": 2,
        "precision": "fp32",
        "learning_rate": {"peak": 1e-2, "warmup_steps": 2, "decay_steps": 2},
    },
    "heldout_every": 4,
    "arms": [
        {"name": "untrained"},
        {"name": "mlm", "phases": [{"objective": "mlm", "steps": 8}]},
        {
            "name": "both",
            "phases": [{"objective": "clm", "steps": 4}, {"objective": "mlm", "steps": 4}],
            "recipe": {"optimizer": {"name": "muon"}},
        },
    ],
    "tasks": [
        *({"name": f"own-{kind}", "source": f"{kind}:{kind}"} for kind in KINDS if kind != "qa"),
        {
            "name": "own-qa",
            "source": "qa:qa",
            "protocol": {"max_question_tokens": 7, "window_overlap": 3},
        },
        {"name": "own-mp", "source": "mp:mp.jsonl"},
        {"name": "own-sts", "source": "sts:sts.csv"},
        {"name": "probe", "source": "sc:sc", "protocol": {"train": "head"}},
    ],
    "questions": [
        {
            "name": "Q1",
            "question": "Is CLM, then MLM, better than MLM alone?",
            "comparisons": [
                {
                    "arms": ["both", "mlm"],
                    "tasks": ["own-sc"],
                    "forecast": {"difference": 0, "interval": [-20, 20]},
                }
            ],
        }
    ],
    "finetuning": {
        "learning_rates": [1e-2],
        "seeds": 2,
        "protocol": {"max_steps": 8, "batch_size": 4, "max_seqlen": 32, "precision": "fp32"},
    },
}
RECIPE = {
    **STUDY["recipe"],
    "phases": [
        {"objective": "clm", "steps": 4},
        {"objective": "mlm", "steps": 96, "lora": {"rank": 2}},
    ],
}
"""Of a training that is stopped on its way."""


def write_inputs(folder: Path) -> None:
    """Write text, pairs, a task of every kind, the study file and the recipe."""
    texts = [" ".join(f"{WORDS[(n + k * k) % 6]} {n}" for k in range(20)) for n in range(60)]
    _jsonl(folder / "text.jsonl", [{"id": str(n), "text": t} for n, t in enumerate(texts)])
    pairs = [{"query": f"{n} {WORDS[n % 6]}", "positive": t} for n, t in enumerate(texts)]
    _jsonl(folder / "pairs.jsonl", pairs)
    for kind in KINDS:
        (folder / kind).mkdir()
    for split in SPLITS:
        rows = [(word, f"{word} and {split} {n}") for n in range(6) for word in WORDS[:2]]
        for kind, row in _TABLES.items():
            _jsonl(folder / kind / f"{split}.jsonl", [row(word, text) for word, text in rows])
    for kind in ("ir", "zs"):
        _write_retrieval(folder / kind)
    phrases = [(f"the {word} is", f"is {word} the") for word in WORDS]
    acceptable = [{"sentence_good": good, "sentence_bad": bad} for good, bad in phrases]
    _jsonl(folder / "mp.jsonl", acceptable)
    lines = [f"{good},{bad},{n}" for n, (good, bad) in enumerate(phrases)]
    (folder / "sts.csv").write_text("\n".join(["text_a,text_b,score", *lines]) + "\n", "utf-8")
    (folder / "kept.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False), "utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False), "utf-8")


_TABLES = {
    "sc": lambda word, text: {"text": text, "label": word},
    "ml": lambda word, text: {"text": text, "labels": [word] if text.endswith(("1", "3")) else []},
    "sr": lambda word, text: {"text": text, "value": float(word == "sun")},
    "tc": lambda _, text: {
        "tokens": text.split(),
        "tags": ["B-SUN" if part == "sun" else "O" for part in text.split()],
    },
    "qa": lambda word, text: {
        "question": "Which?",
        "context": text,
        "answers": {"text": [word], "answer_start": [0]},
    },
}


def _write_retrieval(folder: Path) -> None:
    (folder / "qrels").mkdir()
    _jsonl(folder / "corpus.jsonl", [{"_id": word, "text": f"the {word}"} for word in WORDS])
    splits = [(split, word) for split in SPLITS for word in WORDS]
    queries = [{"_id": f"{split}-{word}", "text": f"{word} {split}"} for split, word in splits]
    _jsonl(folder / "queries.jsonl", queries)
    for split in SPLITS:
        lines = [f"{split}-{word}\t{word}\t1" for word in WORDS]
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        (folder / f"qrels/{split}.tsv").write_text(text, "utf-8")


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def run(command: str) -> None:
    """Run a command of biphasic in a process of its own."""
    subprocess.run([*PROGRAM, *shlex.split(command)], check=True)


def stop_on_the_way() -> None:
    """Kill a training after a checkpoint of its second phase."""
    command = [*PROGRAM, *shlex.split("pretrain recipe.yaml --corpus corpus --checkpoint-every 20")]
    with subprocess.Popen(command) as process:
        while not [*Path("runs").glob("store/progress/*/step-*/manifest.json")]:
            if process.poll() is not None:
                raise SystemExit("the training ended before its first checkpoint")
        process.kill()


def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out pages and figures, which are made again, and files for the moment."""
    path = Path(member.name)
    is_made_again = path.suffix in {".html", ".png", ".svg"}
    is_for_the_moment = not _FOR_THE_MOMENT.isdisjoint(path.parts) or ".partial-" in member.name
    return None if is_made_again or is_for_the_moment else member


_FOR_THE_MOMENT = {"jobs", "leases", "logs", "tensorboard", "progress.json"}


def main() -> None:
    """Build data, register and run the study, use its models, and pack everything."""
    archive = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        write_inputs(Path())
        run("corpus build text.jsonl --out corpus --vocab-size 300 --heldout-fraction 0.2")
        run("study register kept.yaml")
        run("study run kept.yaml --workers 1")
        state = "runs/store/states/by-name/kept/both"
        run(f"export {state} export --format sentence-transformers")
        run("pairs build pairs.jsonl --out pairs")
        run("pairs teach pairs --teacher export --out taught")
        run("finetune export --task sc:sc --out sorter --learning-rate 1e-2 --seed 0")
        run("encode export text.jsonl --out vectors.npy --long-texts truncate")
        run("predict sorter sc/test.jsonl --out sorted.jsonl")
        stop_on_the_way()
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(".", arcname="kept", filter=kept)


if __name__ == "__main__":
    main()
