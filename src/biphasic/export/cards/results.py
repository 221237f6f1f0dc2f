"""Scores of a state: what the store beside it holds of its fine-tunings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult

from biphasic.analysis.estimate import Estimate, estimate
from biphasic.analysis.scores.selection import best_per_seed, grid_score
from biphasic.errors import CheckpointError, DataError
from biphasic.export.cards.file import eval_result
from biphasic.files import read_json, verify_folder
from biphasic.records import ZERO_SHOT, Convention, ResultRecord, parse_record


@dataclass(frozen=True)
class TaskScore:
    """A state on one task.

    Attributes:
        task: Its name.
        trained_on: The task that was trained on, where it is another.
        kind: Such as `sc`; `zs` is scored without fine-tuning.
        metric: What decides.
        estimate: Mean over seeds with its 95 % interval.
        learning_rates: Rates that were tried.
        seeds: Seeds that were tried.
        num_diverged: Fine-tunings without a score.
    """

    task: str
    trained_on: str | None
    kind: str
    metric: str
    estimate: Estimate
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    num_diverged: int

    @property
    def for_hub(self) -> EvalResult:
        """The mean on test, with what it is the mean of."""
        seeds = self.estimate.num_seeds
        is_mean = self.kind != ZERO_SHOT and seeds > 1
        return eval_result(
            kind=self.kind,
            task=self.task,
            title=self.task,
            metric=self.metric,
            value=self.estimate.mean,
            split="test",
            note=(f" after fine-tuning on {self.trained_on}" if self.trained_on else "")
            + (f", mean over {seeds} seeds" if is_mean else ""),
        )


@dataclass(frozen=True)
class StateScores:
    """All scores of a state.

    Attributes:
        scores: By task.
        left_out: What cannot be told, one sentence each.
    """

    scores: tuple[TaskScore, ...]
    left_out: tuple[str, ...]


def scores_of_state(
    finetunes: Path, identity: str, *, convention: Convention = "standard"
) -> StateScores:
    """Summarise the fine-tunings of a state in a store; by the convention of reports.

    A task that was fine-tuned under several protocols has several results of one rate and seed.
    Records do not say which belong together, so such a task is left out, and said to be.

    Args:
        finetunes: `store/finetunes`; may be absent.
        identity: Of the state.
        convention: How intervals are computed.
    """
    groups: dict[tuple[str, str | None], list[ResultRecord]] = defaultdict(list)
    left_out: list[str] = []
    for result in _results(finetunes, identity, left_out):
        groups[result.task, result.trained_on].append(result)
    scores = []
    for (task, trained_on), results in sorted(groups.items(), key=lambda item: str(item[0])):
        if _repeats(results):
            left_out.append(f"{task}: fine-tuned under several protocols; see the reports")
            continue
        score = _score(task, trained_on, results, convention=convention)
        if score is None:
            left_out.append(f"{task}: every fine-tuning diverged")
        else:
            scores.append(score)
    return StateScores(tuple(scores), tuple(left_out))


def _results(folder: Path, identity: str, left_out: list[str]) -> Iterator[ResultRecord]:
    for path in sorted(folder.glob("*/result.json")):
        try:
            raw = read_json(path)
            if not isinstance(raw, dict) or raw.get("state") != identity:
                continue
            verify_folder(path.parent, remedy="run the fine-tuning again")
            yield parse_record(ResultRecord, raw, where=path.parent.name[:12])
        except (CheckpointError, DataError):
            left_out.append(f"fine-tuning {path.parent.name[:12]}: its record is damaged")


def _repeats(results: Iterable[ResultRecord]) -> bool:
    keys = [(result.learning_rate, result.seed) for result in results]
    return len(keys) > len(set(keys)) or len({result.metric for result in results}) > 1


def _score(
    task: str, trained_on: str | None, results: list[ResultRecord], *, convention: Convention
) -> TaskScore | None:
    metric = results[0].metric
    grid = (grid_score(result, result, metric=metric) for result in results)
    selected = best_per_seed(run for run in grid if run is not None)
    found = estimate([run.test for run in selected], convention=convention)
    if found is None:
        return None
    return TaskScore(
        task=task,
        trained_on=trained_on,
        kind=results[0].kind,
        metric=metric,
        estimate=found,
        learning_rates=tuple(sorted({result.learning_rate for result in results})),
        seeds=tuple(sorted({result.seed for result in results})),
        num_diverged=sum(result.status == "diverged" for result in results),
    )
