"""From a task as a study names it to a folder that jobs can read, with its protocol.

What is to be built from the documentation or fetched from the hub can be stood in for, so that a
study is planned before its data are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from biphasic.config import nearest
from biphasic.errors import BiphasicError, ConfigError, DataError
from biphasic.files import digest, expanded, is_complete, verify_folder
from biphasic.locks import LEASES
from biphasic.records import ZERO_SHOT
from biphasic.study.inputs.corpus import builtin_tasks_origin, prepare_builtin_tasks
from biphasic.study.spec.study import TaskConfig, deciding_metric
from biphasic.tasks.builtin.write import BUILTIN_TASKS
from biphasic.tasks.custom.task_file import load_task_file
from biphasic.tasks.formats.folder import DESCRIPTION, read_description
from biphasic.tasks.formats.overlap import count_overlaps
from biphasic.tasks.formats.read import load_task
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.published.catalog import PUBLISHED
from biphasic.tasks.records import METRICS_BY_KIND, SPLITS, Kind, TaskInfo, epoch_length
from biphasic.tasks.source import prepare_task, split_source

BUILTIN_KINDS: dict[str, Kind] = {
    "pydocs-sc": "sc",
    "pydocs-tc": "tc",
    "pydocs-qa": "qa",
    "pydocs-ir": "ir",
}

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
    def is_read(self) -> bool:
        """Whether its data are there; False of a stand-in."""
        return bool(self.num_examples)

    @property
    def training(self) -> PlannedTask:
        """The task that encoders are fine-tuned on."""
        return self.trainer or self


class _Memo:
    """Plans a task by itself, once with the same settings: several may be trained on one."""

    def __init__(self, plan: Callable[[TaskConfig], PlannedTask]) -> None:
        self.tasks: dict[str, PlannedTask] = {}
        self._plan = plan

    def __call__(self, task: TaskConfig) -> PlannedTask:
        settings = task.model_dump_json()
        if settings not in self.tasks:
            self.tasks[settings] = self._plan(task)
        return self.tasks[settings]


class TaskResolver:
    """Finds the tasks of a study: `build` makes what is missing, `look` makes stand-ins for it.

    Files of one's own are read and checked by both.
    """

    def __init__(
        self,
        *,
        store: Path,
        libraries: tuple[str, ...] | None,
        protocol_of: ProtocolOf,
        is_paper: bool,
        say: Callable[[str], None] = lambda _: None,
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

    def build(self, tasks: tuple[TaskConfig, ...]) -> tuple[PlannedTask, ...]:
        """Return the tasks, each with the one it is trained on; make those that are missing.

        Raises:
            DataError: A task's data are missing, damaged, or cannot be used.
            ConfigError: A setting does not fit a task.
        """
        alone = _Memo(lambda task: self._read(task, self._made(task)))
        planned = (self._with_trainer(task, tasks, alone) for task in tasks)
        return tuple(map(self._with_overlaps, planned))

    def look(
        self, tasks: tuple[TaskConfig, ...], *, assumed: list[str], problems: list[str]
    ) -> tuple[PlannedTask, ...]:
        """Return the tasks that can be planned, each with the one it is trained on.

        Args:
            tasks: The study's.
            assumed: Is given a sentence for all that are stood in for.
            problems: Is given a sentence for each that cannot be planned.
        """
        planned: list[PlannedTask] = []
        with _scratch_unless_writable(self._store) as scratch:

            def read_or_stand_in(task: TaskConfig) -> PlannedTask:
                folder = self._found(task, scratch)
                return self._stand_in(task) if folder is None else self._read(task, folder)

            alone = _Memo(read_or_stand_in)
            for task in tasks:
                try:
                    planned.append(self._with_trainer(task, tasks, alone))
                except (ConfigError, DataError) as error:
                    problems.append(_named(task, error))
        stood_in = dict.fromkeys(t.info.name for t in alone.tasks.values() if not t.is_read)
        if stood_in:
            assumed.append(f"tasks: {', '.join(stood_in)}, not made here yet")
        return tuple(planned)

    def _with_trainer(
        self,
        task: TaskConfig,
        others: tuple[TaskConfig, ...],
        alone: _Memo,
        chain: tuple[str, ...] = (),
    ) -> PlannedTask:
        """Plan a task and the one it is trained on; `chain` has those that are trained on it."""
        planned = alone(task)
        name = planned.info.trained_on
        if name is None:
            return planned
        chain = (*chain, task.name)
        if name in chain:
            raise ConfigError(f"a task is trained on itself: {' -> '.join((*chain, name))}")
        trainer = self._with_trainer(_trainer_of(task, name, others), others, alone, chain)
        if planned.is_read and trainer.is_read:
            _check_trainer(task, planned, trainer)
        return replace(planned, trainer=trainer)

    def _with_overlaps(self, task: PlannedTask) -> PlannedTask:
        """Count the examples that a task shares with the one it is trained on."""
        if task.trainer is None:
            return task
        overlaps = count_overlaps(self._load(task.folder), self._load(task.trainer.folder))
        return replace(task, info=replace(task.info, overlaps=overlaps))

    def _read(self, task: TaskConfig, folder: Path) -> PlannedTask:
        verify_folder(folder, remedy=f"delete the folder {folder} and run again")
        description, loaded = read_description(folder), self._load(folder)
        return PlannedTask(
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

    def _made(self, task: TaskConfig, scratch: Path | None = None) -> Path:
        """Return the folder of a task, made where it is missing."""
        if task.origin in BUILTIN_TASKS:
            if task.revision or task.copies:
                raise ConfigError(
                    "built-in tasks have neither revision nor copies",
                    about=f"task '{task.name}'",
                )
            return prepare_builtin_tasks(self._libraries, self._store, say=self._say) / task.origin
        return prepare_task(
            task.origin,
            store=self._store,
            copies=task.copies,
            revision=task.revision,
            paper=self._is_paper,
            scratch=scratch,
            say=self._say,
        )

    def _found(self, task: TaskConfig, scratch: Path | None) -> Path | None:
        """Return the folder of a task that is there, or made of files that are."""
        if task.origin in BUILTIN_TASKS:
            key = digest(builtin_tasks_origin(self._libraries))[:32]
            folder = self._store / "tasks" / f"builtin-{key}" / task.origin
            return folder if is_complete(folder) else None
        kind, name = split_source(task.origin)
        is_published = name in PUBLISHED and kind in {None, ZERO_SHOT}
        if is_published and task.copies is None:
            return self._fetched(task, name, is_zero_shot=kind == ZERO_SHOT)
        return self._made(task, scratch)

    def _fetched(self, task: TaskConfig, name: str, *, is_zero_shot: bool) -> Path | None:
        """Return what was fetched of a published dataset earlier, if there is one of it."""
        if task.revision is not None:
            return None
        is_paper = self._is_paper and PUBLISHED[name].kind == "ir"
        found: list[Path] = []
        for path in (self._store / "tasks").glob(f"*/{DESCRIPTION}"):
            try:
                described = read_description(path.parent)
            except DataError:
                remedy = f"delete the folder {path.parent} and run again"
                raise DataError(f"{path}: damaged; {remedy}") from None
            origin = described.origin
            same = origin.get("published") == name and origin.get("paper") == is_paper
            if same and (described.kind == ZERO_SHOT) == is_zero_shot:
                found.append(path.parent)
        return found[0] if len(found) == 1 and is_complete(found[0]) else None

    def _stand_in(self, task: TaskConfig) -> PlannedTask:
        described = task.model_dump(mode="json", exclude={"name", "protocol", "metric", "copies"})
        kind, name = split_source(task.origin)
        published = PUBLISHED.get(name)
        if published is None:
            kind, trained_on = BUILTIN_KINDS[task.origin], None
        else:
            trained_on = None if kind == ZERO_SHOT else published.trained_on
            kind = kind or published.kind
        info = TaskInfo(
            name=task.name,
            kind=kind,
            title=task.name if published is None else published.title,
            metric=METRICS_BY_KIND[kind][0],
            sha256=digest({"stand-in": "task", "described": described}),
            trained_on=trained_on,
        )
        return PlannedTask(
            info=replace(info, metric=deciding_metric(task, info, is_paper=self._is_paper)),
            folder=self._store / "tasks",
            protocol=self._protocol_of(task, {}),
            num_examples={},
        )


def task_outline(source: str) -> tuple[Kind | None, Mapping[str, Any]]:
    """Return the kind of a task and the settings that it needs, before any example is read.

    No kind where the source is wrong; whoever reads the task says why.

    Raises:
        ConfigError: A setting of a task file is wrong.
        DataError: `task.json` is damaged.
    """
    if source in BUILTIN_KINDS:
        return BUILTIN_KINDS[source], {}
    kind, rest = split_source(source)
    if rest in PUBLISHED and kind in {None, ZERO_SHOT}:
        return kind or PUBLISHED[rest].kind, {}
    path = expanded(rest)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        file = load_task_file(path)
        return file.kind, file.protocol
    if (path / DESCRIPTION).is_file():
        description = read_description(path)
        return kind or description.kind, description.protocol
    return kind, {}


@contextmanager
def _scratch_unless_writable(store: Path) -> Iterator[Path | None]:
    """Yield a folder that stands in for a store where nothing can be written, else None."""
    if _can_write(store / "tasks") and _can_write(store / LEASES):
        yield None
        return
    with TemporaryDirectory(prefix="biphasic-plan-") as scratch:
        yield Path(scratch)


def _can_write(folder: Path) -> bool:
    """Tell whether something can be put into a folder, made where it is missing."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return os.access(there, os.W_OK)


def _trainer_of(task: TaskConfig, name: str, others: tuple[TaskConfig, ...]) -> TaskConfig:
    """Return the task that another is trained on: the study's of that name, or a published one.

    The latter takes over what was set for the other by hand.
    """
    own = next((other for other in others if other.name == name), None)
    if own is None and name not in PUBLISHED:
        raise ConfigError(
            f"is trained on '{name}', which is neither among the tasks nor a published dataset"
            f"{nearest(name, [other.name for other in others if other != task])}",
            about=f"task '{task.name}'",
        )
    return own or TaskConfig(name=name, copies=task.copies, protocol=task.protocol)


def _named(task: TaskConfig, error: BiphasicError) -> str:
    """Return the text of an error with the name that the study has for the task."""
    name = f"task '{task.name}'"
    if error.about == name:
        return str(error)
    text = error.message if error.about == f"task '{task.origin}'" else str(error)
    return f"{name} ({task.origin}): {text}"


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
            f"cannot be trained on '{trainer.info.name}', which is of kind "
            f"'{trainer.info.kind}' with {trainer.num_examples['train']} training examples",
            about=f"task '{task.name}'",
        )
    scoring = planned.protocol.scoring_determinants(is_zero_shot=False)
    for name in sorted(task.protocol.keys() - scoring.keys()):
        if getattr(planned.protocol, name) != getattr(trainer.protocol, name):
            raise ConfigError(
                f"protocol.{name} is a setting of the training; give it to "
                f"'{trainer.info.name}', which it is trained on",
                about=f"task '{task.name}'",
            )
