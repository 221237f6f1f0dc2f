"""The files of the scenarios, as people have them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

from plugin_files import write_stride

_WORDS = "the cat sat on a mat and dogs ran to Paris with Anna who saw ten red boats near old walls"
_RECIPE: dict[str, Any] = {
    "model": "pico",
    "max_seqlen": 32,
    "rows_per_step": 4,
    "precision": "fp32",
    "learning_rate": {"peak": 2e-3, "warmup_steps": 1, "decay_steps": 1},
}
_CLM, _MLM = {"objective": "clm", "steps": 2}, {"objective": "mlm", "steps": 2}


def _sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)  # noqa: S311
    return [" ".join(draw.choices(_WORDS.split(), k=draw.randint(5, 40))) for _ in range(count)]


def _json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _yaml(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")


def _texts(place: Path) -> None:
    texts = _sentences(300, seed=1)
    _json_lines(place / "texts.jsonl", [{"id": str(n), "text": t} for n, t in enumerate(texts)])
    (place / "texts.txt").write_text("\n".join(texts[:6]) + "\n", "utf-8")
    _json_lines(place / "more.jsonl", [{"text": text} for text in _sentences(200, seed=2)])


def _pairs(place: Path) -> None:
    texts = _sentences(80, seed=3)
    rows = [
        {"query": f"{n} {t.split()[0]} {t.split()[1]}", "positive": t} for n, t in enumerate(texts)
    ]
    _json_lines(place / "pairs.jsonl", rows)


def _task(place: Path) -> None:
    (place / "task").mkdir()
    for split, count in (("train", 48), ("validation", 16), ("test", 16)):
        lines = [
            f"{('good', 'bad')[n % 2]} {split} {n},{('good', 'bad')[n % 2]}" for n in range(count)
        ]
        (place / f"task/{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n", "utf-8")


def _recipe(place: Path) -> None:
    _yaml(place / "recipe.yaml", {**_RECIPE, "phases": [_CLM, _MLM]})


def _study(place: Path) -> None:
    arms = [
        {"name": "untrained"},
        {"name": "mlm", "phases": [{"objective": "mlm", "steps": 4}]},
        {"name": "both", "phases": [_CLM, _MLM]},
    ]
    protocol = {"max_steps": 3, "batch_size": 8, "max_seqlen": 32, "precision": "fp32"}
    question = {
        "name": "Q1",
        "question": "Is CLM, then MLM, better than MLM alone?",
        "comparisons": [{"arms": ["both", "mlm"]}],
        "supported_if": {"clear_for": 1},
    }
    study = {
        "name": "tiny",
        "title": "Tiny",
        "corpus": {"sources": ["texts.jsonl"], "vocab_size": 300},
        "recipe": _RECIPE,
        "arms": arms,
        "tasks": [{"name": "own", "source": "sc:task"}],
        "finetuning": {"learning_rates": [1e-3], "seeds": [0, 1], "protocol": protocol},
        "questions": [question],
    }
    _yaml(place / "study.yaml", study)
    longer = [{"name": "mlm", "phases": [{"objective": "mlm", "steps": 6}]}]
    _yaml(place / "longer.yaml", {**study, "arms": [*arms[:1], *longer, *arms[2:]]})


def _foreign(place: Path) -> None:
    draw = random.Random(4)  # noqa: S311
    for model, chance in (("a", 0.9), ("b", 0.5)):
        folder = place / "foreign" / model
        folder.mkdir(parents=True)
        rows = [{"id": f"e{n}", "score": int(draw.random() < chance)} for n in range(60)]
        _json_lines(folder / "task.jsonl", rows)


def _plugin(place: Path) -> None:
    write_stride(place)
    (place / "site.yaml").write_text("executor: nothing\n", "utf-8")


FILES = {
    "texts": _texts,
    "pairs": _pairs,
    "task": _task,
    "recipe": _recipe,
    "study": _study,
    "foreign": _foreign,
    "plugin": _plugin,
}
