"""Scores of a state, from the fine-tunings in its store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult

from biphasic.analysis.estimate import Estimate, estimate
from biphasic.analysis.scores.selection import best_per_seed, grid_score
from biphasic.errors import CheckpointError, DataError
from biphasic.export.cards.file import eval_result
from biphasic.files import read_json, verify_folder
from biphasic.records import ZERO_SHOT, ResultRecord, parse_record


@dataclass(frozen=True)
class TaskScore:
    """Score of a state on one task.

    Attributes:
        trained_on: The task trained on, if it is another one.
        kind: Kind of task, such as `sc`; `zs` is scored without fine-tuning.
        metric: The primary metric.
        estimate: Mean over seeds with its 95 % interval.
        learning_rates: Learning rates tried.
        seeds: Seeds tried.
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
        """The mean on test in the hub's format, with a note on what it averages."""
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


def scores_of_state(
    finetunes: Path, identity: str
) -> tuple[tuple[TaskScore, ...], tuple[str, ...]]:
    """Summarize the fine-tunings of a state in a store, with standard intervals.

    A task fine-tuned under several protocols has several results for one rate and seed. Records do
    not show which belong together, so this task is omitted.

    Returns:
        The scores, and what was omitted, one sentence each.
    """
    groups: dict[tuple[str, str | None], list[ResultRecord]] = defaultdict(list)
    left_out: list[str] = []
    for result in _results(finetunes, identity, left_out):
        groups[result.task, result.trained_on].append(result)
    scores = []
    for (task, trained_on), results in sorted(groups.items(), key=lambda item: str(item[0])):
        keys = {(result.learning_rate, result.seed) for result in results}
        if len(keys) < len(results) or len({result.metric for result in results}) > 1:
            left_out.append(f"{task}: fine-tuned under several protocols; see the reports")
            continue
        score = _score(task, trained_on, results)
        if score is None:
            left_out.append(f"{task}: every fine-tuning diverged")
        else:
            scores.append(score)
    return tuple(scores), tuple(left_out)


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


def _score(task: str, trained_on: str | None, results: list[ResultRecord]) -> TaskScore | None:
    metric = results[0].metric
    grid = (grid_score(result, result, metric=metric) for result in results)
    selected = best_per_seed(run for run in grid if run is not None)
    score = estimate([run.test for run in selected], convention="standard")
    if score is None:
        return None
    return TaskScore(
        task=task,
        trained_on=trained_on,
        kind=results[0].kind,
        metric=metric,
        estimate=score,
        learning_rates=tuple(sorted({result.learning_rate for result in results})),
        seeds=tuple(sorted({result.seed for result in results})),
        num_diverged=sum(result.status == "diverged" for result in results),
    )
