"""Fine-tuning jobs: one state on one task, over a grid of learning rates and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeInt

from biphasic.amounts import rate
from biphasic.analysis.estimate import chosen_ends, grid
from biphasic.config import Config
from biphasic.data.building.verify import read_tokenizer
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import CheckpointError, DoneElsewhereError
from biphasic.execution.job import IDENTITY, Job, Progress, Report, ShouldStop, never, while_held
from biphasic.files import PARTIAL, digest, remove_partials
from biphasic.locks import lock_work
from biphasic.model.compute.device import on_compute_device
from biphasic.model.loading.hub import check_model
from biphasic.records import ResultRecord
from biphasic.store import RESULT, STATE, Store, is_complete
from biphasic.study.jobs.train import check_state
from biphasic.tasks.folder import load_task, read_description
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.memory import release_excess

if TYPE_CHECKING:
    from biphasic.tasks.finetune import Keep, Result
    from biphasic.tasks.kinds.kind import Learner


# Names a file in the store: never a path, whatever a job file says.
Identity = Annotated[str, Field(pattern=f"^{IDENTITY}$")]


class GridRun(Config):
    """One fine-tuning of a grid."""

    id: Identity
    learning_rate: float
    seed: int


class TaskInput(Config):
    """A task that a job reads."""

    name: str  # Name in the study.
    folder: Path  # Folder of its examples.
    protocol: FinetuneProtocol  # Constants of encoding, fine-tuning and scoring.


class ScoredTask(TaskInput):
    """A task that is scored after each fine-tuning."""

    # Its runs over the grid, then beyond it; all scored tasks have the same in the same order.
    runs: tuple[GridRun, ...]


def due_runs(tasks: Sequence[Sequence[GridRun]], num_beyond: int, store: Path) -> list[int]:
    """Return the places of the runs that are due: the grid's, and those beyond ends that it chose.

    The last `num_beyond` runs of each task are beyond the grid. The next rate beyond an end is due
    when all runs that are due so far have a result, and a seed chooses the end on any task.
    """
    rates = [run.learning_rate for run in tasks[0]]
    due = [*range(len(rates) - num_beyond)]
    result = cache(partial(_stored_result, store))
    while len(due) < len(rates):
        tried = {rates[place] for place in due}
        ends = set[float]()
        for runs in tasks:
            results = [found for place in due if (found := result(runs[place].id))]
            if len(results) < len(due):
                return due
            ends |= chosen_ends(grid(results, metric=results[0].metric), tried)
        low, high = min(tried), max(tried)
        below = max((value for value in rates if value < low), default=low)
        above = min((value for value in rates if value > high), default=high)
        new = {beyond for end, beyond in ((low, below), (high, above)) if end in ends} - tried
        if not new:
            return due
        due += [place for place, value in enumerate(rates) if value in new]
    return due


def _stored_result(store: Path, identity: str) -> ResultRecord | None:
    at = Store(store)
    try:
        return at.result(identity) if at.has(RESULT, identity) else None
    except CheckpointError:  # nothing follows from it; whoever reads the score reports the damage
        return None


class FinetuneJob(Job):
    """Fine-tune one state on one task, once per learning rate and seed, and score tasks."""

    kind: Literal["finetune"] = "finetune"
    id: str  # Identity of the group; of a part of its grid, with `-0-of-2`.
    # Jobs with other grids of the same training wait for it; parts of one grid do not.
    lock: Identity
    tokenizer: Path  # Folder of the tokenizer.
    encoder: Path  # Folder of the model to start from.
    state: str  # Identity of the model.
    training: TaskInput  # Task to train on.
    # Tasks to score: usually the same task, or others without a training split.
    evaluations: tuple[ScoredTask, ...]
    beyond: NonNegativeInt = 0  # The last runs of each task, which may become due (`due_runs`).
    # Folder in which each part keeps its best model (`biphasic.study.jobs.keep`).
    keep: Path | None = None

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Run the fine-tunings without results."""
        with lock_work(self.store, self.lock) as held:
            report = while_held(report, held, should_stop=should_stop)
            points = self._missing()
            if not points and self.evaluations[0].runs:
                raise DoneElsewhereError(self.label)
            from biphasic.study.jobs.keep import keep_best  # noqa: PLC0415
            from biphasic.tasks.finetune import write_result  # noqa: PLC0415

            keep = None if self.keep is None else partial(keep_best, self.keep / self.id)
            while points:
                for index, scored, results in self._fit(points, report, keep=keep):
                    for task, result in zip(scored, results, strict=True):
                        run = task.runs[index]
                        remove_partials(self.store / RESULT.place, run.id)
                        write_result(self._folder(run), *result)
                points = self._missing()  # beyond the grid, if validation chose its end

    def outputs(self) -> list[Path]:
        """Return the folders that it writes; models in a temporary folder are not listed."""
        results = [self._folder(run) for scored in self.evaluations for run in scored.runs]
        if self.keep is None or self.keep.parent.name.startswith(PARTIAL):
            return results
        return [*results, self.keep]

    def is_done(self) -> bool:
        """Return whether the store has all results that are due."""
        return not self._missing()

    def check_needs(self) -> None:
        """Check that the encoder exists."""
        if self.encoder == Store(self.store).folder(STATE, self.state):
            check_state(self.store, self.state)

    def refit(self, run: GridRun, report: Report, *, keep: Keep) -> None:
        """Repeat a run of the first scored task without writing results; `keep` gets the model."""
        scored = self.evaluations[0]
        point = (scored.runs.index(run), [scored])
        for _ in self._fit([point], report, keep=keep):
            pass

    def split(self, count: int) -> list[FinetuneJob]:
        """Split the runs that are due into at most `count` jobs; more may be due after them."""
        due = self.due()
        count = min(count, len(due))
        if count == 1:
            return [self]
        # Another command may run the same part, but keeps its models elsewhere, or none.
        keeper = "" if self.keep is None else f"-{digest(str(self.keep))[:12]}"
        return [
            self.model_copy(
                update={
                    "id": f"{(lock := f'{self.id}-{part}-of-{count}')}{keeper}",
                    "lock": lock,
                    "label": f"{self.label}, part {part + 1} of {count}",
                    "evaluations": tuple(
                        scored.model_copy(
                            update={"runs": tuple(scored.runs[at] for at in due[part::count])}
                        )
                        for scored in self.evaluations
                    ),
                    "beyond": 0,
                }
            )
            for part in range(count)
        ]

    def due(self) -> list[int]:
        """Return the places of the runs that are due, by the results in the store."""
        return due_runs([scored.runs for scored in self.evaluations], self.beyond, self.store)

    def _missing(self) -> list[tuple[int, list[ScoredTask]]]:
        """Return the places of runs that are due, with the tasks that lack a result there."""
        scored = [
            (
                at,
                [task for task in self.evaluations if not is_complete(self._folder(task.runs[at]))],
            )
            for at in self.due()
        ]
        return [(at, tasks) for at, tasks in scored if tasks]

    def _fit(
        self, points: list[tuple[int, list[ScoredTask]]], report: Report, *, keep: Keep | None
    ) -> Iterator[tuple[int, list[ScoredTask], tuple[Result, ...]]]:
        """Fine-tune once for each point of the grid, and score its tasks."""
        from biphasic.model.checks.contract import check_contract  # noqa: PLC0415
        from biphasic.tasks.finetune import FinetuneRun, finetune_group  # noqa: PLC0415

        is_ours = self.encoder.is_relative_to(self.store)
        remedy = "delete the folder and run again" if is_ours else "run the command again"
        check_model(self.encoder, self.state, remedy=remedy)
        kind = KINDS[read_description(self.training.folder).kind].learner
        protocol = kind.protocol_for(self.training.protocol, self.encoder)
        model = on_compute_device(kind.load(self.encoder, protocol))
        check_contract(model, causal=protocol.is_causal)
        encode = self._encoder_of_tasks(kind)
        runs = [
            FinetuneRun(
                task=encode(self.training),
                learning_rate=scored[0].runs[index].learning_rate,
                seed=scored[0].runs[index].seed,
                protocol=protocol,
                evaluations=tuple(map(encode, scored)),
                ids=tuple(task.runs[index].id for task in scored),
                state=self.state,
            )
            for index, scored in points
        ]
        finished = 0

        def forward(run: FinetuneRun, step: int, num_steps: int, loss: float) -> None:
            release_excess()
            text = f"rate {rate(run.learning_rate)}, seed {run.seed}, loss {loss:.3f}"
            report(Progress(finished * num_steps + step, len(runs) * num_steps, text))

        groups = finetune_group(model, runs, progress=forward, keep=keep)
        for (index, scored), results in zip(points, groups, strict=True):
            yield index, scored, results
            finished += 1

    def _encoder_of_tasks(self, kind: type[Learner]) -> Callable[[TaskInput], Learner]:
        """Return a function that encodes a task with its name in the study, once per process."""
        is_of_corpus = self.tokenizer != self.encoder
        load = read_tokenizer if is_of_corpus else TextTokenizer.load
        content = load(self.tokenizer).sha256

        def encode(task: TaskInput) -> Learner:
            protocol = kind.protocol_for(task.protocol, self.encoder).model_dump_json()
            return _encoded(task.folder, task.name, self.tokenizer, content, protocol)

        return encode

    def _folder(self, run: GridRun) -> Path:
        return Store(self.store).folder(RESULT, run.id)


# Cached between jobs of a worker; see `_open` in train.py about the keys.
@lru_cache(maxsize=8)
def _encoded(
    folder: Path, name: str, tokenizer: Path, _tokenizer_sha256: str, protocol: str
) -> Learner:
    from biphasic.tasks.finetune import encode_task  # noqa: PLC0415

    task = load_task(folder)
    return encode_task(
        replace(task, info=replace(task.info, name=name)),
        TextTokenizer.load(tokenizer),
        protocol=FinetuneProtocol.model_validate_json(protocol),
    )
