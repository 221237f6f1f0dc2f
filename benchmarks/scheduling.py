"""What a job costs beside its work: milliseconds from the study's list to the store and back.

Trivial jobs, fine-tunings without runs, go the whole way: written to the store, given to a worker
process, locked, run, reported, counted. Beside it the scheduler alone, with an engine that does
nothing, and `study run`'s own process with the jobs of the reference study. Through Parsl: the same
in a block of this machine. Workers are started before time is taken. See README.md beside this
file.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import exponent, measured, write_records
from rich.console import Console

from biphasic.execution.display import StudyDisplay
from biphasic.execution.executor import Local, Work
from biphasic.execution.job import WorkItem
from biphasic.execution.registry import Cluster
from biphasic.execution.scheduler import RetryPolicy, Scheduler, Watcher
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.jobs import FinetuneJob, ScoredTask, TaskInput
from biphasic.study.plan.plan import Plan
from biphasic.study.resolve import resolve
from biphasic.study.run.jobs import WORKER, load_job
from biphasic.study.run.run import Monitor, missing_work
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from biphasic.tasks.protocol import FinetuneProtocol

PAPER = Path(__file__).parents[1] / "studies/paper.yaml"
NUM_DEVICES = 192
LIMIT_MS = 2.0
PARSL_LIMIT_MS = 5.0


@dataclass(frozen=True)
class NoEngine:
    """Finds every job done."""

    num_slots: int

    def submit(self, _job_id: str) -> Future[None]:
        """Do nothing, well."""
        future: Future[None] = Future()
        future.set_result(None)
        return future


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--parsl", type=int, default=200, help="jobs through Parsl; 0: none")
    parser.add_argument("--alone", type=int, default=100_000, help="jobs for the scheduler alone")
    parser.add_argument(
        "--fine-tunings",
        type=int,
        nargs="*",
        default=(1_500, 7_500, 15_000),
        help="of the reference study, each a job; a process for each number",
    )
    parser.add_argument("--study", type=int, help="only this number of them, in this process")
    parser.add_argument("--out", type=Path, help="where to write what was measured, as JSON")
    chosen = parser.parse_args()
    if chosen.study is not None:
        print(json.dumps(reference_study(chosen.study)))
        return
    records = [
        {"case": "through workers", **through_workers(chosen.jobs, chosen.slots)},
        {"case": "scheduler alone", **scheduler_alone(chosen.alone)},
    ]
    if chosen.parsl:
        records.append({"case": "through Parsl", **through_parsl(chosen.parsl, chosen.slots)})
    for number in (0, *chosen.fine_tunings):
        record, cost = measured([__file__, "--study", str(number)])
        records.append({"case": "study run", **record, "peak_bytes": cost.peak_bytes})
    for record in records:
        print(json.dumps(record))
    grown = [record for record in records if record["case"] == "study run"][1:]
    sizes, seconds = zip(*((r["jobs"], r["cpu_seconds"]) for r in grown), strict=True)
    if len(sizes) > 1:
        print(f"study run: exponent of CPU time {exponent(sizes, seconds):.2f}")
    if chosen.out:
        write_records(chosen.out, records)


def through_workers(num_jobs: int, num_slots: int) -> dict[str, Any]:
    """Run trivial jobs on worker processes of this machine."""
    return through(Local(workers=num_slots), num_jobs)


def through_parsl(num_jobs: int, num_slots: int) -> dict[str, Any]:
    """Run trivial jobs in one block of Parsl on this machine."""
    site = Cluster.model_validate(
        {"scheduler": "local", "jobs_per_node": num_slots, "poll_seconds": 1}
    )
    return {**through(site, num_jobs), "limit_ms": PARSL_LIMIT_MS}


def through(settings: Local | Cluster, num_jobs: int) -> dict[str, Any]:
    """Run trivial jobs, after a few that start the workers."""
    num_slots = settings.num_slots
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        items = [item(f"{number:064d}", trivial(store)) for number in range(num_jobs)]
        warm = [item(f"warm-{number}", trivial(store)) for number in range(4 * num_slots)]
        work = Work(
            store,
            Path(folder) / "study",
            load_job=load_job,
            worker=WORKER,
            processes=1,
            watch=lambda *_: None,
            say=print,
        )
        with settings.start(work) as engine:
            first, _ = timed(warm[:1], engine)
            timed(warm[1:], engine)
            seconds, executed = timed(items, engine)
    made = report(num_jobs, executed, seconds, slots=num_slots)
    return {**made, "first_result_seconds": round(first, 2)}


def scheduler_alone(num_jobs: int) -> dict[str, Any]:
    """Run the scheduler with nothing behind it: chains of ten."""
    items = []
    for number in range(num_jobs):
        needs = f"{number - 1}" if number % 10 else None
        items.append(item(f"{number}", lambda _id: None, needs=needs))
    engine = NoEngine(2)
    seconds, executed = timed(items, engine, save=lambda _job: None)
    return report(num_jobs, executed, seconds, slots=engine.num_slots)


@dataclass(frozen=True)
class ReferenceWork:
    """The reference study without any data: nothing of it is done."""

    plan: Plan
    items: list[WorkItem]


def reference_work(
    root: Path, *, overrides: Iterable[str] = (), num_finetunings: int = 0
) -> ReferenceWork:
    """Plan the reference study.

    Args:
        root: An empty folder.
        overrides: Settings that replace those of the study file.
        num_finetunings: Take only so many fine-tunings, each as a job of its own; 0 for all of
            them, in jobs of 30 as `study run` has them.
    """
    study = Study(load_study(PAPER, overrides), root)
    study.store.mkdir(parents=True)
    plan = resolve(study, missing="placeholder").plan
    if num_finetunings:
        single = [replace(group, grid=(point,)) for group in plan.groups for point in group.grid]
        spread = single[:: max(len(single) // num_finetunings, 1)]
        plan = replace(plan, groups=tuple(spread[:num_finetunings]))
    tokenizer, train, heldout = (plan.store / name for name in ("tokenizer", "train", "heldout"))
    paths = DataPaths(tokenizer=tokenizer, train=train, heldout=heldout)
    return ReferenceWork(plan, missing_work(plan, paths))


def reference_study(num_finetunings: int) -> dict[str, Any]:
    """Run the reference study as `study run` does, on an engine that finds every job done."""
    with tempfile.TemporaryDirectory() as folder:
        root, engine = Path(folder), NoEngine(NUM_DEVICES)
        work = reference_work(root, num_finetunings=num_finetunings)
        monitor = Monitor(
            work.items,
            work.plan,
            num_slots=engine.num_slots,
            console=Console(file=io.StringIO()),
        )
        cpu = time.process_time()
        with monitor:
            seconds, executed = timed(work.items, engine, monitor)
        cpu = time.process_time() - cpu
    record = report(len(work.items), executed, seconds, slots=engine.num_slots)
    return {**record, "cpu_seconds": cpu, "cpu_ms_per_job": 1000 * cpu / executed}


def timed(
    items: list[WorkItem], engine: Any, watcher: Watcher | None = None, **options: Any
) -> tuple[float, int]:
    """Return the seconds that a scheduler takes, set-up included, and the jobs that it did."""
    began = time.perf_counter()
    if watcher is None:
        watcher = StudyDisplay(Console(file=io.StringIO()), items, num_slots=engine.num_slots)
    outcome = Scheduler(items, engine, policy=RetryPolicy(), watcher=watcher, **options).run()
    assert not outcome.failures, outcome.failures[0]
    return time.perf_counter() - began, outcome.num_executed


def report(num_jobs: int, executed: int, seconds: float, *, slots: int) -> dict[str, Any]:
    """Return a record; the limit is per job, whatever the slots."""
    assert executed == num_jobs
    return {
        "jobs": num_jobs,
        "slots": slots,
        "seconds": round(seconds, 3),
        "ms_per_job": round(1000 * seconds / num_jobs, 4),
        "limit_ms": LIMIT_MS,
    }


def trivial(store: Path) -> Any:
    """Return what makes a job of an identity that has no runs."""
    task: dict[str, Any] = {"name": "t", "folder": store / "t", "metric": "accuracy"}
    task["protocol"] = FinetuneProtocol()

    def make(job_id: str) -> FinetuneJob:
        return FinetuneJob(
            id=job_id,
            lock=job_id,
            label="trivial",
            store=store,
            tokenizer=store / "t",
            encoder=store / "t",
            state="s",
            training=TaskInput(**task),
            evaluations=(ScoredTask(**task, runs=()),),
        )

    return make


def item(job_id: str, make: Any, needs: str | None = None) -> WorkItem:
    """Return work that the store is said not to know."""
    return WorkItem(
        id=job_id,
        label=job_id,
        kind="finetune",
        needs=needs,
        cost=1.0,
        num_slots=1,
        arms=(),
        make=lambda: make(job_id),
        is_done=lambda: False,
    )


if __name__ == "__main__":
    main()
