"""The page's facts, the rows of its tables, problems and provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from biphasic.amounts import amount, count, duration, rate
from biphasic.analysis.estimate import GridScore, best_per_seed
from biphasic.analysis.records import ArmData, Problem, StudyRecords
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import Family
from biphasic.analysis.statistics.variance import variance_split
from biphasic.analysis.tables.sentences import method_sentence, source_sentence
from biphasic.analysis.tables.summary import finetunings, trained_segments, zero_shot_runs
from biphasic.analysis.text import csv_text
from biphasic.records import ZERO_SHOT_SEED, ResultRecord

_KINDS = {
    "missing": "Missing",
    "diverged": "Diverged",
    "damaged": "Damaged",
    "mixed": "Inconsistent",
    "code": "Made by other code",
}
_MOST_STATES = 20
# Maximum comparisons of one dataset, the closest first; the others are counted.
MOST_COMPARISONS = 24
_COMPARISON_COLUMNS = (
    "kind", "dataset", "first", "second", "difference", "low", "high", "p_value", "p_corrected",
    "num_comparisons", "verdict", "detectable", "variance", "unit", "num_pairs", "num_examples",
    "num_clusters",
)  # fmt: skip


def facts(records: StudyRecords) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page."""
    segments = [segment for segment, _ in trained_segments(records)]
    results = finetunings(records)
    seconds = sum(part.seconds for part in (*segments, *results, *zero_shot_runs(records)))
    numbers = [_counted(records.arms, "arm"), _counted(records.tasks, "task")]
    if is_finetuned(records):
        seeds = _counted(records.study.seeds, "fine-tuning seed")
        numbers += [seeds, _counted(results, "fine-tuning")]
    if segments:
        numbers.append((amount(sum(part.tokens for part in segments)), "tokens trained"))
    return [*numbers, (duration(seconds), "compute time")]


def is_finetuned(records: StudyRecords) -> bool:
    """Return whether models are fine-tuned for any task."""
    return not all(task.is_zero_shot for task in records.tasks)


def _counted(things: Sequence[object], noun: str) -> tuple[str, str]:
    number, _, plural = count(len(things), noun).partition(" ")
    return number, plural


def gaps(records: StudyRecords, arm: str, dataset: str) -> str:
    """Return the runs that a score lacks."""
    scores = study_scores(records)
    members = scores.members(scores.dataset(dataset))
    runs = [run for one in members for run in records.by_cell.get((arm, one.name), ())]
    all_ended = runs and all(run in records.results for run in runs)
    why = "runs diverged" if all_ended else "runs missing"
    expected = len(records.seeds_of(arm, dataset))
    if not expected:
        return why
    return f"{len(records.selected[arm, dataset])} of {count(expected, 'seed')}, {why}"


def common_peak(records: StudyRecords) -> float | None:
    """Return the peak rate of all arms without a rate of their own; None if there are none."""
    recipe = records.study.provenance.get("recipe")
    schedule = recipe.get("learning_rate") if isinstance(recipe, dict) else None
    peak = schedule.get("peak") if isinstance(schedule, dict) else None
    has_it = any(arm.record.peak == peak and not arm.record.is_tuned for arm in records.arms)
    return peak if isinstance(peak, float) and has_it else None


def peak_text(arm: ArmData, common: float | None) -> str:
    """Describe the peak rates of an arm's pretraining, such as `1e-2, tuned (5 trials)`."""
    record = arm.record
    if record.peak is None:
        return "not recorded" if record.steps else "–"
    if record.is_tuned:
        first = _tuned_text(record.peak, record.num_trials)
    else:
        first = f"{rate(record.peak)}, {'the common rate' if record.peak == common else 'its own'}"
    if record.last_peak is None:
        return first
    return f"{first}; last {_tuned_text(record.last_peak, record.last_trials)}"


def _tuned_text(peak: float, num_trials: int | None) -> str:
    return f"{rate(peak)}, tuned" + (f" ({count(num_trials, 'trial')})" if num_trials else "")


def rate_rows(records: StudyRecords) -> Iterator[tuple[ArmData, list[list[str]]]]:
    """Yield each arm with its chosen rates for each tuned task, as `2e-4 ×3`."""
    tuned = [task.name for task in records.tasks if not task.is_zero_shot]
    for arm in records.arms:
        selected = (records.selected[arm.name, task] for task in tuned)
        counts = [Counter(result.learning_rate for result in runs) for runs in selected]
        yield arm, [[f"{rate(value)} ×{n}" for value, n in sorted(of.items())] for of in counts]


def edge_sentences(records: StudyRecords) -> Iterator[str]:
    """Yield each task on which most arms choose the end of the grid of learning rates."""
    rates = sorted(records.study.learning_rates)
    for task in records.tasks if len(rates) > 1 else ():
        grids = [records.grids[arm.name, task.name] for arm in records.arms]
        choices = [(one.rate, _is_tie(one, grid)) for grid in grids for one in best_per_seed(grid)]
        for end, beyond, most in ((rates[-1], "higher", "highest"), (rates[0], "lower", "lowest")):
            ties = [is_tie for value, is_tie in choices if value == end]  # zero-shot runs have 0
            if 2 * (len(ties) - sum(ties)) > len(choices):
                level = f" ({sum(ties):,} level with another one)" if any(ties) else ""
                yield (
                    f"On {task.name}, {len(ties):,} of {count(len(choices), 'choice')} of a "
                    f"learning rate are the {most} one tried, {rate(end)}{level}: {beyond} ones "
                    "may give other scores and another order of arms."
                )


def _is_tie(best: GridScore[ResultRecord], grid: Iterable[GridScore[ResultRecord]]) -> bool:
    """Return whether other rates have the same validation score, so the choice says nothing."""
    of_seed = [one for one in grid if one.seed == best.seed]
    return sum(one.validation == best.validation for one in of_seed) > 1


def comparison_notes(scores: Scores, family: Family) -> Iterator[str]:
    """Yield notes on the comparisons of a dataset's best arm with the others."""
    if rest := family.with_best[MOST_COMPARISONS:]:
        clear = sum(one.is_clear for one in rest)
        yield f"Clearly behind, of {count(len(rest), 'further arm')}: {clear:,}."
    yield from filter(None, (method_sentence(family),))
    yield "Sources of the spread of scores, as standard deviations."
    yield from map(source_sentence, variance_split(scores, family.dataset.name))


def comparisons_csv(families: Iterable[Family], names: Mapping[str, str]) -> str:
    """Write the planned comparisons, and the exploratory ones of each dataset's best arm."""
    # An exploratory one that is also planned is written once, as planned. `names` are those of
    # the models in files.
    rows = []
    for family in families:
        others = (one for one in family.with_best if not one.is_planned)
        for one in (*family.of_plan, *others):
            low, high = one.interval or (None, None)
            rows.append((
                "planned" if one.is_planned else "exploratory", one.dataset,
                names[one.first], names[one.second],
                one.difference.mean, low, high, one.p_value, one.p_adjusted,
                one.family_size, one.verdict, one.detectable,
                "pooled" if one.uses_blocks else "pair", one.unit, one.num_pairs, one.num_examples,
                one.num_clusters,
            ))  # fmt: skip
    return csv_text(_COMPARISON_COLUMNS, rows)


def problem_groups(problems: Sequence[Problem]) -> dict[str, list[str]]:
    """Return the texts of problems by the title of their kind; unknown kinds keep their name."""
    texts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for problem in problems:
        texts.setdefault(problem.kind, []).append(problem.text)
    return {_KINDS.get(kind, kind.capitalize()): found for kind, found in texts.items() if found}


def problems_csv(problems: Sequence[Problem]) -> str:
    """Write every problem with its kind."""
    return csv_text(("kind", "text"), ((problem.kind, problem.text) for problem in problems))


def provenance(records: StudyRecords) -> list[tuple[str, list[tuple[str, str]]]]:
    """Flatten provenance into groups of names and values; scalars at the top come first."""
    study = records.study
    seeds = ", ".join(map(str, study.seeds))
    if {run.seed for run in study.runs} - {ZERO_SHOT_SEED, *study.seeds}:
        seeds += " (of the first pretraining run; each has its own)"
    general = [("name", study.name), ("statistics", f"convention '{study.convention}'")]
    if is_finetuned(records):
        rates = ", ".join(rate(value) for value in study.learning_rates)
        general += [("learning rates", rates), ("fine-tuning seeds", seeds)]
    general += [
        (f"{arm.label}: attention in fine-tuning", arm.record.attention)
        for arm in records.arms
        if arm.record.attention
    ]
    groups = []
    for name, value in study.provenance.items():
        if isinstance(value, dict):
            groups.append((_readable(name), list(_flatten(value))))
        else:
            general.append((_readable(name), _value(value)))
    if len(records.arms) <= _MOST_STATES:
        general += [(f"{arm.label}: state", arm.record.state) for arm in records.arms]
    return [("study", general), *groups]


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        path = f"{prefix}{_readable(str(name))}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{path} · ")
        else:
            yield path, _value(value)


def _value(value: Any) -> str:
    if isinstance(value, dict) and value:
        return "; ".join(f"{path} {text}" for path, text in _flatten(value))
    if isinstance(value, list | tuple):
        are_groups = len(value) > 1 and any(isinstance(item, dict) for item in value)
        return ", ".join(f"({_value(item)})" if are_groups else _value(item) for item in value)
    if value in (None, "", {}):
        return "–"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _readable(name: str) -> str:
    return name.replace("_", " ")
