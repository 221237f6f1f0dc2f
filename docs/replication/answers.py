"""Answers the questions of plan.md from the study's records, as Markdown tables.

Usage: .venv/bin/python docs/replication/answers.py runs/replication [runs/replication-rates]
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.records import StudyRecords, load_study
from biphasic.analysis.scores.selection import best_rate, grid, results_of
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import ModelInfo, Scores
from biphasic.analysis.statistics.contrast import blocks_for, contrast
from biphasic.analysis.statistics.pair_tests import holm
from biphasic.analysis.statistics.replicates import over_pretraining

TASKS = ("sst2", "trec", "uner_en", "scifact")
STEPS = 2400
"""Of all models that were pretrained from scratch to the end."""
Weights = Mapping[str, float]
"""Of models' scores in a sum; a difference has the weights 1 and -1."""


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of scores on one task, against zero.

    Attributes:
        mean: Over pretraining runs, in percentage points.
        p_value: Over runs and test examples, corrected by Holm for the comparisons of its question.
        interval: 95 %, over runs and test examples, not corrected.
        detectable: Difference that is clear four times in five; None if unknown.
        plan_p_value: Like `p_value`, by the plan's own test: with the variance of this comparison
            alone.
    """

    label: str
    task: str
    mean: float
    p_value: float
    interval: tuple[float, float] = (0.0, 0.0)
    detectable: float | None = None
    plan_p_value: float = 1.0

    @property
    def clear(self) -> int:
        """1 if clearly above zero, -1 if clearly below, else 0."""
        return 0 if self.p_value > LEVEL else int(math.copysign(1, self.mean))

    @property
    def row(self) -> str:
        """A row of a table: mean, interval, p value and the difference that could be found."""
        low, high = self.interval
        cells = [self.label, self.task, f"{self.mean:+.2f} ({low:+.2f} to {high:+.2f})"]
        cells += [f"{self.p_value:.3f}", "clear" if self.clear else ""]
        cells.append("–" if self.detectable is None else f"{self.detectable:.1f}")
        cells.append(f"{self.plan_p_value:.3f}")
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Question:
    """A question of the plan.

    Attributes:
        sums: What is compared: label, and weights of models or None if one was not trained.
        answer: Returns 1 if the comparisons support the paper, -1 if they count against it, else 0.
    """

    id: str
    text: str
    sums: Callable[[Models], Iterable[tuple[str, Weights | None]]]
    answer: Callable[[Sequence[Comparison]], int]


class Models:
    """Recipes of a study, by what the plan calls them."""

    def __init__(self, scores: Scores) -> None:
        self._models = scores.models

    def clm(self, size: str = "nano", steps: int = STEPS) -> str | None:
        """Return the name of the recipe of CLM alone."""
        return self._one(lambda m: (m.size, m.clm_steps, m.mlm_steps) == (size, steps, 0))

    def mlm(self, size: str = "nano", steps: int = STEPS, rate: float = 0.4) -> str | None:
        """Return the name of the recipe of MLM alone."""
        wanted = (size, 0, steps, rate, 0)
        return self._one(
            lambda m: (m.size, m.clm_steps, m.mlm_steps, m.mask_rate, m.continued_steps) == wanted
        )

    def both(self, share: float) -> str | None:
        """Return the name of the recipe of CLM for a share of the steps, then MLM."""
        steps = (round(share * STEPS), round((1 - share) * STEPS), 0)
        return self._one(lambda m: (m.clm_steps, m.mlm_steps, m.continued_steps) == steps)

    def continued(self, start: str) -> str | None:
        """Return the name of the recipe of MLM on top of a finished CLM or MLM model."""
        return self._one(lambda m: bool(m.continued_steps) and m.start == start)

    def _one(self, fits: Callable[[ModelInfo], bool]) -> str | None:
        names = [model.name for model in self._models if fits(model)]
        if len(names) > 1:
            raise SystemExit(f"several recipes instead of one: {', '.join(names)}")
        return names[0] if names else None


def difference(first: str | None, second: str | None) -> Weights | None:
    """Return the weights of a difference."""
    return None if first is None or second is None else {first: 1.0, second: -1.0}


def minus(first: Weights | None, second: Weights | None) -> Weights | None:
    """Return the weights of a difference of differences."""
    if first is None or second is None:
        return None
    return {**first, **{name: -weight for name, weight in second.items()}}


def compare(scores: Scores, question: Question) -> list[Comparison]:
    """Return the comparisons of a question; none if a model or score is missing."""
    parts = [(*each, task) for each in question.sums(Models(scores)) for task in TASKS]
    if any(weights is None for _, weights, _ in parts):
        return []
    tested, by_plan = [], []
    for _, weights, task in parts:
        weighted = {(name, task): weight for name, weight in (weights or {}).items()}
        tested.append(contrast(scores, weighted, blocks=blocks_for(scores, weighted)))
        by_plan.append(contrast(scores, weighted, blocks=None))
    known = [one for one in tested if one is not None]
    if len(known) < len(tested):
        return []
    corrected, of_plan = (
        holm([1.0 if one is None or one.p_value is None else one.p_value for one in tests])
        for tests in (tested, by_plan)
    )
    return [
        Comparison(
            label,
            task,
            one.mean,
            float(one.p_corrected(p_value)),
            one.interval,
            one.detectable(len(known)),
            float(plan_p_value),
        )
        for (label, _, task), one, p_value, plan_p_value in zip(
            parts, known, corrected, of_plan, strict=True
        )
    ]


def clear_tasks(comparisons: Iterable[Comparison], sign: int, but: Sequence[str] = ()) -> int:
    """Count the tasks with a difference that is clear in one direction."""
    return len({one.task for one in comparisons if one.clear == sign and one.task not in but})


def two_clear_none_against(comparisons: Sequence[Comparison], but: Sequence[str] = ()) -> int:
    """Return 1 if it is clear on 2 tasks and nowhere clearly against, -1 if against on 2."""
    ahead, behind = (clear_tasks(comparisons, sign) for sign in (1, -1))
    if ahead >= 2 and clear_tasks(comparisons, -1, but) == 0:
        return 1
    return -1 if behind >= 2 else 0


def ahead_early(comparisons: Sequence[Comparison]) -> int:
    """Return 1 if CLM is ahead on 2 tasks on which the gap shrinks, -1 if MLM is ahead on 2."""
    early = [one for one in comparisons if one.label.startswith("CLM")]
    shrinks = {one.task for one in comparisons if one not in early and one.clear == 1}
    ahead = {one.task for one in early if one.clear == 1}
    if len(ahead) >= 2 and ahead <= shrinks:
        return 1
    return -1 if clear_tasks(early, -1) >= 2 else 0


def rates_disagree(comparisons: Sequence[Comparison]) -> int:
    """Return 1 if two rates are clearly apart in opposite ways, -1 if one is best on 2 tasks."""
    ways = {(one.label, one.clear) for one in comparisons if one.clear}
    if any((label, -way) in ways for label, way in ways):
        return 1
    best = [rate for rate in RATES for task in TASKS if _is_best(comparisons, rate, task)]
    return -1 if any(best.count(rate) >= 2 for rate in best) else 0


def _is_best(comparisons: Sequence[Comparison], rate: float, task: str) -> bool:
    signs = {f"{100 * rate:.0f} % -": 1, f"- {100 * rate:.0f} %": -1}
    pairs = [
        one.clear * sign
        for one in comparisons
        for text, sign in signs.items()
        if one.task == task and text in one.label
    ]
    return bool(pairs) and all(clear == 1 for clear in pairs)


def size_matters(comparisons: Sequence[Comparison]) -> int:
    """Return whether the gap grows with size on SC or shrinks on IR, as in the paper."""
    ways = {one.clear * (-1 if one.task == "scifact" else 1) for one in comparisons
            if one.task != "uner_en"} - {0}  # fmt: skip
    return ways.pop() if len(ways) == 1 else 0


RATES = (0.2, 0.3, 0.4, 0.5)
QUESTIONS = (
    Question(
        "Q1", "Does CLM then MLM beat MLM alone at equal tokens?",
        lambda m: [
            (f"{share:.0f} % CLM - MLM", difference(m.both(share / 100), m.mlm()))
            for share in (25, 50)
        ],
        two_clear_none_against,
    ),
    Question(
        "Q2", "Does MLM alone beat CLM alone?",
        lambda m: [("MLM - CLM", difference(m.mlm(), m.clm()))],
        lambda comparisons: two_clear_none_against(comparisons, but=["uner_en"]),
    ),
    Question(
        "Q3", "Is CLM ahead early?",
        lambda m: [
            ("CLM - MLM, step 300", difference(m.clm(steps=300), m.mlm(steps=300))),
            ("gap at 300 - gap at 2,400", minus(
                difference(m.clm(steps=300), m.mlm(steps=300)), difference(m.clm(), m.mlm())
            )),
        ],
        ahead_early,
    ),
    Question(
        "Q4", "Does MLM on top of a finished CLM model beat MLM on top of a finished MLM model?",
        lambda m: [("from CLM - from MLM", difference(m.continued("CLM"), m.continued("MLM")))],
        two_clear_none_against,
    ),
    Question(
        "Q5", "Is there one best masking rate?",
        lambda m: [
            (f"{100 * first:.0f} % - {100 * second:.0f} %",
             difference(m.mlm(rate=first), m.mlm(rate=second)))
            for first, second in combinations(RATES, 2)
        ],
        rates_disagree,
    ),
    Question(
        "Q7", "Does size change the answer to Q2?",
        lambda m: [("nano's gap - pico's gap", minus(
            difference(m.mlm(), m.clm()), difference(m.mlm("pico"), m.clm("pico"))
        ))],
        size_matters,
    ),
)  # fmt: skip
ANSWERS = {1: "supports the paper", 0: "undecided", -1: "counts against the paper"}


def tables(scores: Scores) -> Iterable[str]:
    """Yield the lines of a section for each question."""
    for question in QUESTIONS:
        comparisons = compare(scores, question)
        yield from (f"**{question.id}. {question.text}** {_answer(question, comparisons)}.", "")
        if not comparisons:
            continue
        yield (
            "| Difference | Task | Points (95 % interval) | p, corrected | | Detectable "
            "| p by the plan's test |"
        )
        yield "|---|---|---|---|---|---|---|"
        yield from (one.row for one in comparisons)
        yield ""


def _answer(question: Question, comparisons: Sequence[Comparison]) -> str:
    """State the answer, and that by the plan's own test."""
    if not comparisons:
        return "Not computed yet"
    by_plan = [replace(one, p_value=one.plan_p_value) for one in comparisons]
    answer, of_plan = (ANSWERS[question.answer(tests)] for tests in (comparisons, by_plan))
    also = "too" if answer == of_plan else f"{of_plan}"
    return f"{answer.capitalize()}; by the plan's own test, {also}"


@dataclass(frozen=True)
class Stability:
    """How much fine-tuning on a task depends on the learning rate and the seed.

    Attributes:
        rate_range: Range of the mean test score over learning rates, in percentage points, averaged
            over pretraining runs; CLM, then MLM.
        seed_spread: Standard deviation over seeds at the learning rate with the best validation
            score, likewise.
    """

    task: str
    rate_range: tuple[float, float]
    seed_spread: tuple[float, float]

    @property
    def smaller(self) -> int:
        """1 if both are smaller after CLM, -1 if both are larger, else 0."""
        signs = {(clm < mlm) - (clm > mlm) for clm, mlm in (self.rate_range, self.seed_spread)}
        return signs.pop() if len(signs) == 1 else 0


def stabilities(records: StudyRecords) -> list[Stability]:
    """Compare CLM with MLM on each task of a study with several learning rates and seeds."""
    if any(outcome.status == "missing" for outcome in records.outcomes):
        raise SystemExit(f"{records.study.name}: some fine-tunings are missing")
    found = []
    for task in records.tasks:
        spreads: dict[str, list[tuple[float, float]]] = {"CLM": [], "MLM": []}
        for arm in records.arms:
            runs = grid(results_of(records, arm.name, task.name), metric=task.metric)
            means = [
                100 * statistics.fmean(run.test for run in runs if run.rate == rate)
                for rate in {run.rate for run in runs}
            ]
            seeds = [100 * run.test for run in best_rate(runs)]
            spread = max(means) - min(means), statistics.stdev(seeds)
            spreads[arm.record.family].append(spread)
        clm, mlm = (
            [statistics.fmean(values) for values in zip(*spreads[family], strict=True)]
            for family in ("CLM", "MLM")
        )
        found.append(Stability(task.name, (clm[0], mlm[0]), (clm[1], mlm[1])))
    return found


def stability_table(found: Sequence[Stability]) -> Iterable[str]:
    """Yield the lines of the section for Q6."""
    ways = [one.smaller for one in found]
    answer = ANSWERS[next((way for way in (1, -1) if ways.count(way) >= 2), 0)]
    question = "Does fine-tuning after CLM depend less on the learning rate and the seed?"
    yield from (f"**Q6. {question}** {answer.capitalize()}.", "")
    yield "| Task | Range over rates: CLM | MLM | Deviation over seeds: CLM | MLM |"
    yield "|---|---|---|---|---|"
    for one in found:
        values = " | ".join(f"{value:.2f}" for value in (*one.rate_range, *one.seed_spread))
        yield f"| {one.task} | {values} |"


def main(study: Path, rates: Path | None = None) -> None:
    """Print the answers of a study, and of its study of fine-tuning rates."""
    scores = over_pretraining(study_scores(load_study(study, study.parent / "store")))
    lines = list(tables(scores))
    if rates is not None:
        lines += stability_table(stabilities(load_study(rates, rates.parent / "store")))
    print("\n".join(lines))  # noqa: T201 - a script


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        sys.exit(__doc__)
    main(*(Path(folder).resolve() for folder in sys.argv[1:]))
