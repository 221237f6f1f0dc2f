"""Preparation of a study: its corpus, its tasks, checks of all inputs, and the missing jobs."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from biphasic.errors import ConfigError, DataError, StudyError
from biphasic.execution.graph import WorkItem
from biphasic.execution.job import save_job
from biphasic.files import complete_names, is_complete, verify_folder
from biphasic.locks import Say
from biphasic.plugins import keep_files
from biphasic.progress import progress_bar, say_on
from biphasic.study.inputs.corpus import DataPaths, is_built, locate_corpus, prepare_corpus
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs.corpus import CorpusJob
from biphasic.study.jobs.train import TrainJob
from biphasic.study.paths import STORE
from biphasic.study.plan.cost import finetuning_flops, segment_cost, state_bytes
from biphasic.study.plan.finetuning import check_tasks, finetune_job
from biphasic.study.plan.finished import Finished, missing_runs, outdated_arms
from biphasic.study.plan.other_code import OtherCode
from biphasic.study.plan.plan import Plan, Segment, plan_study
from biphasic.study.plan.preview import task_resolver
from biphasic.study.spec.study import StudyConfig
from biphasic.training.data import TrainingData
from biphasic.training.state import KEPT_CHECKPOINTS, Checkpoints, verify_state


@dataclass(frozen=True)
class PreparedStudy:
    """A study that is ready to run."""

    config: StudyConfig
    folder: Path
    store: Path
    paths: DataPaths
    data: TrainingData
    plan: Plan

    def missing_work(self) -> list[WorkItem]:
        """Return the jobs without results in the store."""
        finished = Finished.of(self.store)
        check_disk(
            finished.missing_segments(self.plan),
            self.store,
            vocab_size=self.plan.fingerprint.vocab_size,
            num_checkpoints=KEPT_CHECKPOINTS if self.config.checkpoint_every else 0,
        )
        return missing_work(
            self.plan, self.config, self.paths, self.store, finished, folder=self.folder
        )


def prepare_study(
    config: StudyConfig, *, root: Path, console: Console, fresh: bool = False
) -> PreparedStudy:
    """Build or find a study's data, and check all inputs of its jobs.

    With `fresh`, finished work that other code made is deleted.
    """
    folder, store, say = root.resolve() / config.name, root.resolve() / STORE, say_on(console)
    # Before the tasks, which take time: a missing source fails early.
    corpus = locate_corpus(config.corpus, store)
    with progress_bar(console, "finding the tasks"):
        tasks = locate_tasks(config, store, say=say)
    if config.corpus.folder is None and not is_built(corpus):
        # 'job run' can resume it by its identity after an interruption.
        save_job(CorpusJob.of(config.corpus, corpus, store))
    recipes = [config.recipe_of(arm) for arm in config.arms]
    keep_files(store, config, *recipes)
    paths = prepare_corpus(config.corpus, corpus, store, console=console, recipes=recipes)
    with progress_bar(console, "checking text, tasks and states"):
        paths = paths.extended(recipes)
        paths.origin()  # read by the report, hours later
        data = paths.open()
        plan = _plan(config, data, tasks, store)
        check_tasks(plan.tasks, data.tokenizer)
        check_inputs(plan, store)
    notes = [*config.unused_rates(), *outdated_arms(plan, store)]
    while other := OtherCode.of_plan(plan, store):
        if not fresh:
            notes.append(other.note())
            break
        other.delete(say=say)
        plan = _plan(config, data, tasks, store)  # it may continue from another state now
    for sentence in notes:
        say(sentence)
    return PreparedStudy(config, folder, store, paths, data, plan)


def _plan(
    config: StudyConfig, data: TrainingData, tasks: tuple[PlannedTask, ...], store: Path
) -> Plan:
    return plan_study(config, data.fingerprint, tasks, known=complete_names(store / "states"))


def locate_tasks(config: StudyConfig, store: Path, *, say: Say) -> tuple[PlannedTask, ...]:
    """Find a study's tasks, and build those missing from the store."""
    resolver = task_resolver(config, store, say=say)
    try:
        return resolver.build(config.tasks)
    except (ConfigError, DataError):
        problems: list[str] = []
        resolver.look(config.tasks, assumed=[], problems=problems)
        if len(problems) > 1:
            raise DataError("; ".join(problems)) from None
        raise


def check_inputs(plan: Plan, store: Path) -> None:
    """Verify the inputs of missing jobs and of the report before any job runs.

    Only the sizes of other states are checked; `study verify` checks their hashes.
    """
    finished = Finished.of(store)
    missing = finished.missing_segments(plan)
    needed = {segment.parent for segment in missing}
    needed |= {group.state for group in finished.missing_groups(plan)}
    planned = {segment.id for segment in plan.segments}
    for identity in sorted(identity for identity in needed | planned if identity):
        if identity in finished.states:
            verify_state(
                store / "states" / identity,
                identity=identity,
                remedy="delete this folder and run again",
                hashes=identity in needed,
            )
    for segment in missing:
        progress = Checkpoints.of(store, segment.id, start=segment.start)
        latest = progress.latest_step()
        if latest is not None:
            progress.verify(latest)
    for name in finished.results_of(plan):
        remedy = "delete this folder and run again"
        verify_folder(store / "finetunes" / name, remedy=remedy, identity=name)


def check_disk(
    missing: Sequence[Segment], store: Path, *, vocab_size: int, num_checkpoints: int = 0
) -> None:
    """Check that the disk has space for the missing states, and for checkpoints of the largest."""
    sizes = [state_bytes(segment.recipe, vocab_size=vocab_size) or 0 for segment in missing]
    needed = sum(sizes) + num_checkpoints * max(sizes, default=0)
    free = shutil.disk_usage(store).free
    if needed > free:
        raise StudyError(
            f"{store}: the study's {len(sizes)} missing states need {needed / 1e6:,.0f} MB with "
            f"checkpoints, but {free / 1e6:,.0f} MB are free; free space ('biphasic study clean'), "
            "or choose another --root"
        )


def missing_work(
    plan: Plan,
    config: StudyConfig,
    paths: DataPaths,
    store: Path,
    finished: Finished,
    *,
    folder: Path,
) -> list[WorkItem]:
    """Return the jobs without results in the store, training first, in the study's order."""
    # An arm repeats if it needs a job repeatedly.
    users: defaultdict[str, list[str]] = defaultdict(list)
    for arm, jobs in plan.jobs_by_arm().items():
        for job in jobs:
            users[job].append(arm)
    items = [
        WorkItem(
            id=segment.id,
            label=segment.label,
            kind="train",
            needs=segment.parent,
            cost=float(segment_cost(segment, plan.fingerprint.vocab_size).flops or 0),
            num_slots=config.compute.processes,
            arms=tuple(users[segment.id]),
            make=partial(_train_job, segment, config, paths, store, folder),
            is_done=partial(is_complete, store / "states" / segment.id),
        )
        for segment in finished.missing_segments(plan)
    ]
    flops = finetuning_flops(plan)
    items += [
        WorkItem(
            id=group.id,
            label=group.label,
            kind="finetune",
            needs=group.state,
            cost=float(flops[group.id] or 0),
            num_slots=1,
            arms=tuple(users[group.id]),
            make=partial(
                finetune_job,
                group,
                store=store,
                tokenizer=paths.tokenizer,
                encoder=store / "states" / group.state,
            ),
            is_done=lambda group=group: not missing_runs(group, store),
        )
        for group in finished.missing_groups(plan)
    ]
    return items


def _train_job(
    segment: Segment, config: StudyConfig, paths: DataPaths, store: Path, folder: Path
) -> TrainJob:
    return TrainJob(
        id=segment.id,
        label=segment.label,
        store=store,
        data=paths,
        recipe=segment.recipe,
        start=segment.start,
        end=segment.end,
        checkpoint_every=config.checkpoint_every,
        heldout_every=config.heldout_every,
        tensorboard=folder / "tensorboard" / segment.label.replace(" ", "-"),
        compute=config.compute,
    )
