"""Preparation of a study: its corpus, its tasks, checks of all inputs, and the missing jobs."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from biphasic.amounts import size
from biphasic.data.building.build import is_built
from biphasic.errors import ConfigError, DataError, ModelError, StudyError
from biphasic.execution.job import WorkItem, save_job
from biphasic.locks import Say
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.plugins import keep_files
from biphasic.progress import progress_bar, say_on
from biphasic.store import RESULT, STATE, Store, is_trained, state_folder
from biphasic.study.inputs.corpus import DataPaths, locate_corpus, prepare_corpus
from biphasic.study.inputs.overlaps import count_overlaps
from biphasic.study.inputs.tasks import PlannedTask, TaskResolver
from biphasic.study.jobs.corpus import CorpusJob
from biphasic.study.jobs.train import TrainJob
from biphasic.study.plan.baselines import compute_baselines
from biphasic.study.plan.cost import group_flops, segment_cost, state_bytes
from biphasic.study.plan.finetuning import check_lengths, other_reading
from biphasic.study.plan.finished import Finished, OtherCode, plan_notes
from biphasic.study.plan.plan import NO_CORPUS, Plan, Segment, plan_study
from biphasic.study.spec.arms import ArmConfig
from biphasic.study.study import Study
from biphasic.training.data import TrainingData
from biphasic.training.state import KEPT_CHECKPOINTS, Checkpoints


@dataclass(frozen=True)
class PreparedStudy:
    """A study whose data are there, so it can run."""

    study: Study
    paths: DataPaths
    data: TrainingData | None  # None if all arms are finished encoders.
    plan: Plan

    def compute_baselines(self, *, console: Console) -> None:
        """Compute the floors and references without results in the store."""
        store = self.study.store
        known = Store(store).walk(RESULT)
        if missing := [one for one in self.plan.baselines if one.id not in known]:
            with progress_bar(console, "computing floors and references"):
                compute_baselines(missing, store, self.paths.tokenizer)

    def missing_work(self) -> list[WorkItem]:
        """Return the jobs without results in the store."""
        finished = Finished.of(self.plan)
        keeps = self.study.config.checkpoint_every > 0
        check_disk(
            self.study,
            finished.missing_segments(),
            num_checkpoints=KEPT_CHECKPOINTS if keeps else 0,
        )
        return missing_work(finished, self.paths)


def prepare_study(study: Study, *, console: Console, fresh: bool = False) -> PreparedStudy:
    """Build or find a study's data, and check all inputs of its jobs."""
    config, store, say = study.config, study.store, say_on(console)
    # Before the tasks, which take time: a missing source fails early.
    settings = config.corpus.pinned()
    corpus = locate_corpus(settings, store)
    with progress_bar(console, "finding finished encoders"):
        encoders = find_encoders(study)
    with progress_bar(console, "finding the tasks"):
        tasks = locate_tasks(study, say=say)
    if config.reads_corpus and config.corpus.folder is None and not is_built(corpus):
        # 'job run' can resume it by its identity after an interruption.
        save_job(CorpusJob.of(settings, corpus, store))
    recipes = [*study.recipes.values()]
    notes = [
        note
        for arm in config.arms
        if arm.encoder
        for note in check_encoder(encoders[arm.name], tasks, arm=arm)
    ]
    keep_files(store, config, *recipes)
    paths, data = DataPaths.of(corpus), None
    if config.reads_corpus:
        prepare_corpus(settings, corpus, store, console=console, recipes=recipes)

    def plan() -> Plan:
        known = Store(store).walk(STATE)
        fingerprint = data.fingerprint if data else NO_CORPUS
        return plan_study(study, fingerprint, tasks, encoders=encoders, known=known)

    with progress_bar(console, "checking text, tasks and states"):
        if config.reads_corpus:
            paths = paths.extended(recipes)
            paths.origin()  # read by the report, hours later
            data = paths.open()
            check_lengths((task.outline for task in tasks), data.tokenizer)
        planned = plan()
        check_inputs(planned)
    if data is not None:
        label = "looking for test examples in the training corpus"
        with progress_bar(console, label, unit="documents") as report:
            notes += filter(None, [count_overlaps(store, data, tasks, report=report)])
    notes += plan_notes(planned)
    while other := OtherCode.of_plan(planned):
        if not fresh:
            notes.append(other.note())
            break
        other.delete(say=say)
        planned = plan()  # it may continue from another state now
    for sentence in notes:
        say(sentence)
    return PreparedStudy(study, paths, data, planned)


def locate_tasks(study: Study, *, say: Say) -> tuple[PlannedTask, ...]:
    """Find a study's tasks, and build those missing from the store."""
    resolver = TaskResolver.of(study, say=say)
    try:
        return resolver.build(study.config.tasks)
    except (ConfigError, DataError):
        problems: list[str] = []
        resolver.look(study.config.tasks, assumed=[], problems=problems)
        if len(problems) > 1:
            raise DataError("; ".join(problems)) from None
        raise


def find_encoders(study: Study) -> dict[str, LocalModel]:
    """Return the finished encoders of arms by the arms' names, found here or fetched."""
    models = {arm.name: arm.encoder for arm in study.config.arms if arm.encoder}
    if not models:
        return {}
    return {name: fetch_model(m.pretrained, revision=m.revision) for name, m in models.items()}


def check_encoder(
    encoder: LocalModel, tasks: Sequence[PlannedTask], *, arm: ArmConfig
) -> list[str]:
    """Check that the finished encoder of an arm can read all inputs; return notes on them."""
    from biphasic.model.checks.limits import model_limits  # noqa: PLC0415 - loads torch
    from biphasic.study.inputs.models import own_tokenizer  # noqa: PLC0415 - loads torch

    try:
        limits = model_limits(encoder.folder)
        tokenizer = own_tokenizer(encoder.folder, limits)
        check_lengths(
            (task.outline for task in tasks),
            tokenizer,
            positions=limits.positions,
            layers=limits.num_layers,
        )
    except (ConfigError, ModelError) as error:
        raise type(error)(f"arm '{arm.name}': {error}") from None
    notes = {
        task.info.name: other_reading(
            encoder.folder, task.attending(arm.attention), setting="protocol."
        )
        for task in tasks
    }
    return [f"arm '{arm.name}' on {task}: {note}" for task, note in notes.items() if note]


def check_inputs(plan: Plan) -> None:
    """Verify the inputs of missing jobs and of the report before any job runs."""
    # Only sizes of states that no missing job reads are checked; `study verify` checks their
    # hashes.
    finished, store = Finished.of(plan), plan.store
    missing = finished.missing_segments()
    needed = {segment.parent for segment in missing}
    needed |= {group.state for group in finished.missing_groups()}
    planned = {segment.id for segment in plan.segments}
    for identity in sorted(identity for identity in needed | planned if identity):
        if identity in finished.states:
            Store(store).get(STATE, identity).verify(hashes=identity in needed)
    for segment in missing:
        progress = Checkpoints.of(store, segment.id, start=segment.start)
        latest = progress.latest_step()
        if latest is not None:
            progress.verify(latest)
    for name in finished.results.intersection(plan.result_ids()):
        Store(store).get(RESULT, name).verify()


def check_disk(study: Study, missing: Sequence[Segment], *, num_checkpoints: int = 0) -> None:
    """Check that the disk has space for the missing states, and for checkpoints of the largest."""
    arms = [segment.arm for segment in missing]
    sizes = [state_bytes(arm.recipe, vocab_size=arm.vocab_size) or 0 for arm in arms]
    needed = sum(sizes) + num_checkpoints * max(sizes, default=0)
    free = shutil.disk_usage(study.store).free
    if needed > free:
        raise StudyError(
            f"{study.store}: the study's {len(sizes)} missing states need {size(needed)} "
            f"with checkpoints, but {size(free)} are free; free space ('biphasic study "
            "clean'), or choose another --root"
        )


def missing_work(finished: Finished, paths: DataPaths) -> list[WorkItem]:
    """Return the jobs without results in the store, training first, in the study's order."""
    plan = finished.plan
    # An arm repeats if it needs a job repeatedly.
    users: defaultdict[str, list[str]] = defaultdict(list)
    for arm, jobs in plan.jobs_by_arm().items():
        for job in jobs:
            users[job].append(arm)
    flops = group_flops(plan)
    trainings = [
        WorkItem(
            id=segment.id,
            label=segment.label,
            kind="train",
            needs=segment.parent,
            cost=float(segment_cost(segment).flops or 0),
            num_slots=plan.study.config.compute.processes,
            arms=tuple(users[segment.id]),
            make=partial(_train_job, plan.study, segment, paths),
            is_done=partial(is_trained, plan.store, segment.id),
        )
        for segment in finished.missing_segments()
    ]
    return trainings + [
        WorkItem(
            id=group.id,
            label=group.label,
            kind="finetune",
            needs=group.state,
            cost=float(flops[group.id] or 0),
            num_slots=1,
            arms=tuple(users[group.id]),
            make=partial(
                group.job,
                tokenizer=plan.encoders.get(group.state, paths.tokenizer),
                encoder=plan.encoders.get(group.state, state_folder(plan.store, group.state)),
            ),
            is_done=lambda group=group: not group.missing_runs(),
        )
        for group in finished.missing_groups()
    ]


def _train_job(study: Study, segment: Segment, paths: DataPaths) -> TrainJob:
    config = study.config
    return TrainJob(
        id=segment.id,
        label=segment.label,
        store=study.store,
        data=paths,
        recipe=segment.arm.recipe,
        start=segment.start,
        end=segment.end,
        checkpoint_every=config.checkpoint_every,
        heldout_every=config.heldout_every,
        tensorboard=study.folder / "tensorboard" / segment.label.replace(" ", "-"),
        compute=config.compute,
    )
