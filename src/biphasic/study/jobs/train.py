"""Training jobs: a segment of a recipe.

Plans and status create thousands of jobs without running them, so compute imports are deferred.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from biphasic.data.corpus import TEXTS
from biphasic.errors import DoneElsewhereError, StudyError
from biphasic.execution.job import Job, Progress, Report, ShouldStop, never, while_held
from biphasic.files import remove_partials, write_json
from biphasic.locks import lock_work
from biphasic.plugin_code import look_in
from biphasic.store import STATE, Store
from biphasic.study.inputs.corpus import DataPaths
from biphasic.training import HELDOUT_OBJECTIVES
from biphasic.training.compute import ComputeConfig
from biphasic.training.data import TrainingData
from biphasic.training.lineage import Lineage
from biphasic.training.recipe import Recipe

if TYPE_CHECKING:
    from biphasic.distributed import ProcessGroup
    from biphasic.training.run import Judge
    from biphasic.training.step.pending import StepReport

RANK = "biphasic.study.jobs.train"  # Run as a program, it is one of the ranks that train a job.


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
                from biphasic.training.state import Checkpoints  # noqa: PLC0415

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
            report(Progress(done, self.end - self.start, text, note=note))

        if ranks.is_first:
            remove_partials(self.store / STATE.place, self.id)
            # Descriptions of corpora outside of the store, for model cards.
            for corpus in (data.corpus, *data.corpora.values()):
                path = self.store / TEXTS / f"{corpus.content_hash}.json"
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


if __name__ == "__main__":
    from biphasic.execution.rank_worker import serve

    serve(_train)
