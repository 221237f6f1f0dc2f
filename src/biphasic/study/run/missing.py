"""The missing jobs of a study, with their dependencies and expected costs."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

from biphasic.execution.graph import WorkItem
from biphasic.files import is_complete
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.jobs.train import TrainJob
from biphasic.study.plan.cost import segment_cost
from biphasic.study.plan.finished import Finished, missing_runs
from biphasic.study.plan.plan import Plan, finetune_job
from biphasic.study.plan.summary import EXAMPLE_TOKENS, body_weights, group_flops
from biphasic.study.plan.training import Segment
from biphasic.study.spec.study import StudyConfig


def missing_work(
    plan: Plan,
    config: StudyConfig,
    paths: DataPaths,
    store: Path,
    finished: Finished,
    *,
    folder: Path,
    vocab_size: int,
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
            cost=float(segment_cost(segment, vocab_size).flops or 0),
            num_slots=config.compute.processes,
            arms=tuple(users[segment.id]),
            make=partial(_train_job, segment, config, paths, store, folder),
            is_done=partial(is_complete, store / "states" / segment.id),
        )
        for segment in finished.missing_segments(plan)
    ]
    bodies = body_weights(plan, vocab_size)
    items += [
        WorkItem(
            id=group.id,
            label=group.label,
            kind="finetune",
            needs=group.state,
            cost=float(group_flops(group, bodies[group.state], EXAMPLE_TOKENS) or 0),
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
