"""Tasks of a study, each with its data folder and protocol.

Placeholders can replace tasks that are still to be built or fetched, to plan a study without data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from biphasic.amounts import amount
from biphasic.config import nearest, parse_config
from biphasic.data.packing import Attention
from biphasic.data.text.near_duplicates import COMPARISON_VERSION
from biphasic.errors import BiphasicError, ConfigError, DataError
from biphasic.files import digest, read_json_object, write_json
from biphasic.locks import LEASES, Say
from biphasic.plugin_code import keep_code
from biphasic.progress import AmountReport
from biphasic.pydocs.tasks import BUILTIN_TASKS
from biphasic.store import BUILTIN, OVERLAPS, TASK, is_complete
from biphasic.study.inputs.corpus import (
    builtin_tasks_folder,
    prepare_builtin_tasks,
    recall,
    remember,
)
from biphasic.study.settings.study import TaskConfig, deciding_metric
from biphasic.study.study import Study
from biphasic.tasks.folder import count_overlaps, load_task, read_description
from biphasic.tasks.hub_tasks import PUBLISHED
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.pairs import count_seen
from biphasic.tasks.protocol import FEW_STEPS, PAPER_STEPS, FinetuneProtocol
from biphasic.tasks.records import SPLITS, Task, TaskInfo
from biphasic.tasks.source import TaskSource, find_source, prepare_task
from biphasic.training.lineage import DataFingerprint, TrainingData

Missing = Literal["build", "placeholder"]
"""What becomes of data that are not here: they are built or fetched, or have placeholders."""


@dataclass(frozen=True)
class PlannedTask:
    """A task with everything that its fine-tunings need."""

    info: TaskInfo  # Description of the task, with the study's name and main metric.
    folder: Path  # Its examples, in the format of docs/formats.md.
    protocol: FinetuneProtocol  # Constants of its fine-tunings.
    num_examples: dict[str, int]  # Number of examples by split; queries for retrieval.
    # Examples in one epoch of training, pairs for retrieval; None if unknown.
    epoch: int | None = None
    trainer: PlannedTask | None = None  # The task that encoders are fine-tuned on instead, or None.

    @property
    def is_read(self) -> bool:
        """Whether its data were read; False for a placeholder."""
        return bool(self.num_examples)

    @property
    def is_builtin(self) -> bool:
        """Whether it is made from the documentation of installed libraries."""
        return self.folder.parent.name.startswith(BUILTIN)

    @property
    def training(self) -> PlannedTask:
        """The task that encoders are fine-tuned on."""
        return self.trainer or self

    @property
    def is_trained(self) -> bool:
        """Whether encoders are fine-tuned for it; otherwise they are scored as they are."""
        return KINDS[self.info.kind].facts.is_trained

    @property
    def num_steps(self) -> int:
        """Updates of one fine-tuning; the protocol's maximum if the epoch is unknown."""
        protocol = self.protocol
        if self.epoch is None:
            return protocol.max_steps
        return protocol.num_steps(protocol.num_read(self.epoch))

    @property
    def outline(self) -> tuple[str, str, FinetuneProtocol]:
        """Its name, kind and protocol."""
        return self.info.name, self.info.kind, self.protocol

    def attending(self, attention: Attention | None) -> PlannedTask:
        """Return it with this attention of the encoder, or with its own."""
        if attention is None:
            return self
        settings = {**self.protocol.model_dump(), "attention": attention}
        protocol = parse_config(FinetuneProtocol, settings, where=f"task '{self.info.name}'")
        trainer = self.trainer and self.trainer.attending(attention)
        return replace(self, protocol=protocol, trainer=trainer)

    @property
    def determinants(self) -> dict[str, Any]:
        """The constants that determine the identity of a fine-tuning."""
        kind = KINDS[self.info.kind]
        settings = self.protocol.determinants(is_pooled=kind.facts.is_pooled)
        # `train_examples` once drew the windows of such kinds.
        draws = kind.facts.has_windows and "train_examples" in settings
        if self.protocol.is_probe and self.info.has_pairs:  # they once read a pair as one text
            settings["pairs"] = "both texts"
        # It chooses a probe's strength and layer; a fine-tuning itself does not depend on it.
        if self.protocol.is_probe and self.info.metric != kind.facts.metric_keys[0]:
            settings["metric"] = self.info.metric
        return {**settings, "draws": "examples"} if draws else settings


def few_steps(tasks: Iterable[PlannedTask]) -> str:
    """Name the tasks with fine-tunings of few steps; empty for none."""
    trained = (task for task in tasks if task.is_trained)
    few = [task for task in trained if 0 < task.training.num_steps < FEW_STEPS]
    if not few:
        return ""
    names = ", ".join(f"{task.info.name} ({task.training.num_steps})" for task in few)
    return (
        f"few steps of fine-tuning: {names}; the paper takes up to {PAPER_STEPS:,}. Encoders may "
        "differ by how fast they learn; raise max_epochs (or max_steps, if that is the limit)"
    )


class TaskResolver:
    """Resolve the tasks of a study; files of custom tasks are read and checked in any case."""

    def __init__(
        self, study: Study, *, say: Say = lambda _: None, longest: int | None = None
    ) -> None:
        """Prepare; `longest` is the longest input of the study's models, if known."""
        self.store, self._config, self._say = study.store, study.config, say
        self.protocol_of = partial(study.config.protocol_of, longest=longest)
        self._is_paper = study.config.finetuning.is_paper
        # Several tasks may be trained on the same one, whose training split can be large.
        self._load: Callable[[Path], Task] = lru_cache(maxsize=2)(load_task)
        # Looked up once for all questions about a task.
        self._find: Callable[..., TaskSource] = cache(partial(find_source, paper=self._is_paper))

    def outline(self, task: TaskConfig) -> tuple[str, str | None, FinetuneProtocol]:
        """Return the name, kind and protocol of a task, without reading examples."""
        if task.origin in BUILTIN_TASKS:
            return task.name, BUILTIN_TASKS[task.origin], self.protocol_of(task, {})
        settings = self._source(task).settings()
        return task.name, settings.kind, self.protocol_of(task, settings.protocol)

    def resolve(self, *, missing: Missing, assumed: list[str]) -> tuple[PlannedTask, ...]:
        """Return the tasks, each with the one it is trained on; `assumed` gets placeholders."""
        tasks = self._config.tasks
        planned: list[PlannedTask] = []
        errors: dict[str, ConfigError | DataError] = {}
        absent: dict[str, None] = {}
        is_writable = _can_write(self.store / "tasks") and _can_write(self.store / LEASES)
        with nullcontext() if is_writable else TemporaryDirectory(prefix="biphasic-") as scratch:

            @_once
            def alone(task: TaskConfig) -> PlannedTask:
                if missing == "build" and not errors:  # after an error, others are only looked for
                    return self._read(task, self._made(task))
                folder = self._existing(task, None if scratch is None else Path(scratch))
                if folder is not None:
                    return self._read(task, folder)
                absent[task.name] = None
                return self._placeholder(task)

            for task in tasks:
                try:
                    planned.append(self._with_trainer(task, tasks, alone))
                except (ConfigError, DataError) as error:
                    errors[_named(task, error)] = error
        if errors:
            [error, *more] = errors.values()
            raise error if missing == "build" and not more else DataError("; ".join(errors))
        if absent:
            assumed.append(f"tasks: {', '.join(absent)}, not built here yet")
        if missing == "build":
            keep_code(self.store, *(task.info.kind for task in planned))
            planned = [self._counted(task) for task in planned]
        return tuple(planned)

    def _counted(self, task: PlannedTask) -> PlannedTask:
        """Return a task with the examples that it shares with the task it is trained on."""
        if task.trainer is None:
            return task
        shared = count_overlaps(self._load(task.folder), self._load(task.trainer.folder))
        return replace(task, info=replace(task.info, overlaps=shared))

    def _with_trainer(
        self,
        task: TaskConfig,
        others: tuple[TaskConfig, ...],
        alone: Callable[[TaskConfig], PlannedTask],
        chain: tuple[str, ...] = (),
    ) -> PlannedTask:
        """Plan a task and the one it is trained on; `chain` has the tasks trained on it."""
        planned = alone(task)
        name = planned.info.trained_on
        if name is None:
            return planned
        chain = (*chain, task.name)
        if name in chain:
            raise ConfigError(f"a task is trained on itself: {' -> '.join((*chain, name))}")
        settings = next((other for other in others if other.name == name), None)
        if settings is None and name not in PUBLISHED:
            raise ConfigError(
                f"is trained on '{name}', which is neither a task of the study nor a published "
                f"dataset{nearest(name, [other.name for other in others if other != task])}",
                about=f"task '{task.name}'",
            )
        settings = settings or TaskConfig(name=name, copies=task.copies, protocol=task.protocol)
        trainer = self._with_trainer(settings, others, alone, chain)
        if planned.is_read and trainer.is_read:
            _check_trainer(task, planned, trainer)
        return replace(planned, trainer=trainer)

    def _read(self, task: TaskConfig, folder: Path) -> PlannedTask:
        TASK.open(folder).verify()
        description, loaded = read_description(folder), self._load(folder)
        protocol, epoch = self.protocol_of(task, description.protocol), loaded.epoch_length()
        num_examples = {split: loaded.num_examples(split) for split in SPLITS}
        title = loaded.info.title if loaded.info.title != loaded.info.name else task.name
        is_trained = KINDS[loaded.info.kind].facts.is_trained
        if protocol.pooling != "mean" and is_trained:
            raise ConfigError(
                f"pooling: {protocol.pooling} is for tasks without fine-tuning; remove it",
                about=f"task '{task.name}'",
            )
        few = protocol.train_examples
        # That all tasks share it does not concern a task without training.
        if few is not None and (is_trained or "train_examples" in task.protocol):
            if loaded.info.trained_on is None and few > epoch:
                raise ConfigError(
                    f"train_examples: {few}, but the training split has {epoch}",
                    about=f"task '{task.name}'",
                )
            num_examples["train"] = few
            title = task.name if title == task.name else f"{title}, {few} training examples"
        metric = deciding_metric(task, loaded.info, is_paper=self._is_paper)
        return PlannedTask(
            info=replace(loaded.info, name=task.name, title=title, metric=metric),
            folder=folder,
            protocol=protocol,
            num_examples=num_examples,
            epoch=epoch,
        )

    def _made(self, task: TaskConfig, scratch: Path | None = None) -> Path:
        """Return the folder of a task; build it if it is missing."""
        if task.origin in BUILTIN_TASKS:
            if task.revision or task.copies:
                raise ConfigError(
                    "built-in tasks have neither revision nor copies", about=f"task '{task.name}'"
                )
            return (
                prepare_builtin_tasks(self._config.corpus.libraries, self.store, say=self._say)
                / task.origin
            )
        source = self._source(task)
        folder = prepare_task(source, store=self.store, scratch=scratch, say=self._say)
        if source.is_remote:
            remember(self.store, self._note(task, source), folder)
        return folder

    def _source(self, task: TaskConfig) -> TaskSource:
        return self._find(task.origin, copies=task.copies, revision=task.revision)

    def _existing(self, task: TaskConfig, scratch: Path | None) -> Path | None:
        """Return the folder of a task in the store or made from local files; None otherwise."""
        if task.origin in BUILTIN_TASKS:
            folder = builtin_tasks_folder(self._config.corpus.libraries, self.store) / task.origin
        elif (source := self._source(task)).is_remote:
            folder = recall(self.store, self._note(task, source))
        else:
            folder = self._made(task, scratch)
        return folder if folder and is_complete(folder) else None

    def _note(self, task: TaskConfig, source: TaskSource) -> dict[str, Any]:
        settings = {"task": task.origin, "revision": task.revision, "paper": self._is_paper}
        if source.hub and not source.hub.published:  # people edit their task files
            settings["settings"] = source.hub.settings
        return settings

    def _placeholder(self, task: TaskConfig) -> PlannedTask:
        described = task.model_dump(mode="json", exclude={"name", "protocol", "metric", "copies"})
        needed: dict[str, Any] = {}
        if task.origin in BUILTIN_TASKS:
            kind, title, trained_on = BUILTIN_TASKS[task.origin], "", None
        else:
            settings = self._source(task).settings()
            kind, trained_on, needed = settings.kind, settings.trained_on, settings.protocol
            title = settings.title if settings.title != settings.name else ""
        info = TaskInfo(
            name=task.name,
            kind=kind,
            title=title or task.name,
            metric=KINDS[kind].facts.metric_keys[0],
            sha256=digest({"stand-in": "task", "described": described}),
            trained_on=trained_on if KINDS[kind].facts.is_trained else None,
        )
        return PlannedTask(
            info=replace(info, metric=deciding_metric(task, info, is_paper=self._is_paper)),
            folder=self.store / "tasks",
            protocol=self.protocol_of(task, needed),
            num_examples={},
        )


def _once(plan: Callable[[TaskConfig], PlannedTask]) -> Callable[[TaskConfig], PlannedTask]:
    """Plan each task once per settings: several tasks may be trained on the same one."""
    known: dict[str, PlannedTask] = {}

    def planned(task: TaskConfig) -> PlannedTask:
        settings = task.model_dump_json()
        if settings not in known:
            known[settings] = plan(task)
        return known[settings]

    return planned


def _can_write(folder: Path) -> bool:
    """Return whether a folder is writable, or can be created."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return os.access(existing, os.W_OK)


def _named(task: TaskConfig, error: BiphasicError) -> str:
    """Return an error message that begins with the study's name of the task."""
    name = f"task '{task.name}'"
    if error.about == name:
        return str(error)
    text = error.message if error.about == f"task '{task.origin}'" else str(error)
    return f"{name} ({task.origin}): {text}"


def _check_trainer(task: TaskConfig, planned: PlannedTask, trainer: PlannedTask) -> None:
    """Check that a task can be scored after training on another one."""
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
                f"protocol.{name} is a setting of training; set it for '{trainer.info.name}', "
                "which this task is trained on",
                about=f"task '{task.name}'",
            )


MOST_TOKENS = 500_000_000  # one process reads them in about twelve minutes


def overlap_path(store: Path, data: DataFingerprint, task: PlannedTask) -> Path:
    """Return the file with the number of a task's test examples that occur in training text."""
    determinants = {
        "text": sorted({data.corpus_hash, *data.corpora.values()}),
        "tokenizer": data.tokenizer_sha256,
        "task": task.info.sha256,
        "comparison": COMPARISON_VERSION,
    }
    return store / OVERLAPS / f"{digest(determinants)[:32]}.json"


def num_seen(store: Path, data: DataFingerprint, task: PlannedTask) -> int | None:
    """Return how many test examples of a task occur in training text; None if not counted."""
    path = overlap_path(store, data, task)
    if not path.is_file():
        return None
    remedy = "delete it; 'biphasic study run' counts again"
    seen = read_json_object(path, remedy=remedy).get("num_seen")
    if type(seen) is not int or not 0 <= seen <= task.num_examples["test"]:
        raise DataError(f"{path}: num_seen is {seen!r}, not a number of test examples; {remedy}")
    return seen


def count_in_text(
    store: Path, data: TrainingData, tasks: Iterable[PlannedTask], *, report: AmountReport
) -> str:
    """Count what was not counted before; return why not, or an empty string."""
    missing = {
        path: task
        for task in tasks
        if not (path := overlap_path(store, data.fingerprint, task)).is_file()
        # By construction, the texts of built-in tasks are in no corpus of `builtin:pydocs`.
        and not task.is_builtin
    }
    tokens = sum(corpus.num_tokens for corpus in (data.corpus, *data.corpora.values()))
    if missing and tokens > MOST_TOKENS:
        return (
            f"test examples were not looked for in the training corpus: it has {amount(tokens)} "
            f"tokens, more than {amount(MOST_TOKENS)}; list the task under 'against' to "
            "leave them out"
        )
    if missing:
        counts = count_seen([task.folder for task in missing.values()], _documents(data, report))
        for (path, task), seen in zip(missing.items(), counts, strict=True):
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"task": task.info.name, "num_seen": seen})
    return ""


def _documents(data: TrainingData, report: AmountReport) -> Iterator[str]:
    corpora, done = (data.corpus, *data.corpora.values()), 0
    total = sum(map(len, corpora))
    for corpus in corpora:
        for place, length in enumerate(corpus.lengths.tolist()):
            yield data.tokenizer.decode(corpus.tokens(place, 0, length).tolist())
            report(done := done + 1, total)
