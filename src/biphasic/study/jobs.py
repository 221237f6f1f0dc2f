"""Jobs: fine-tune one state on one task over a grid, keeping the best weights; train a segment.

Plans and status create thousands of jobs without running them, so compute imports are deferred.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from biphasic.amounts import rate
from biphasic.analysis.estimate import chosen_ends, grid
from biphasic.config import Config
from biphasic.data.building.built import read_tokenizer
from biphasic.data.corpus import DETAILS, REMEDY, TEXTS
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import CheckpointError, DataError, DoneElsewhereError, StudyError
from biphasic.execution.job import IDENTITY, Job, Progress, Report, ShouldStop, never, while_held
from biphasic.files import PARTIAL, digest, read_json, remove_partials, write_json
from biphasic.locks import lock_work
from biphasic.model.compute.device import on_compute_device
from biphasic.model.loading.hub import check_model
from biphasic.plugin_code import look_in
from biphasic.records import ResultRecord
from biphasic.store import MANIFEST, MODEL, RESULT, STATE, Store, complete_folder, is_complete
from biphasic.study.inputs.corpus import DataPaths
from biphasic.tasks.folder import load_task, read_description
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training import HELDOUT_OBJECTIVES
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.memory import release_excess
from biphasic.training.recipe import Recipe
from biphasic.training.state import Checkpoints, save_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from biphasic.distributed import ProcessGroup
    from biphasic.tasks.finetune import Keep, Result, TrainedModel
    from biphasic.tasks.kinds.kind import Learner
    from biphasic.training.run import Judge
    from biphasic.training.step.pending import StepReport


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
    metric: str  # Main metric in the study, which decides on validation.
    protocol: FinetuneProtocol  # Constants of encoding, fine-tuning and scoring.


class ScoredTask(TaskInput):
    """A task that is scored after each fine-tuning."""

    # Its runs over the grid, then beyond it; all scored tasks have the same in the same order.
    runs: tuple[GridRun, ...]


def due_runs(
    tasks: Sequence[tuple[str, Sequence[GridRun]]], num_beyond: int, store: Path
) -> list[int]:
    """Return the places of the runs that are due: the grid's, and those beyond ends that it chose.

    Each task is its main metric and its runs, of which the last `num_beyond` are beyond the grid.
    The next rate beyond an end is due when all runs that are due so far have a result, and a seed
    chooses the end on any task.
    """
    rates = [run.learning_rate for run in tasks[0][1]]
    due = [*range(len(rates) - num_beyond)]
    result = cache(partial(_stored_result, store))
    while len(due) < len(rates):
        tried = {rates[place] for place in due}
        ends = set[float]()
        for metric, runs in tasks:
            results = [found for place in due if (found := result(runs[place].id))]
            if len(results) < len(due):
                return due
            ends |= chosen_ends(grid(results, metric=metric), tried)
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
    # Folder in which each part keeps its best model (`biphasic.study.jobs`).
    keep: Path | None = None

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Run the fine-tunings without results."""
        with lock_work(self.store, self.lock) as held:
            report = while_held(report, held, should_stop=should_stop)
            points = self._missing()
            if not points and self.evaluations[0].runs:
                raise DoneElsewhereError(self.label)
            from biphasic.tasks.finetune import write_result  # noqa: PLC0415

            keep = None if self.keep is None else partial(keep_best, self.keep / self.id)
            num_before = 0
            while points:
                fitted = self._fit(points, report, keep=keep, num_before=num_before)
                for index, scored, results in fitted:
                    for task, result in zip(scored, results, strict=True):
                        run = task.runs[index]
                        remove_partials(self.store / RESULT.place, run.id)
                        write_result(self._folder(run), *result)
                num_before += len(points)
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
        """Split the missing runs into at most `count` jobs; more may be due after them."""
        missing = [at for at, _ in self._missing()]
        count = min(count, len(missing))
        if count <= 1:
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
                            update={"runs": tuple(scored.runs[at] for at in missing[part::count])}
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
        tasks = [(scored.metric, scored.runs) for scored in self.evaluations]
        return due_runs(tasks, self.beyond, self.store)

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
        self,
        points: list[tuple[int, list[ScoredTask]]],
        report: Report,
        *,
        keep: Keep | None,
        num_before: int = 0,
    ) -> Iterator[tuple[int, list[ScoredTask], tuple[Result, ...]]]:
        """Fine-tune once for each point of the grid, and score its tasks.

        Progress counts the runs of this job that came before.
        """
        from biphasic.model.contract import check_contract  # noqa: PLC0415
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
        finished, all_runs = num_before, num_before + len(runs)

        def forward(run: FinetuneRun, step: int, num_steps: int, loss: float) -> None:
            release_excess()
            text = f"rate {rate(run.learning_rate)}, seed {run.seed}, loss {loss:.3f}"
            report(Progress(finished * num_steps + step, all_runs * num_steps, text))

        groups = finetune_group(model, runs, progress=forward, keep=keep)
        for (index, scored), results in zip(points, groups, strict=True):
            yield index, scored, results
            finished += 1

    def _encoder_of_tasks(self, kind: type[Learner]) -> Callable[[TaskInput], Learner]:
        """Return a function that encodes a task with its name and main metric, once per process."""
        is_of_corpus = self.tokenizer != self.encoder
        load = read_tokenizer if is_of_corpus else TextTokenizer.load
        content = load(self.tokenizer).sha256

        def encode(task: TaskInput) -> Learner:
            protocol = kind.protocol_for(task.protocol, self.encoder).model_dump_json()
            named = task.name, task.metric
            return _encoded(task.folder, named, self.tokenizer, content, protocol)

        return encode

    def _folder(self, run: GridRun) -> Path:
        return Store(self.store).folder(RESULT, run.id)


# Cached between jobs of a worker; see `_open` about the keys.
@lru_cache(maxsize=8)
def _encoded(
    folder: Path, named: tuple[str, str], tokenizer: Path, _tokenizer_sha256: str, protocol: str
) -> Learner:
    from biphasic.tasks.finetune import encode_task  # noqa: PLC0415

    task, (name, metric) = load_task(folder), named
    return encode_task(
        replace(task, info=replace(task.info, name=name, metric=metric)),
        TextTokenizer.load(tokenizer),
        protocol=FinetuneProtocol.model_validate_json(protocol),
    )


RANK = "biphasic.study.jobs"  # Run as a program, it is one of the ranks that train a job.


class TrainJob(Job):
    """Train one segment of a recipe."""

    kind: Literal["train"] = "train"
    id: str  # Identity of the state at its end.
    data: DataPaths  # Paths of the data.
    recipe: Recipe  # A recipe that passes through the segment.
    start: int  # Updates before it.
    end: int  # Updates after it.
    checkpoint_every: int
    heldout_every: int
    heldout_objectives: tuple[Literal["clm", "mlm"], ...] = HELDOUT_OBJECTIVES
    minimal_pairs: Path | None = None  # Folder of a task; scored with each held-out loss.
    tensorboard: Path | None  # Folder for event files.
    compute: ComputeConfig = ComputeConfig()  # How steps are computed.

    @property
    def num_slots(self) -> int:
        """Number of processes that train together, each on one slot."""
        return self.compute.processes

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Train the segment, with the number of processes in `compute`."""
        with lock_work(self.store, self.id) as held:
            if self.is_done():
                # A process that was killed after it saved the state leaves them.
                Checkpoints.of(self.store, self.id, start=self.start).clear()
                raise DoneElsewhereError(self.label)
            report = while_held(report, held)
            if self.num_slots == 1:
                self.train(report, should_stop=should_stop)
            else:
                from biphasic.execution.ranks import run_ranks  # noqa: PLC0415

                run_ranks(self, report, worker=RANK, should_stop=should_stop)

    def outputs(self) -> list[Path]:
        """Return the folders that it writes."""
        state = Store(self.store).folder(STATE, self.id)
        return [state, *([self.tensorboard] if self.tensorboard else [])]

    def is_done(self) -> bool:
        """Return whether the store has the state."""
        return Store(self.store).has(STATE, self.id)

    def check_needs(self) -> None:
        """Check that the state this job continues from exists."""
        if self.start:
            data = _open(self.data.model_dump_json(), self.data.content())
            check_state(self.store, Lineage(self.recipe, data.fingerprint).identities[self.start])

    def train(
        self, report: Report, *, should_stop: ShouldStop = never, ranks: ProcessGroup | None = None
    ) -> None:
        """Train in this process, alone or as one of several ranks; the caller holds the lock."""
        from biphasic.distributed import ALONE  # noqa: PLC0415
        from biphasic.training.loop import RunOptions, train_segment  # noqa: PLC0415

        ranks = ranks or ALONE
        data = _open(self.data.model_dump_json(), self.data.content())

        done = 0

        def forward(step: StepReport) -> None:
            nonlocal done
            done = step.step - self.start
            show(f"loss {step.loss:.3f}, {step.speed:,.0f} tokens/s")

        def show(text: str, *, note: str = "") -> None:
            # Before the first step, nothing is known: the run may be resumed.
            report(Progress(done, self.end - self.start if done else 0, text, note=note))

        if ranks.is_first:
            remove_partials(self.store / STATE.place, self.id)
            # Descriptions of corpora outside of the store, for model cards.
            for corpus in (data.corpus, *data.corpora.values()):
                path = self.store / TEXTS / f"{corpus.content_hash}.json"
                # From a file that others may have written: a hash, never a path.
                if not re.fullmatch("[0-9a-f]{64}", corpus.content_hash):
                    raise DataError(f"{corpus.folder / DETAILS}: content_hash is no hash; {REMEDY}")
                if not (corpus.folder.is_relative_to(self.store / "data") or path.is_file()):
                    kept = {"content_hash", "num_documents", "num_tokens", "provenance"}
                    write_json(path, corpus.details.model_dump(include=kept))
        train_segment(
            Lineage(self.recipe, data.fingerprint),
            data,
            self.store,
            start=self.start,
            end=self.end,
            options=RunOptions(
                checkpoint_every=self.checkpoint_every,
                heldout_every=self.heldout_every,
                heldout_objectives=self.heldout_objectives,
                judge=self._judge(data),
                tensorboard=self.tensorboard,
                report=forward,
                describe=show if ranks.is_first else None,
                warn=(lambda text: show("", note=text)) if ranks.is_first else None,
                compute=self.compute,
                should_stop=should_stop,
            ),
            ranks=ranks,
        )

    def _judge(self, data: TrainingData) -> Judge | None:
        if self.minimal_pairs is None:
            return None
        from biphasic.tasks.folder import load_task  # noqa: PLC0415
        from biphasic.tasks.language import training_judge  # noqa: PLC0415
        from biphasic.tasks.records import ExampleTask  # noqa: PLC0415

        task = load_task(self.minimal_pairs)
        if not isinstance(task, ExampleTask):
            raise TypeError(f"{self.minimal_pairs} holds no minimal pairs")
        return training_judge(task.splits["test"], data.tokenizer, self.recipe)


def check_state(store: Path, identity: str) -> None:
    """Check that a state exists."""
    if not Store(store).has(STATE, identity):
        raise StudyError(
            f"{Store(store).folder(STATE, identity)}: does not exist yet, and this job needs it; "
            f"first run: biphasic job run {identity}"
        )


# Cached between jobs of a worker. Keys are JSON because type checkers do not treat frozen records
# as hashable. They include content hashes because the content of a path may change.
@lru_cache(maxsize=1)
def _open(paths: str, _content: tuple[str, ...]) -> TrainingData:
    return DataPaths.model_validate_json(paths).open()


def _train(job: str, report: Report, should_stop: ShouldStop, ranks: ProcessGroup) -> None:
    """Train a job, given as JSON, as one of several ranks."""
    look_in(Path(json.loads(job)["store"]))
    TrainJob.model_validate_json(job).train(report, should_stop=should_stop, ranks=ranks)


_BODY, _HEAD = "body.safetensors", "head.safetensors"
_REMEDY = "run again"


@dataclass(frozen=True)
class KeptModel:
    """A saved fine-tuned model; metrics are by split, then by name."""

    learning_rate: float
    seed: int
    steps: int
    metrics: dict[str, dict[str, float]]
    body: dict[str, Tensor]
    head: dict[str, Tensor]


def keep_best(folder: Path, finetuned: TrainedModel) -> None:
    """Keep a model in a folder of its own, unless the one that is kept there is better."""
    # The score on validation decides; a diverged model is never kept. Ties go to the smaller rate,
    # then to the smaller seed, so the best model of a grid is among those that its parts keep.
    record, scores = finetuned.results[0]
    if record.status == "diverged":
        return
    offered = {
        "learning_rate": record.learning_rate,
        "seed": record.seed,
        "steps": record.steps,
        "metrics": {split: of.metrics for split, of in scores.items()},
        "score": record.score("validation", record.metric) or 0.0,
    }
    if is_complete(folder):
        if _rank(read_json(folder / MANIFEST)) <= _rank(offered):
            return
        # Delete the kept model first: two large models may not fit on the disk.
        shutil.rmtree(folder)
    with complete_folder(folder, **offered) as partial:
        save_tensors(finetuned.weights, partial / _BODY)
        save_tensors(finetuned.head, partial / _HEAD)


def _rank(described: dict[str, Any]) -> tuple[float, float, int]:
    return -described["score"], described["learning_rate"], described["seed"]


def find_kept(folder: Path, *, learning_rate: float, seed: int) -> KeptModel | None:
    """Return a kept model below `folder` by its rate and seed, or None."""
    from safetensors.torch import load_file  # noqa: PLC0415

    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        manifest = MODEL.open(path.parent, remedy=_REMEDY).verify().manifest
        if (manifest["learning_rate"], manifest["seed"]) == (learning_rate, seed):
            return KeptModel(
                learning_rate,
                seed,
                steps=manifest["steps"],
                metrics=manifest["metrics"],
                body=load_file(path.parent / _BODY),
                head=load_file(path.parent / _HEAD),
            )
    return None


if __name__ == "__main__":
    from biphasic.execution.rank_worker import serve

    serve(_train)
