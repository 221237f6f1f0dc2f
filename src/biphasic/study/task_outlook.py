"""A study's tasks before their data are there: of which kind, trained on what, by which protocol.

Files of one's own are read and checked at once, all problems together; what is to be built from
the documentation or fetched from the hub is stood in for unless the store has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from biphasic.config import nearest
from biphasic.errors import ConfigError, DataError
from biphasic.files import digest, expanded, is_complete, verify_folder
from biphasic.locks import LEASES
from biphasic.records import ZERO_SHOT
from biphasic.study.config import StudyConfig, TaskConfig, deciding_metric
from biphasic.study.prepare import builtin_tasks_origin
from biphasic.study.task_inputs import PlannedTask
from biphasic.tasks.builtin.write import BUILTIN_TASKS
from biphasic.tasks.folder import DESCRIPTION, read_description
from biphasic.tasks.formats import load_task
from biphasic.tasks.own.task_file import load_task_file
from biphasic.tasks.published.catalog import PUBLISHED
from biphasic.tasks.records import METRICS_BY_KIND, SPLITS, Kind, TaskInfo, epoch_length
from biphasic.tasks.source import prepare_task, split_source

BUILTIN_KINDS: dict[str, Kind] = {
    "pydocs-sc": "sc",
    "pydocs-tc": "tc",
    "pydocs-qa": "qa",
    "pydocs-ir": "ir",
}


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


class TaskOutlook:
    """Plans the tasks of a study without making or fetching them."""

    def __init__(self, config: StudyConfig, store: Path) -> None:
        """Look at a study's tasks with what a store has."""
        self._config, self._store = config, store
        self._scratch: Path | None = None

    def plan(self, *, assumed: list[str], problems: list[str]) -> tuple[PlannedTask, ...]:
        """Return the tasks that can be planned, each with the one it is trained on.

        Args:
            assumed: Is given a sentence for all that are stood in for.
            problems: Is given a sentence for each that cannot be planned.
        """
        if _can_write(self._store / "tasks") and _can_write(self._store / LEASES):
            return self._plan(assumed, problems)
        with TemporaryDirectory(prefix="biphasic-plan-") as scratch:
            self._scratch = Path(scratch)
            return self._plan(assumed, problems)

    def _plan(self, assumed: list[str], problems: list[str]) -> tuple[PlannedTask, ...]:
        alone: dict[str, PlannedTask] = {}
        stood_in: list[str] = []
        for task in self._needed():
            try:
                folder = self._folder(task)
                alone[task.name] = self._from(task, folder) if folder else self._stand_in(task)
                if folder is None:
                    stood_in.append(task.name)
            except (ConfigError, DataError) as error:
                problems.append(_named(task, str(error)))
        if stood_in:
            assumed.append(f"tasks: {', '.join(stood_in)}, not made here yet")
        planned = (alone[task.name] for task in self._config.tasks if task.name in alone)
        return tuple(self._with_trainer(task, alone, problems) for task in planned)

    def _needed(self) -> Iterable[TaskConfig]:
        """Return the study's tasks, and published ones that only others are trained on."""
        tasks = {task.name: task for task in self._config.tasks}
        for task in self._config.tasks:
            _, name = split_source(task.origin)
            trainer = PUBLISHED[name].trained_on if self._is_published(task) else None
            if trainer and trainer not in tasks:
                settings = {"copies": task.copies, "protocol": task.protocol}
                tasks[trainer] = TaskConfig(name=trainer).model_copy(update=settings)
        return tasks.values()

    @staticmethod
    def _is_published(task: TaskConfig) -> bool:
        kind, name = split_source(task.origin)
        return kind is None and name in PUBLISHED

    def _folder(self, task: TaskConfig) -> Path | None:
        """Return the folder of a task that is there, or made of files that are."""
        if task.origin in BUILTIN_TASKS:
            key = digest(builtin_tasks_origin(self._config.corpus.libraries))[:32]
            folder = self._store / "tasks" / f"builtin-{key}" / task.origin
            return folder if is_complete(folder) else None
        kind, name = split_source(task.origin)
        is_published = name in PUBLISHED and kind in {None, ZERO_SHOT}
        if is_published and task.copies is None:
            return self._fetched(task, name, is_zero_shot=kind == ZERO_SHOT)
        return prepare_task(
            task.origin,
            store=self._store,
            copies=task.copies,
            revision=task.revision,
            paper=self._config.finetuning.is_paper,
            scratch=self._scratch,
            say=lambda _: None,
        )

    def _fetched(self, task: TaskConfig, name: str, *, is_zero_shot: bool) -> Path | None:
        """Return what was fetched of a published dataset earlier, if there is one of it."""
        if task.revision is not None:
            return None
        is_paper = self._config.finetuning.is_paper and PUBLISHED[name].kind == "ir"
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

    def _from(self, task: TaskConfig, folder: Path) -> PlannedTask:
        verify_folder(folder, remedy=f"delete the folder {folder} and run again")
        description, loaded = read_description(folder), load_task(folder)
        is_paper = self._config.finetuning.is_paper
        return PlannedTask(
            info=replace(
                loaded.info,
                name=task.name,
                metric=deciding_metric(task, loaded.info, is_paper=is_paper),
            ),
            folder=folder,
            protocol=self._config.protocol_of(task, description.protocol),
            num_examples={split: loaded.num_examples(split) for split in SPLITS},
            epoch=epoch_length(loaded),
        )

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
        is_paper = self._config.finetuning.is_paper
        return PlannedTask(
            info=replace(info, metric=deciding_metric(task, info, is_paper=is_paper)),
            folder=self._store / "tasks",
            protocol=self._config.protocol_of(task),
            num_examples={},
        )

    def _with_trainer(
        self, task: PlannedTask, others: dict[str, PlannedTask], problems: list[str]
    ) -> PlannedTask:
        name = task.info.trained_on
        if name is None:
            return task
        trainer = others.get(name)
        if trainer is None or trainer.info.trained_on is not None:
            problems.append(
                f"task '{task.info.name}' is trained on '{name}', which cannot be trained on here"
                f"{nearest(name, [other for other in others if other != task.info.name])}"
            )
            return task
        return replace(task, trainer=trainer)


def _can_write(folder: Path) -> bool:
    """Tell whether something can be put into a folder, made where it is missing."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return os.access(there, os.W_OK)


def _named(task: TaskConfig, error: str) -> str:
    """Return an error with the name that the study has for the task, unless it says that itself."""
    if f"task '{task.name}'" in error:
        return error
    by_source = f"task '{task.origin}': "
    return f"task '{task.name}' ({task.origin}): {error.removeprefix(by_source)}"
