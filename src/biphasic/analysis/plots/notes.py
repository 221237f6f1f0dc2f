"""Sentences that stand under figures and tables: what their intervals are, and are not."""

from __future__ import annotations

from biphasic.analysis.estimate import expected_coverage
from biphasic.analysis.score_table import Scores


def interval_note(scores: Scores) -> str:
    """Say what bars and numbers in brackets are, and what they leave out."""
    numbers = sorted(
        {
            score.estimate.num_seeds
            for score in scores.cells.values()
            if score.estimate is not None and score.estimate.half_width is not None
        }
    )
    if not numbers:
        return "Means without intervals: no score rests on two seeds or more."
    seeds = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    how = "Student's t"
    if scores.convention == "paper":
        share = round(100 * expected_coverage(numbers[0], convention="paper"))
        unit = "runs" if scores.num_pretraining_runs > 1 else "seeds"
        how = f"1.96 standard errors, which with {numbers[0]} {unit} cover about {share} %"
    if scores.num_pretraining_runs > 1:
        return (
            f"Intervals: 95 % over {seeds} pretraining runs ({how}), each of them the mean of its "
            "fine-tuning seeds."
        )
    return (
        f"Intervals: 95 % over {seeds} fine-tuning seeds ({how}). One pretraining run per model: "
        "they do not cover the luck of pretraining."
    )
