"""From a task as a study names it to a folder that jobs can read, with its protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from biphasic.config import nearest
from biphasic.errors import ConfigError, DataError
from biphasic.files import verify_folder
from biphasic.study.config import TaskConfig, deciding_metric
from biphasic.study.prepare import prepare_builtin_tasks
from biphasic.tasks.builtin.write import BUILTIN_TASKS
from biphasic.tasks.folder import read_description
from biphasic.tasks.formats import load_task
from biphasic.tasks.overlap import count_overlaps
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.published.catalog import PUBLISHED
from biphasic.tasks.records import SPLITS, TaskInfo, epoch_length
from biphasic.tasks.source import prepare_task

ProtocolOf = Callable[[TaskConfig, Mapping[str, Any]], FinetuneProtocol]


@dataclass(frozen=True)
class PlannedTask:
    """A task with all that its fine-tunings need.

    Attributes:
        info: What it is, under the study's name and with the metric that decides there.
        folder: Its examples, in the form of docs/formats.md.
        protocol: Constants of its fine-tunings.
        num_examples: By split; of retrieval the queries.
        epoch: What one epoch of training reads, of retrieval pairs; None where that is not known.
        trainer: The task that encoders are fine-tuned on instead, or None.
    """

    info: TaskInfo
    folder: Path
    protocol: FinetuneProtocol
    num_examples: dict[str, int]
    epoch: int | None = None
    trainer: PlannedTask | None = None

    @property
    def training(self) -> PlannedTask:
        """The task that encoders are fine-tuned on."""
        return self.trainer or self


class TaskLocator:
    """Finds the tasks of a study, and makes what is not there yet."""

    def __init__(
        self,
        *,
        store: Path,
        libraries: tuple[str, ...] | None,
        protocol_of: ProtocolOf,
        is_paper: bool,
        say: Callable[[str], None],
    ) -> None:
        """Look for tasks in a store.

        Args:
            store: Content store.
            libraries: Whose documentation the built-in tasks are made of; all when None.
            protocol_of: Gives a task's protocol from its settings and what its description needs.
            is_paper: By the reference study's protocol; see docs/protocol.md.
            say: Told what is being done, one sentence at a time.
        """
        self._store, self._libraries, self._say = store, libraries, say
        self._protocol_of, self._is_paper = protocol_of, is_paper
        # Several tasks may be trained on one, whose training split can be large.
        self._load = lru_cache(maxsize=2)(load_task)

    def plan(self, tasks: tuple[TaskConfig, ...]) -> tuple[PlannedTask, ...]:
        """Return the tasks, each with the one it is trained on.

        Raises:
            DataError: A task's data are missing, damaged, or cannot be used.
            ConfigError: A setting does not fit a task.
        """
        return tuple(self._plan(task, tasks) for task in tasks)

    def _plan(
        self, task: TaskConfig, others: tuple[TaskConfig, ...], chain: tuple[str, ...] = ()
    ) -> PlannedTask:
        """Plan a task; `chain` has the tasks that are trained on it."""
        folder = self._folder(task)
        verify_folder(folder, remedy=f"delete the folder {folder} and run again")
        description, loaded = read_description(folder), self._load(folder)
        planned = PlannedTask(
            info=replace(
                loaded.info,
                name=task.name,
                title=_title(task, loaded.info),
                metric=deciding_metric(task, loaded.info, is_paper=self._is_paper),
            ),
            folder=folder,
            protocol=self._protocol_of(task, description.protocol),
            num_examples={split: loaded.num_examples(split) for split in SPLITS},
            epoch=epoch_length(loaded),
        )
        name = loaded.info.trained_on
        if name is None:
            return planned
        chain = (*chain, task.name)
        if name in chain:
            raise ConfigError(f"a task is trained on itself: {' -> '.join((*chain, name))}")
        trainer = self._trainer(task, name, others, chain)
        _check_trainer(task, planned, trainer)
        overlaps = count_overlaps(loaded, self._load(trainer.folder))
        return replace(planned, trainer=trainer, info=replace(planned.info, overlaps=overlaps))

    def _trainer(
        self,
        task: TaskConfig,
        name: str,
        others: tuple[TaskConfig, ...],
        chain: tuple[str, ...],
    ) -> PlannedTask:
        """Plan the task that another is trained on: the study's of that name, or a published one.

        The latter takes over what was set for the other by hand.
        """
        own = next((other for other in others if other.name == name), None)
        if own is None and name not in PUBLISHED:
            raise ConfigError(
                f"task '{task.name}' is trained on '{name}', which is neither among the tasks nor "
                f"a published dataset{nearest(name, [o.name for o in others if o != task])}"
            )
        own = own or TaskConfig(name=name, copies=task.copies, protocol=task.protocol)
        return self._plan(own, others, chain)

    def _folder(self, task: TaskConfig) -> Path:
        if task.origin in BUILTIN_TASKS:
            if task.revision or task.copies:
                raise ConfigError(
                    f"task '{task.name}': built-in tasks have neither revision nor copies"
                )
            return prepare_builtin_tasks(self._libraries, self._store, say=self._say) / task.origin
        return prepare_task(
            task.origin,
            store=self._store,
            copies=task.copies,
            revision=task.revision,
            paper=self._is_paper,
            say=self._say,
        )


def _title(task: TaskConfig, info: TaskInfo) -> str:
    """Return what reports head a task with: its title, or the study's name where it has none."""
    return task.name if info.title == info.name else info.title


def _check_trainer(task: TaskConfig, planned: PlannedTask, trainer: PlannedTask) -> None:
    """Check that a task can be scored after training on another.

    Raises:
        DataError: They do not go together.
        ConfigError: The task has settings that only the training could follow.
    """
    if trainer.info.kind != planned.info.kind or not trainer.num_examples["train"]:
        raise DataError(
            f"task '{task.name}': cannot be trained on '{trainer.info.name}', which is of kind "
            f"'{trainer.info.kind}' with {trainer.num_examples['train']} training examples"
        )
    scoring = planned.protocol.scoring_determinants(is_zero_shot=False)
    for name in sorted(task.protocol.keys() - scoring.keys()):
        if getattr(planned.protocol, name) != getattr(trainer.protocol, name):
            raise ConfigError(
                f"task '{task.name}': protocol.{name} is a setting of the training; give it to "
                f"'{trainer.info.name}', which it is trained on"
            )
