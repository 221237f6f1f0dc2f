"""Jobs: what a worker can do alone, given the store. Each is JSON, so it can travel anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from filelock import FileLock

from biphasic.config import Config
from biphasic.data.tokenizer import TextTokenizer
from biphasic.files import is_complete, remove_partials, verify_folder
from biphasic.model.build import load_model
from biphasic.model.contract import check_contract
from biphasic.study.prepare import PreparedPaths
from biphasic.tasks.encoding import EncodedTask
from biphasic.tasks.finetune import FinetuneRun, encode_task, finetune_group
from biphasic.tasks.formats import load_task
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.results import write_result
from biphasic.training.loop import RunOptions, StepReport, TrainingData, train_segment
from biphasic.training.memory import release_excess
from biphasic.training.recipe import Lineage, Recipe


@dataclass(frozen=True)
class Progress:
    """How far a job is: `done` of `total` steps, and a few words such as the loss."""

    done: int
    total: int
    text: str


Report = Callable[[Progress], None]


class TrainJob(Config):
    """Train one segment of a recipe."""

    kind: Literal["train"] = "train"
    id: str
    """Identity of the state at its end."""
    label: str
    """What progress displays call it."""
    store: Path
    """Content store."""
    data: PreparedPaths
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

    def run(self, report: Report) -> None:
        """Train, or find it done."""
        data = _open(self.data.model_dump_json())

        def forward(step: StepReport) -> None:
            speed = step.tokens / step.seconds
            text = f"loss {step.loss:.3f}  {speed:,.0f} tokens/s"
            report(Progress(step.step - self.start, self.end - self.start, text))

        with _exclusive(self.store, self.id):
            remove_partials(self.store / "states", self.id)
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
                ),
            )


class GridRun(Config):
    """One fine-tuning of a grid."""

    id: str
    learning_rate: float
    seed: int


class FinetuneJob(Config):
    """Fine-tune one state on one task, once per learning rate and seed."""

    kind: Literal["finetune"] = "finetune"
    id: str
    """Identity of the group."""
    label: str
    """What progress displays call it."""
    store: Path
    """Content store."""
    tokenizer: Path
    """Folder of the tokenizer."""
    task: Path
    """Folder of the task."""
    encoder: Path
    """Folder of the model to start from."""
    state: str
    """Its identity."""
    protocol: FinetuneProtocol
    """Constants of the fine-tuning."""
    runs: tuple[GridRun, ...]
    """The grid."""

    def run(self, report: Report) -> None:
        """Fine-tune what has no result yet."""
        with _exclusive(self.store, self.id):
            missing = [run for run in self.runs if not is_complete(self._folder(run))]
            for run in missing:
                remove_partials(self.store / "finetunes", run.id)
            if missing:
                self._run_missing(missing, report)

    def _run_missing(self, missing: list[GridRun], report: Report) -> None:
        if is_complete(self.encoder):
            verify_folder(self.encoder, remedy="delete the folder and run again")
        model = load_model(self.encoder)
        check_contract(model, causal=False)
        task = _encoded(self.task, self.tokenizer, self.protocol.model_dump_json())
        runs = [FinetuneRun(task, run.learning_rate, run.seed, self.protocol) for run in missing]
        finished = 0

        def forward(run: FinetuneRun, step: int, num_steps: int, loss: float) -> None:
            release_excess()
            text = f"rate {run.learning_rate:g}  seed {run.seed}  loss {loss:.3f}"
            report(Progress(finished * num_steps + step, len(missing) * num_steps, text))

        for run, result in zip(missing, finetune_group(model, runs, progress=forward), strict=True):
            write_result(self._folder(run), result, run_id=run.id, state=self.state)
            finished += 1

    def _folder(self, run: GridRun) -> Path:
        return self.store / "finetunes" / run.id


Job = TrainJob | FinetuneJob


def _exclusive(store: Path, job_id: str) -> FileLock:
    """Wait until no other process of this store does the same job."""
    locks = store / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    return FileLock(locks / f"{job_id}.lock")


# What a long-lived worker keeps between jobs. Keys are JSON, since type checkers do not know that
# frozen records can be hashed.
@lru_cache(maxsize=1)
def _open(paths: str) -> TrainingData:
    return PreparedPaths.model_validate_json(paths).open()


@lru_cache(maxsize=8)
def _encoded(task: Path, tokenizer: Path, protocol: str) -> EncodedTask:
    return encode_task(
        load_task(task),
        TextTokenizer.load(tokenizer),
        protocol=FinetuneProtocol.model_validate_json(protocol),
    )
