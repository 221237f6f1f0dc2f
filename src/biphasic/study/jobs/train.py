"""Jobs: what a worker can do alone, given the store. Each is JSON, so it can travel anywhere.

Plans and status name thousands of jobs and run none, so what computes is imported when one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from biphasic.config import Config
from biphasic.data.corpus import TEXTS
from biphasic.data.tokenizer import TextTokenizer
from biphasic.data.verify import read_tokenizer
from biphasic.errors import StoppedError, StudyError
from biphasic.execution.job_store import IDENTITY
from biphasic.files import PARTIAL, is_complete, remove_partials, write_json
from biphasic.locks import Lock, lock_work
from biphasic.model.device import on_compute_device
from biphasic.model.hub import check_model
from biphasic.study.inputs.corpus import DataPaths
from biphasic.tasks.formats import load_task
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.compute import ComputeConfig
from biphasic.training.data import TrainingData
from biphasic.training.lineage import Lineage
from biphasic.training.memory import release_excess
from biphasic.training.recipe import Recipe

if TYPE_CHECKING:
    from biphasic.distributed import Gang
    from biphasic.tasks.encoding import EncodedTask
    from biphasic.tasks.finetune import FinetuneResult, FinetuneRun, Keep
    from biphasic.training.loop import StepReport


@dataclass(frozen=True)
class Progress:
    """How far a job is: `done` of `total` steps, and a few words such as the loss."""

    done: int
    total: int
    text: str


Report = Callable[[Progress], None]
ShouldStop = Callable[[], bool]
"""Asked now and then; a job that hears yes saves what it has and raises `StoppedError`."""


def never() -> bool:
    """Never stop."""
    return False


class TrainJob(Config):
    """Train one segment of a recipe."""

    kind: Literal["train"] = "train"
    id: str
    """Identity of the state at its end."""
    label: str
    """What progress displays call it."""
    store: Path
    """Content store."""
    data: DataPaths
    """Where the data are."""
    recipe: Recipe
    """A recipe that passes through the segment."""
    start: int
    """Step it begins after."""
    end: int
    """Step it ends with."""
    checkpoint_every: int
    """Updates between checkpoints."""
    heldout_every: int
    """Updates between held-out evaluations."""
    tensorboard: Path | None
    """Folder for event files."""
    compute: ComputeConfig = ComputeConfig()
    """How steps are computed."""

    @property
    def num_slots(self) -> int:
        """Processes that train together, each on a slot of its own."""
        return self.compute.processes

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Train, or find it done; in a gang of processes where `compute` says so.

        Raises:
            TakenError: Another process does it.
            StoppedError: Somebody asked to stop; it goes on from there next time.
        """
        with lock_work(self.store, self.id) as held:
            report = _while_held(report, held)
            if self.num_slots == 1:
                self.train(report, should_stop=should_stop)
            else:
                from biphasic.execution.ranks import run_gang  # noqa: PLC0415

                run_gang(self, lambda **told: report(Progress(**told)), should_stop=should_stop)

    def outputs(self) -> list[Path]:
        """Return the folders that it writes."""
        return [self.store / "states" / self.id, *([self.tensorboard] if self.tensorboard else [])]

    def is_done(self) -> bool:
        """Tell whether the store has the state."""
        return is_complete(self.store / "states" / self.id)

    def check_needs(self) -> None:
        """Check that what this job goes on from is there.

        Raises:
            StudyError: It is not; the message names the job that makes it.
        """
        if self.start:
            data = _open(self.data.model_dump_json(), self.data.content())
            _check_state(self.store, Lineage(self.recipe, data.ground).identities[self.start])

    def train(
        self, report: Report, *, should_stop: ShouldStop = never, gang: Gang | None = None
    ) -> None:
        """Train in this process, alone or as a rank of a gang; the caller holds the lock."""
        from biphasic.distributed import ALONE  # noqa: PLC0415
        from biphasic.training.loop import RunOptions, train_segment  # noqa: PLC0415

        gang = gang or ALONE
        data = _open(self.data.model_dump_json(), self.data.content())

        def forward(step: StepReport) -> None:
            speed = step.tokens / step.seconds
            text = f"loss {step.loss:.3f}, {speed:,.0f} tokens/s"
            report(Progress(step.step - self.start, self.end - self.start, text))

        if gang.is_first:
            remove_partials(self.store / "states", self.id)
            _describe_texts(data, self.store)
        train_segment(
            Lineage(self.recipe, data.ground),
            data,
            self.store,
            start=self.start,
            end=self.end,
            options=RunOptions(
                checkpoint_every=self.checkpoint_every,
                heldout_every=self.heldout_every,
                tensorboard=self.tensorboard,
                report=forward,
                compute=self.compute,
                should_stop=should_stop,
            ),
            gang=gang,
        )


class GridRun(Config):
    """One fine-tuning of a grid."""

    id: Annotated[str, Field(pattern=f"^{IDENTITY}$")]
    learning_rate: float
    seed: int


class TaskInput(Config):
    """A task that a job reads."""

    name: str
    """As the study calls it."""
    folder: Path
    """Its examples."""
    protocol: FinetuneProtocol
    """Constants of encoding, fine-tuning and scoring."""


class ScoredTask(TaskInput):
    """A task that is scored after each fine-tuning."""

    runs: tuple[GridRun, ...]
    """Its results over the grid; all scored tasks have the same grid in the same order."""


class FinetuneJob(Config):
    """Fine-tune one state on one task, once per learning rate and seed, and score tasks."""

    kind: Literal["finetune"] = "finetune"
    id: str
    """Identity of the group."""
    label: str
    """What progress displays call it."""
    store: Path
    """Content store."""
    tokenizer: Path
    """Folder of the tokenizer."""
    encoder: Path
    """Folder of the model to start from."""
    state: str
    """Its identity."""
    training: TaskInput
    """What is trained on."""
    evaluations: tuple[ScoredTask, ...]
    """What is scored: most often the same task, or others that have no training split."""
    keep: Path | None = None
    """Folder in which each part keeps its best model (`biphasic.evaluation.keep`)."""

    @property
    def num_slots(self) -> int:
        """One: a process fine-tunes alone."""
        return 1

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Fine-tune what has a result missing.

        Raises:
            TakenError: Another process does it.
            StoppedError: Somebody asked to stop; finished fine-tunings are kept.
        """
        with lock_work(self.store, self.id) as held:
            report = _while_held(_stopping(report, should_stop), held)
            missing = [
                [scored for scored in self.evaluations if not self._is_done(scored.runs[index])]
                for index in range(len(self.evaluations[0].runs))
            ]
            points = [(index, scored) for index, scored in enumerate(missing) if scored]
            if points:
                from biphasic.evaluation.keep import BestModel  # noqa: PLC0415

                keep = None if self.keep is None else BestModel(self.keep / self.id).offer
                for index, scored, results in self._fit(points, report, keep=keep):
                    for task, result in zip(scored, results, strict=True):
                        self._write(task, task.runs[index], result)

    def outputs(self) -> list[Path]:
        """Return the folders that it writes; `finetune` keeps models in a leftover of its own."""
        results = [self._folder(run) for scored in self.evaluations for run in scored.runs]
        if self.keep is None or self.keep.parent.name.startswith(PARTIAL):
            return results
        return [*results, self.keep]

    def is_done(self) -> bool:
        """Tell whether the store has all results."""
        return all(self._is_done(run) for scored in self.evaluations for run in scored.runs)

    def check_needs(self) -> None:
        """Check that the encoder is there.

        Raises:
            StudyError: It is not; the message names the job that makes it.
        """
        if self.encoder == self.store / "states" / self.state:
            _check_state(self.store, self.state)

    def refit(self, run: GridRun, report: Report, *, keep: Keep) -> None:
        """Do one fine-tuning again, whether it has results or not; nothing is written.

        Args:
            run: One of the first scored task.
            report: Told how far it is.
            keep: Given the model.
        """
        scored = self.evaluations[0]
        point = (scored.runs.index(run), [scored])
        for _ in self._fit([point], report, keep=keep):
            pass

    def split(self, count: int) -> list[FinetuneJob]:
        """Return jobs that do this one together, each a part of the grid; at most `count`."""
        num_points = len(self.evaluations[0].runs)
        count = min(count, num_points)
        if count == 1:
            return [self]
        return [
            self.model_copy(
                update={
                    "id": f"{self.id}-{part}-of-{count}",
                    "label": f"{self.label}, part {part + 1} of {count}",
                    "evaluations": tuple(
                        scored.model_copy(update={"runs": scored.runs[part::count]})
                        for scored in self.evaluations
                    ),
                }
            )
            for part in range(count)
        ]

    def _is_done(self, run: GridRun) -> bool:
        return is_complete(self._folder(run))

    def _fit(
        self, points: list[tuple[int, list[ScoredTask]]], report: Report, *, keep: Keep | None
    ) -> Iterator[tuple[int, list[ScoredTask], tuple[FinetuneResult, ...]]]:
        """Fine-tune once for each point of the grid, and score the tasks that go with it."""
        from biphasic.model.build import load_encoder  # noqa: PLC0415
        from biphasic.model.contract import check_contract  # noqa: PLC0415
        from biphasic.tasks.finetune import finetune_group  # noqa: PLC0415

        is_ours = self.encoder.is_relative_to(self.store)
        remedy = "delete the folder and run again" if is_ours else "run the command again"
        check_model(self.encoder, self.state, remedy=remedy)
        batching = self.training.protocol.batching
        model = on_compute_device(load_encoder(self.encoder, batching=batching))
        check_contract(model, causal=False)
        encode = self._encoder_of_tasks()
        runs = [self._plan_run(index, scored, encode) for index, scored in points]
        finished = 0

        def forward(run: FinetuneRun, step: int, num_steps: int, loss: float) -> None:
            release_excess()
            text = f"rate {run.learning_rate:g}, seed {run.seed}, loss {loss:.3f}"
            report(Progress(finished * num_steps + step, len(runs) * num_steps, text))

        groups = finetune_group(model, runs, progress=forward, keep=keep)
        for (index, scored), results in zip(points, groups, strict=True):
            yield index, scored, results
            finished += 1

    def _plan_run(
        self, index: int, scored: list[ScoredTask], encode: Callable[[TaskInput], EncodedTask]
    ) -> FinetuneRun:
        from biphasic.tasks.finetune import FinetuneRun  # noqa: PLC0415

        point = scored[0].runs[index]
        return FinetuneRun(
            task=encode(self.training),
            learning_rate=point.learning_rate,
            seed=point.seed,
            protocol=self.training.protocol,
            evaluations=tuple(map(encode, scored)),
        )

    def _encoder_of_tasks(self) -> Callable[[TaskInput], EncodedTask]:
        """Return what gives a task as token sequences, each made once in a process."""
        is_of_corpus = self.tokenizer != self.encoder
        load = read_tokenizer if is_of_corpus else TextTokenizer.load
        content = load(self.tokenizer).sha256

        def encode(task: TaskInput) -> EncodedTask:
            return _encoded(task.folder, self.tokenizer, content, task.protocol.model_dump_json())

        return encode

    def _write(self, task: ScoredTask, run: GridRun, result: FinetuneResult) -> None:
        """Write a result under the study's names."""
        from biphasic.tasks.results import write_result  # noqa: PLC0415

        remove_partials(self.store / "finetunes", run.id)
        trained_on = None if result.trained_on is None else self.training.name
        named = replace(result, task=replace(result.task, name=task.name), trained_on=trained_on)
        write_result(self._folder(run), named, run_id=run.id, state=self.state)

    def _folder(self, run: GridRun) -> Path:
        return self.store / "finetunes" / run.id


Job = TrainJob | FinetuneJob


def _while_held(report: Report, held: Lock) -> Report:
    """Return a report that ends a job which another process took over: this one seemed gone."""

    def forward(progress: Progress) -> None:
        report(progress)
        if held.is_lost:
            held.check()

    return forward


def _describe_texts(data: TrainingData, store: Path) -> None:
    """Keep what is known of corpora outside of the store: model cards say what was read."""
    for corpus in (data.corpus, *data.corpora.values()):
        path = store / TEXTS / f"{corpus.content_hash}.json"
        if not (corpus.folder.is_relative_to(store / "data") or path.is_file()):
            kept = ("content_hash", "num_documents", "num_tokens", "provenance")
            write_json(path, {key: corpus.details[key] for key in kept})


def _check_state(store: Path, identity: str) -> None:
    if not is_complete(store / "states" / identity):
        raise StudyError(
            f"{store / 'states' / identity}: not there yet, and this job goes on from it; first: "
            f"biphasic job run {identity}"
        )


def _stopping(report: Report, should_stop: ShouldStop) -> Report:
    """Return a report that stops the job on request, where progress is told."""

    def forward(progress: Progress) -> None:
        report(progress)
        if should_stop():
            raise StoppedError("stopped; what is finished is kept")

    return forward


# What a long-lived worker keeps between jobs. Keys are JSON, since type checkers do not know that
# frozen records can be hashed; hashes of content stand beside paths, for what may lie there anew.
@lru_cache(maxsize=1)
def _open(paths: str, _content: tuple[str, ...]) -> TrainingData:
    return DataPaths.model_validate_json(paths).open()


@lru_cache(maxsize=8)
def _encoded(task: Path, tokenizer: Path, _tokenizer_sha256: str, protocol: str) -> EncodedTask:
    from biphasic.tasks.finetune import encode_task  # noqa: PLC0415

    return encode_task(
        load_task(task),
        TextTokenizer.load(tokenizer),
        protocol=FinetuneProtocol.model_validate_json(protocol),
    )
