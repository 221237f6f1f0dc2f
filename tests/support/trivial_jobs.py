"""Jobs without work, for tests of what runs jobs: fine-tunings, and items of a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from biphasic.execution.job import WorkItem, save_job
from biphasic.study.jobs import FinetuneJob, GridRun, ScoredTask, TaskInput
from biphasic.tasks.protocol import FinetuneProtocol

RUNS = (GridRun(id="r" * 64, learning_rate=1e-4, seed=0),)
"""Runs that need data which are not there."""


def save_trivial(
    store: Path, letter: str, *, runs: tuple[GridRun, ...] = (), folder: str = "none"
) -> str:
    """Save a job whose identity is a letter repeated; return its identity."""
    task = {
        "name": "t",
        "folder": store / folder,
        "metric": "accuracy",
        "protocol": FinetuneProtocol(),
    }
    job = FinetuneJob(
        id=letter * 64,
        lock=letter * 64,
        label="a job",
        store=store,
        tokenizer=store / "none",
        encoder=store / "none",
        state="s",
        training=TaskInput(**task),
        evaluations=(ScoredTask(**task, runs=runs),),
    )
    save_job(job)
    return job.id


def item(
    name: str,
    needs: str | None = None,
    *,
    label: str = "",
    kind: Literal["train", "finetune"] = "train",
    cost: float = 10.0,
    slots: int = 1,
    is_done: Callable[[], bool] = lambda: False,
) -> WorkItem:
    return WorkItem(
        id=name,
        label=label or name,
        kind=kind,
        needs=needs,
        cost=cost,
        num_slots=slots,
        arms=(),
        make=lambda: None,
        is_done=is_done,
    )
