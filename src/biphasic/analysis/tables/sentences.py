"""Sentences about comparisons and intervals, without markup."""

from __future__ import annotations

from collections.abc import Mapping

from biphasic.amounts import count, number, probability
from biphasic.analysis.estimate import LEVEL, METHODS, expected_coverage
from biphasic.analysis.scores.table import PERCENT, Scores
from biphasic.analysis.statistics.compare import MOST_ARMS, Family, ModelComparison
from biphasic.analysis.statistics.contrast import FEWEST
from biphasic.analysis.statistics.crossed import are_alike
from biphasic.analysis.statistics.paired import NO_SPREAD
from biphasic.analysis.statistics.variance import SpreadSource
from biphasic.analysis.text import listing, short
from biphasic.records import Convention


def comparison_sentence(
    comparison: ModelComparison, labels: Mapping[str, str] | None = None
) -> str:
    """Describe by how much one model is above another, and how certainly."""
    # `labels` are short display names.
    names = (comparison.first, comparison.second)
    first, second = ((labels or {}).get(name) or short(name) for name in names)
    mean = comparison.difference.mean
    if abs(mean) <= NO_SPREAD:
        size = f"{first} and {second} have the same mean"
    else:
        side = "above" if mean > 0 else "below"
        points = number(abs(mean)) if abs(mean) >= 0.005 else "less than 0.01"
        size = f"{first} is {points} points {side} {second}"
    if comparison.is_of_common_seeds:
        size += f" over the {comparison.unit}s that both have"
    p_value = "" if comparison.p_adjusted is None else probability(comparison.p_adjusted)
    p_value += _correction(comparison) if p_value else ""
    end = ", provisional, as a learning rate is at the end of those tried" * comparison.is_at_end
    details = ", ".join(filter(None, (_interval(comparison), p_value)))
    return f"{size}{f' ({details})' if details else ''}: {_verdict(comparison)}{end}."


def _interval(comparison: ModelComparison) -> str:
    if comparison.interval is None:
        return ""
    low, high = comparison.interval
    if high - low > 2 * PERCENT:
        return "its 95 % interval is wider than the scale"
    over = _sample(comparison, "paired ") or f"{comparison.unit}s not paired"
    return f"95 % interval {number(low)} to {number(high)}, {over}"


def _sample(comparison: ModelComparison, how: str = "") -> str:
    """Describe what a comparison's test is over; empty without pairs."""
    # A test with one pair is that of a zero-shot task, over test examples alone.
    has_pairs = comparison.unit != "example" and comparison.num_pairs > 1
    parts = [count(comparison.num_pairs, f"{how}{comparison.unit}")] if has_pairs else []
    if comparison.num_examples:
        parts.append(comparison.examples_text)
    return listing(parts)


def _correction(comparison: ModelComparison) -> str:
    if comparison.family_size == 1:
        return ""
    planned = "planned " if comparison.is_planned else ""
    return f" corrected for {comparison.family_size:,} {planned}comparisons"


def _verdict(comparison: ModelComparison) -> str:
    if comparison.is_clear:
        return "the difference is clear"
    if comparison.verdict == "undecided":
        if (
            comparison.p_over_seeds is not None
            and comparison.p_over_seeds <= LEVEL
            and comparison.difference.mean
        ):
            return f"clear over {comparison.unit}s, but other test examples could reverse it"
        return "there is no clear difference"
    one = comparison.contrast
    has_alike = one is not None and one.num_examples > 0 and are_alike(one.mean, one.example_error)
    if comparison.num_pairs > 1 or has_alike:
        unit = "test example" if has_alike else comparison.unit
        return f"every {unit} gives the same difference, so its spread is unknown"
    if comparison.num_pairs == 1:
        return "with one pair of scores, it cannot be tested"  # also of zero-shot runs
    return f"with fewer than two {comparison.unit}s of each, it cannot be tested"


def examples_sentence(comparison: ModelComparison) -> str:
    """Describe how much of the error comes from test examples, or why that is unknown."""
    if comparison.contrast is None:
        return f"Unknown over test examples: no {comparison.unit}s in common."
    one = comparison.contrast
    if not one.num_examples:
        return f"Unknown over test examples: {one.missing}."
    examples = f"{number(one.example_error)} over {comparison.examples_text}"
    if not (over_seeds := one.deciding.seed_error):
        return f"Standard error in points: {examples}."
    runs = f"{number(over_seeds)} over {count(comparison.num_pairs, comparison.unit)}"
    return f"Standard errors in points: {runs}, {examples}."


def detectable_sentence(comparison: ModelComparison) -> str:
    """Describe the smallest difference that could have been clear; empty if unknown."""
    if comparison.detectable is None:
        return ""
    correction = _correction(comparison)
    return (
        f"With {_sample(comparison)}, a difference of {number(comparison.detectable)} points would "
        f"be clear four times in five{correction and ','}{correction}."
    )


def method_sentences(family: Family) -> tuple[str, ...]:
    """Describe how the variance over pretraining runs was pooled, or why it was not."""
    if family.is_too_large:
        return (
            f"There are {family.num_arms:,} arms. Pairs of more than {MOST_ARMS} are not tested, "
            "except those that the study planned.",
        )
    blocks = family.blocks
    if not family.scores.is_replicated or len(family.order) < FEWEST:
        return ()
    if blocks is None:
        return (
            "Each pair has its own variance: pooling needs the same runs of all arms, "
            f"{FEWEST} or more.",
        )
    checked = f"(John's test of equal spreads: {probability(blocks.spread_p)})"
    if not blocks.are_spreads_equal:
        return (
            f"The spreads of the arms differ {checked}, so each pair is tested with its own "
            "variance too, and exploratory pairs are also corrected by Holm's procedure.",
        )
    return (
        f"The variance over {blocks.num_runs} runs is pooled over {blocks.num_arms} arms, with "
        f"{blocks.freedom} degrees of freedom {checked}; exploratory pairs are corrected by "
        "Tukey's studentized range.",
    )


def coverage_sentence(convention: Convention, num_seeds: int, unit: str = "seed") -> str:
    """Describe how often intervals of a convention cover the truth."""
    # `num_seeds` is the smallest number of seeds, or of another `unit`, of any interval.
    if num_seeds < 2:
        return f"One {unit} gives no interval."
    covered = f"{100 * expected_coverage(num_seeds, convention=convention):.0f}"
    claim = f"cover the true mean about {covered} times in 100 with {num_seeds} {unit}s"
    short_of = "" if covered == "95" else ", not 95"
    return f"Intervals by convention '{convention}' ({METHODS[convention]}) {claim}{short_of}."


def pretraining_sentence(scores: Scores) -> str:
    """Describe what intervals do not cover."""
    if scores.is_replicated:
        seeds = ", each of them the mean of its fine-tuning seeds" * scores.is_finetuned
        text = (
            f"Each recipe was pretrained {scores.num_pretraining_runs} times or more: intervals "
            f"are over pretraining runs{seeds}."
        )
        if any(model.is_finished_encoder for model in scores.models):
            text += (
                " Of a finished encoder there is one run; its interval is over the fine-tuning "
                "seeds, grouped like those of the runs."
            )
        if fixed := scores.fixed_streams:
            is_one = len(fixed) == 1 and fixed[0] != "masks"
            verb, them = ("is", "it") if is_one else ("are", "them")
            text += (
                f" The {listing(fixed)} {verb} the same in all runs, so no interval covers {them}."
            )
        if scores.shares_finetuning_seeds:
            text += (
                " All runs share their fine-tuning seeds: if a seed favours a recipe, it does so "
                "in every run, and no interval or test covers that."
            )
        return text
    if not scores.replicates:
        covered = "intervals cover fine-tuning seeds, not pretraining variance"
        if not scores.is_finetuned:
            covered = "no interval covers pretraining variance"
        return f"Each model was pretrained once: {covered}."
    runs = sum(len(group) for group in scores.replicates)
    alone = len(scores.distinct) - runs
    rest = f"; {count(alone, 'model')} once" if alone else ""
    return (
        f"{count(len(scores.replicates), 'recipe')} pretrained with several seeds "
        f"({count(runs, 'run')}){rest}. Intervals of single models cover fine-tuning seeds alone."
    )


def selection_sentence(scores: Scores, dataset: str) -> str:
    """Describe what choosing the learning rate per seed adds to scores; empty without a choice."""
    # Both choices use validation scores only; the gain is in test scores.
    gains = selection_gains(scores, dataset)
    if not gains:
        return ""
    mean = sum(gains.values()) / len(gains)
    name, most = max(gains.items(), key=lambda item: abs(item[1]))
    label = scores.short_labels[name]
    choosing = "Choosing the learning rate per seed rather than once for all changes"
    if abs(most) < 0.005:
        return f"{choosing} no mean by 0.01 points or more."
    if len(gains) == 1:
        return f"{choosing} the mean of {label} by {most:+z.2f} points."
    return (
        f"{choosing} the mean by {mean:+z.2f} points on average over {count(len(gains), 'model')}, "
        f"and by {most:+z.2f} at most ({label})."
    )


def selection_gains(scores: Scores, dataset: str) -> dict[str, float]:
    """Return for each model the mean of each seed's best rate minus that of one rate for all."""
    # Gains are in percentage points, over the seeds that both have, if several rates were tried.
    gains: dict[str, float] = {}
    for model in scores.distinct:
        score = scores.get(model.name, dataset)
        if not score.by_seed or not score.at_one_rate:
            continue
        common = sorted(set(score.by_seed) & set(score.at_one_rate))
        # The best rate of one seed is that of all.
        if len(common) > 1 and (score.num_rates or 1) > 1:
            difference = sum(score.by_seed[seed] - score.at_one_rate[seed] for seed in common)
            gains[model.name] = difference / len(common)
    return gains


def source_sentence(source: SpreadSource) -> str:
    """Describe how much one source of spread contributes, or why that is unknown."""
    name = f"{source.name[:1].upper()}{source.name[1:]}"
    if source.deviation is None:
        return f"{name}: unknown ({source.basis})."
    return f"{name}: {number(source.deviation)} points ({source.basis})."
