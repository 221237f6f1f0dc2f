"""A study with its data: text tokenised, tasks made, everything checked that can be checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from biphasic.errors import ConfigError, DataError, StudyError
from biphasic.execution.graph import WorkItem
from biphasic.execution.job_store import save_job
from biphasic.files import complete_names, verify_folder
from biphasic.progress import progress_bar, say_on
from biphasic.study.inputs.corpus import DataPaths, is_built, locate_corpus, prepare_corpus
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs.corpus import CorpusJob
from biphasic.study.paths import STORE
from biphasic.study.plan.cost import state_bytes
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.outdated import outdated_arms
from biphasic.study.plan.plan import Plan, check_tasks, plan_study
from biphasic.study.plan.preview import task_resolver
from biphasic.study.plan.training import Segment
from biphasic.study.run.missing import missing_work
from biphasic.study.spec.study import StudyConfig
from biphasic.training.data import TrainingData
from biphasic.training.state import Checkpoints, verify_state


@dataclass(frozen=True)
class PreparedStudy:
    """A study that could run.

    Attributes:
        config: Its settings.
        folder: Of the study.
        store: What studies share.
        paths: Where its text is.
        data: The text.
        plan: What it needs.
    """

    config: StudyConfig
    folder: Path
    store: Path
    paths: DataPaths
    data: TrainingData
    plan: Plan

    def missing_work(self) -> list[WorkItem]:
        """Return the jobs that the store has no results of.

        Raises:
            StudyError: The disk has no room for their states.
        """
        finished, vocab_size = Finished.of(self.store), self.data.tokenizer.vocab_size
        check_disk(finished.missing_segments(self.plan), self.store, vocab_size=vocab_size)
        return missing_work(
            self.plan,
            self.config,
            self.paths,
            self.store,
            finished,
            folder=self.folder,
            vocab_size=vocab_size,
        )


def prepare_study(config: StudyConfig, *, root: Path, console: Console) -> PreparedStudy:
    """Make or find a study's data, and check all that its jobs will read.

    Args:
        config: The study.
        root: Folder for studies and for the store that they share.
        console: Where progress is shown.

    Raises:
        ConfigError: The study cannot be run as written.
        DataError: Data are missing or cannot be used.
        CheckpointError: A state or a result that is needed is damaged.
    """
    folder, store, say = root.resolve() / config.name, root.resolve() / STORE, say_on(console)
    # Before the tasks, which take time: a source that is missing is known at once.
    corpus = locate_corpus(config.corpus, store)
    with progress_bar(console, "finding the tasks"):
        tasks = locate_tasks(config, store, say=say)
    if config.corpus.folder is None and not is_built(corpus):
        # Known by its identity too: should this be interrupted, 'job run' can go on with it.
        save_job(CorpusJob.of(config.corpus, corpus, store))
    paths = prepare_corpus(config.corpus, corpus, store, console=console)
    with progress_bar(console, "checking text, tasks and states"):
        paths = paths.extended(map(config.recipe_of, config.arms))
        paths.origin()  # read by the report, hours later
        data = paths.open()
        known = complete_names(store / "states")
        plan = plan_study(config, data.fingerprint, tasks, known=known)
        check_tasks(plan.tasks, data.tokenizer)
        check_inputs(plan, store)
    for sentence in (*config.unused_rates(), *outdated_arms(plan, store)):
        say(sentence)
    return PreparedStudy(config, folder, store, paths, data, plan)


def locate_tasks(
    config: StudyConfig, store: Path, *, say: Callable[[str], None]
) -> tuple[PlannedTask, ...]:
    """Find a study's tasks, and make those that are not in the store yet.

    Raises:
        DataError: A task's data are missing, damaged, or cannot be used; several such tasks are
            listed together.
    """
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
    """Check every byte that missing jobs start from and that the report counts, before any runs.

    Of other states only the sizes are checked; `study verify` reads them.

    Raises:
        CheckpointError: A state, a checkpoint or a result is damaged; it is named.
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
            verify_folder(progress.path(latest), remedy="delete this folder and run again")
    for name in finished.results_of(plan):
        verify_folder(store / "finetunes" / name, remedy="delete this folder and run again")


def check_disk(missing: Sequence[Segment], store: Path, *, vocab_size: int) -> None:
    """Check that there is room for the states that are still to be trained.

    Raises:
        StudyError: There is not; the message says how much is missing.
    """
    sizes = [state_bytes(segment.recipe, vocab_size=vocab_size) or 0 for segment in missing]
    needed, free = sum(sizes), shutil.disk_usage(store).free
    if needed > free:
        raise StudyError(
            f"{store}: the study's {len(sizes)} missing states take {needed / 1e6:,.0f} MB, and "
            f"{free / 1e6:,.0f} MB are free; make room ('biphasic study clean'), or choose "
            "another --root"
        )
