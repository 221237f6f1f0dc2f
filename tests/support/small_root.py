"""A root folder with one study that was prepared and, as far as others can tell, run.

Its states and results are names with the least that is read of them: nothing is trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from biphasic.files import write_json
from biphasic.store import complete_folder
from biphasic.study.resolve import ResolvedStudy, resolve
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from tiny_study import clm, tiny_study

QUIET = Console(quiet=True)
CORPUS_HASH = "hash of no corpus here"


def write_texts(folder: Path) -> Path:
    words = ["rows", "shape", "index", "stream", "value", "window", "axis", "tokens"]
    lines = [
        json.dumps({"text": " ".join(words[(n * k) % 8] for k in range(1, 30)) + f" {n}"})
        for n in range(200)
    ]
    path = folder / "texts.jsonl"
    path.write_text("\n".join(lines))
    return path


def study_of(texts: Path, task: Path, **changes) -> StudyConfig:
    settings = {
        "name": "one",
        "title": "One",
        "corpus": {"sources": [str(texts)], "vocab_size": 300},
        "recipe": {"max_seqlen": 32, "rows_per_step": 4},
        "arms": [{"name": "a", "phases": [clm(4)]}, {"name": "b", "phases": [clm(8)]}],
        "tasks": [{"name": "first", "source": str(task)}],
        "finetuning": {"seeds": [0, 1], "learning_rates": [1e-4], "protocol": {"max_seqlen": 32}},
    }
    return tiny_study(**{**settings, **changes})


def fake_state(
    store,
    identity,
    *,
    parent=None,
    pretrained=None,
    corpus_hash=CORPUS_HASH,
    num_bytes=1000,
    seconds=10.0,
):
    with complete_folder(store / "states" / identity, identity=identity) as partial:
        (partial / "model.safetensors").write_bytes(bytes(num_bytes))
        state = {
            "format": "biphasic.state/1",
            "identity": identity,
            "step": 4,
            "parent": parent,
            "rows_sha256": "",
            "ground": {"corpus_hash": corpus_hash, "pretrained": pretrained},
            "seconds": seconds,
        }
        write_json(partial / "state.json", state)
        write_json(partial / "config.json", {})


def fake_result(store, identity, *, state, seconds=2.0):
    with complete_folder(store / "finetunes" / identity, id=identity) as partial:
        result = {
            "format": "biphasic.finetune/1",
            "id": identity,
            "state": state,
            "task": "first",
            "kind": "sc",
            "metric": "accuracy",
            "learning_rate": 1e-4,
            "seed": 0,
            "status": "diverged",
            "steps": 4,
            "validation": None,
            "test": None,
            "seconds": seconds,
        }
        write_json(partial / "result.json", result)


def fake_checkpoint(store, identity, *, start=0):
    with complete_folder(store / "progress" / f"{identity}-from-{start}" / "step-2") as partial:
        (partial / "model.safetensors").write_bytes(bytes(500))


def make_root(base: Path, make_task: Callable[..., Path]) -> Path:
    """Prepare the study below a folder and leave names for all that it needs."""
    config = study_of(write_texts(base), make_task(base / "first"))
    root = base / "runs"
    Study(config, root).save()
    study = prepare(config, root)
    for segment in study.plan.segments:
        fake_state(root / "store", segment.id, parent=segment.parent)
    for group in study.plan.groups:
        for name in group.run_ids():
            fake_result(root / "store", name, state=group.state)
    return root


def prepare(config: StudyConfig, root: Path) -> ResolvedStudy:
    """Make a study's data, or find them."""
    return resolve(Study(config, root), missing="build", console=QUIET)
