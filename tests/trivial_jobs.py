"""Fine-tuning jobs without work, for tests of what runs jobs."""

from __future__ import annotations

from pathlib import Path

from biphasic.execution.job import save_job
from biphasic.study.jobs.finetune import FinetuneJob, GridRun, ScoredTask, TaskInput
from biphasic.tasks.protocol import FinetuneProtocol

RUNS = (GridRun(id="r" * 64, learning_rate=1e-4, seed=0),)
"""Runs that need data which are not there."""


def save_trivial(
    store: Path, letter: str, *, runs: tuple[GridRun, ...] = (), folder: str = "none"
) -> str:
    """Save a job whose identity is a letter repeated; return its identity."""
    task = {"name": "t", "folder": store / folder, "protocol": FinetuneProtocol()}
    job = FinetuneJob(
        id=letter * 64,
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
