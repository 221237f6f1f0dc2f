"""All figures of scores as specifications, in the order of the paper.

A specification (`Spec`) chooses models, and says where they are and what a line is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import pandas as pd
from pandas import DataFrame

from biphasic.amounts import amount, percent, round_ticks, superscript
from biphasic.analysis.figures.chart import (
    WIDE,
    Chart,
    Frame,
    LackingError,
    Skipped,
    Spec,
    Ticks,
    chart_of,
    ticks_at,
    ticks_of,
    with_reference,
)
from biphasic.analysis.scores.reference import alike_datasets
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.words import interval_note
from biphasic.palette import (
    LINES,
    MARKERS,
    distinct_styles,
    hollow,
    objective_styles,
    ordered_styles,
)

_REFERENCE_RATE = 0.4  # the masking rate of most of the reference study's comparisons
_QUARTERS = (0.0, 25.0, 50.0, 75.0, 100.0)
_MIXED = "CLM+MLM"
_PATH = ["size", "objective", "mask_rate", "first_steps", "optimizer"]
_UNKNOWN = ("mask_rate", "flops", "labels", "parameters")  # NaN where they are unknown


def models_of(scores: Scores) -> Frame:
    """Return a row for each model with its factors."""
    columns = [field.name for field in fields(ModelInfo)]
    m: Frame = DataFrame([vars(model) for model in scores.models], columns=columns)
    m = m.astype(dict.fromkeys(_UNKNOWN, float))
    own = m["identity"].where(m["identity"] != "", m["name"])
    shares = (100 * m["clm_steps"] / m["total_steps"].where(m["total_steps"] > 0)).fillna(0.0)
    m = m.assign(
        own=own,
        start=m["start"].fillna(""),
        is_distinct=~own.duplicated(),
        share=shares,
        is_untrained=[model.is_untrained for model in scores.models],
        recipe=[*zip(m["objective"], map(round, shares), strict=True)],
        first_steps=m["clm_steps"].where(m["mlm_steps"] > 0, 0),
        masked=100 * m["mask_rate"],
        model=[scores.written_names[name] for name in m["name"]],
    )
    is_first = m["is_distinct"] & m["is_final"] & (m["continued_steps"] == 0)
    return m.assign(is_finished=is_first & (m["objective"] != "none"))


def values_of(scores: Scores, datasets: Iterable[DatasetInfo]) -> Frame:
    """Return a row for each model and dataset with a score."""
    rows = [
        (dataset.name, _heading(dataset), f"{dataset.metric_facts.title}, %", _task(dataset),
         dataset.num_train, model.name, found.mean, *found.ends)
        for dataset in datasets
        for model in scores.models
        if (found := scores.get(model.name, dataset.name).estimate)
    ]  # fmt: skip
    columns = ["panel", "heading", "unit", "task", "num_train", "name", "mean", "low", "high"]
    return DataFrame(rows, columns=columns)


def _heading(dataset: DatasetInfo) -> str:
    facts = dataset.facts
    is_named = dataset.is_average and facts.title != dataset.task
    return facts.title.capitalize() if is_named else dataset.name


def shown_datasets(scores: Scores, *, is_every: bool = False) -> tuple[DatasetInfo, ...]:
    """Return the datasets with a panel."""
    # Unless `is_every`, a category's average replaces its datasets, except if they have different
    # metrics.
    averaged = {
        dataset.task for dataset in scores.averages if dataset.metric != "mixed" and not is_every
    }
    return tuple(one for one in scores.datasets if one.is_average == (one.task in averaged))


def _order(m: Frame) -> list[str]:
    """Return sizes in ascending order; those without a number of parameters come last."""
    return [*m.drop_duplicates("size").sort_values("parameters", kind="stable")["size"]]


def _rate(m: Frame) -> float | None:
    """Return the masking rate for comparisons of objectives; None if no model masks."""
    # The reference study's 40 % if a model has it, else the most common (ties go to the higher).
    rates = Counter(m["mask_rate"].dropna())
    if _REFERENCE_RATE in rates:
        return _REFERENCE_RATE
    return max(rates, key=lambda rate: (rates[rate], rate), default=None)


def _at_rate(m: Frame, rate: Any) -> Frame:
    """Return the models with a masking rate, and those that do not mask."""
    return m[m["mask_rate"].isna() | (m["mask_rate"] == rate)]


def _varied(m: Frame, by: list[str], factor: str) -> Frame:
    """Return the models of the most common budget that differ in a factor alone."""
    m = m[m.groupby([*by, "total_steps"], dropna=False)[factor].transform("nunique") > 1]
    counts = Counter(m["total_steps"])
    budget = max(counts, key=lambda steps: (counts[steps], steps), default=0)
    return m[m["total_steps"] == budget]


def _by_size(m: Frame) -> Frame:
    m = m[m["is_finished"] & (m["size"] != "")]
    if m["size"].nunique() < 2:
        raise LackingError("needs two model sizes or more")
    m = _varied(_at_rate(m, _rate(m)), ["recipe", "optimizer"], "size")
    if m.empty:
        raise LackingError("needs an objective at two model sizes with equal training steps")
    order = _order(m)
    return m.assign(place=[float(order.index(size)) for size in m["size"]])


def _by_mask_rate(m: Frame) -> Frame:
    m = m[m["is_finished"] & (m["objective"] == "MLM") & m["mask_rate"].notna()]
    m = _varied(m, ["size", "optimizer"], "mask_rate")
    if m.empty:
        raise LackingError("needs MLM at two masking rates, with one size and budget")
    order = _order(m)
    rank = m["size"].map(order.index)
    return m.assign(rank=rank, key=m["size"].where(m["size"] != "", "MLM"))


def with_shares(m: Frame) -> Frame:
    """Return the models of each size, budget and optimizer with CLM then MLM and another share."""
    m = m[m["is_finished"] & m["objective"].isin(("MLM", "CLM", _MIXED))]
    rates = {size: _rate(of) for size, of in m[m["objective"] == _MIXED].groupby("size")}
    m = _at_rate(m, m["size"].map(rates))
    m = m.assign(is_mixed=m["objective"] == _MIXED, rounded=m["share"].round(3))
    groups = m.groupby(["size", "total_steps", "optimizer"])
    return m[groups["is_mixed"].transform("any") & (groups["rounded"].transform("nunique") > 1)]


def _by_share(m: Frame) -> Frame:
    m = with_shares(m)
    if m.empty:
        raise LackingError(
            "needs CLM then MLM and another share of CLM, at one size, budget and masking rate"
        )
    m = m[m["size"] == _order(m)[0]]
    return m.assign(rank=m["total_steps"], key=m["total_steps"].map("{:,} steps".format))


def _by_rate_and_clm(m: Frame) -> Frame:
    m = m[m["is_finished"] & m["mask_rate"].notna()]
    m = m.assign(by=", by " + m["optimizer"] if m["optimizer"].nunique() > 1 else "")
    found = []
    for (_, budget, _), group in m.groupby(["size", "total_steps", "optimizer"], sort=False):
        alone, mixed = (group[group["objective"] == name] for name in ("MLM", _MIXED))
        for clm_steps, after in mixed.groupby("clm_steps", sort=False):
            number = len({*alone["mask_rate"]} & {*after["mask_rate"]})
            if number > 1:
                found.append((number, budget, clm_steps, pd.concat([alone, after])))
    if not found:
        raise LackingError(
            "needs MLM and CLM then MLM of one size and budget, both at two masking rates"
        )
    return max(found, key=lambda each: each[:3])[-1]


def _courses(m: Frame) -> Frame:
    """Return the intermediate states of models, if there are several of one, and their ends."""
    states = m[~m["is_final"] & (m["objective"] != "none")]
    numbers = states.groupby(_PATH, dropna=False)["total_steps"].transform("nunique")
    states = states[numbers > 1].drop_duplicates([*_PATH, "own"])  # of several names, the first
    if states.empty:
        raise LackingError("needs a model scored at two intermediate steps or more")
    last = states.groupby(_PATH, dropna=False, sort=False)["total_steps"].max()
    ends = m[m["is_finished"]].merge(last.rename("last").reset_index(), on=_PATH)
    ends = ends[ends["total_steps"] > ends["last"]].sort_values("total_steps", kind="stable")
    return pd.concat([states, ends.drop_duplicates(_PATH)])


def _by_flops(m: Frame) -> Frame:
    known = m[m["flops"] > 0]
    try:
        return _courses(known)
    except LackingError:
        chosen = _at_rate(known[known["is_finished"]], _rate(m[m["is_finished"]]))
        if chosen["flops"].nunique() < 2:
            raise LackingError(
                "needs two models trained from scratch whose FLOPs are known and differ"
            ) from None
        return chosen


def _by_labels(m: Frame) -> Frame:
    m = m[m["is_distinct"] & m["is_final"] & (m["labels"] > 0)]
    if m["labels"].nunique() < 2:
        raise LackingError("needs models that predicted different numbers of tokens")
    return m


def _continued(m: Frame) -> Frame:
    """Return the continued models of each starting model, which comes first."""
    begun = [", ".join(filter(None, pair)) for pair in zip(m["start"], m["attention"], strict=True)]
    names, m = dict(zip(m["name"], m["label"], strict=True)), m.assign(begun=begun)
    continued = m[m["is_final"] & (m["continued_steps"] > 0)]
    if continued.empty:
        raise LackingError("no finished model was continued")
    order, ways = _order(m), []
    for (size, start, optimizer), way in continued.groupby(
        ["size", "begun", "optimizer"], sort=False
    ):
        whole = pd.concat([_starting(way.iloc[0], m), way])
        ways.append(whole.assign(
            size=size, begun=start, optimizer=optimizer, key=names.get(start, start),
            rank=order.index(size),
        ))  # fmt: skip
    ways = sorted(ways, key=lambda way: way["rank"].iloc[0])
    return pd.concat([way.assign(way=float(place)) for place, way in enumerate(ways)])


def _starting(example: Any, m: Frame) -> Frame:
    """Return the model that a continued one started from, if the table has it."""
    m = m[m["is_final"] & (m["continued_steps"] == 0)]
    m = m[(m["size"] == example["size"]) & (m["attention"] == example["attention"])]
    first_steps = example["total_steps"] - example["continued_steps"]
    is_like = (m["objective"] == example["begun"]) & (m["total_steps"] == first_steps)
    is_like &= m["optimizer"] == example["optimizer"]
    if example["objective"] == "MLM" and pd.notna(example["mask_rate"]):
        is_like &= m["mask_rate"] == example["mask_rate"]
    start = example["start"] or "\0"
    return m[is_like | (m["start"] == start) | (m["name"] == start)].head(1)


def _at_one_length(m: Frame) -> Frame:
    m = _continued(m)
    lengths = m[m["continued_steps"] > 0].drop_duplicates(["way", "continued_steps"])
    shared = [n for n, times in Counter(lengths["continued_steps"]).items() if times > 1]
    if not shared:
        raise LackingError(
            "needs two starting models that were continued for the same number of steps"
        )
    m = m[m["way"].isin(lengths[lengths["continued_steps"] == max(shared)]["way"])]
    m = m[m["continued_steps"].isin((0, max(shared)))]
    return _begun(m.assign(way=m["way"].rank(method="dense") - 1))


def _by_length(m: Frame) -> Frame:
    m = _continued(m)
    lengths = m["continued_steps"].where(m["continued_steps"] > 0).groupby(m["way"])
    m = m[lengths.transform("nunique") > 1]
    if m.empty:
        raise LackingError("needs a model that was continued for two different numbers of steps")
    return _begun(m)


def _begun(m: Frame) -> Frame:
    """Name how continued models began, with their size if there are several."""
    if m["size"].nunique() > 1:
        m = m.assign(key=m["size"] + " " + m["key"])
    return m.assign(key=_with_optimizer(m, m["key"]))


def _with_optimizer(m: Frame, labels: Any) -> Any:
    return labels + ", " + m["optimizer"] if m["optimizer"].nunique() > 1 else labels


def _ordered(m: Frame, _: str) -> Frame:
    """Style lines from light to dark in the order of their ranks."""
    m = m.sort_values(["rank", "optimizer"], kind="stable")
    return _styled(m.assign(series=_with_optimizer(m, m["key"])), ordered_styles)


def _styled(m: Frame, styles: Callable[[Any], Any]) -> Frame:
    return m.assign(style=m["series"].map(styles([*m["series"].unique()])))


def _by_recipe(m: Frame, x: str) -> Frame:
    """Make a line per recipe and optimizer, and per size if a size has several positions."""
    order = _order(m)
    several = m.groupby(["recipe", "size", "optimizer"])[x].nunique().max() > 1
    has_sizes, has_optimizers = len(order) > 1 and bool(several), m["optimizer"].nunique() > 1
    ways = ["size"] * has_sizes + ["optimizer"] * has_optimizers
    looks = recipe_looks(m["recipe"].unique())
    m = m.assign(way=[*zip(*(m[name] for name in ways), strict=True)] if ways else [()] * len(m))
    by_size = m.iloc[sorted(range(len(m)), key=lambda row: order.index(m["size"].iloc[row]))]
    place = {way: index for index, way in enumerate(by_size["way"].unique())}
    recipes, rows = [*looks], []
    for recipe, way in zip(m["recipe"], m["way"], strict=True):
        (label, style), index = looks[recipe], place[way]
        style = replace(style, line=LINES[index % len(LINES)]) if has_sizes else style
        style = replace(style, marker=MARKERS[index % len(MARKERS)]) if has_optimizers else style
        rows.append((recipes.index(recipe), index, ", ".join((label, *way)), style))
    names = ["of_recipe", "of_way", "series", "style"]
    m = m.assign(**dict(zip(names, zip(*rows, strict=True), strict=True)))
    return m.sort_values(["of_recipe", "of_way"], kind="stable")


Recipe = tuple[str, int]  # objective, and the share of CLM steps in percent


def recipe_looks(recipes: Iterable[Recipe]) -> dict[Recipe, tuple[str, Any]]:
    """Return label and style of each recipe; labels of mixtures include their share of CLM."""
    recipes = [*recipes]
    styles = objective_styles(objective for objective, _ in recipes)
    # An objective may end with how the models attend: `CLM+MLM, causal`.
    mixed = [key for key in recipes if key[0].partition(",")[0] == _MIXED]
    # The first mixture has the style of its objective; further ones come after all objectives.
    further = distinct_styles([*(name for name in styles if name != "none"), *mixed[1:]])
    return {
        key: (f"{key[0]}, {key[1]} % CLM", further.get(key, styles[key[0]]))
        if key in mixed
        else (key[0], styles[key[0]])
        for key in recipes
    }


def _by_clm_first(m: Frame, _: str) -> Frame:
    labels = [
        f"CLM {short_steps(one.clm_steps)}, then MLM {short_steps(one.total_steps - one.clm_steps)}"
        if one.objective == _MIXED else one.objective
        for one in m.itertuples()
    ]  # fmt: skip
    return m.assign(series=labels, style=m["objective"].map(objective_styles(())))


def _by_path(m: Frame, _: str) -> Frame:
    """Name the settings in which paths of training differ; a finished model has an outline."""
    has_sizes, has_rates = m["size"].nunique() > 1, m["mask_rate"].nunique() > 1
    labels = [
        " ".join(filter(None, (
            one.size if has_sizes else "", one.objective,
            percent(one.mask_rate) if has_rates and not math.isnan(one.mask_rate) else "",
            f"after {one.first_steps:,} of CLM" if one.first_steps else "",
        )))
        for one in m[_PATH].itertuples()
    ]  # fmt: skip
    m = m.assign(series=_with_optimizer(m, pd.Series(labels, index=m.index)))
    objectives = m.drop_duplicates("series")["objective"]
    if objectives.is_unique:
        m = m.assign(style=m["objective"].map(objective_styles(objectives)))
    else:
        m = _styled(m, distinct_styles)
    ends = m[m["is_final"]].set_index("series", drop=False).reindex(m["series"].unique())
    ends = ends.dropna(subset="series")
    ends = ends.assign(series=ends["series"] + ", finished", style=ends["style"].map(hollow))
    return pd.concat([m[~m["is_final"]], ends])


def _by_time(m: Frame, _: str) -> Frame:
    after = ordered_styles(["before", "after"])["after"]
    steps = m["continued_steps"].max()
    names = {0: "before", steps: f"after {steps:,} more steps"}
    styles = {0: hollow(after), steps: after}
    m = m.sort_values("continued_steps", kind="stable")
    return m.assign(series=m["continued_steps"].map(names), style=m["continued_steps"].map(styles))


def _by_start(m: Frame, _: str) -> Frame:
    m, known = m.assign(series="began with " + m["key"]), objective_styles(())
    starts = m.drop_duplicates("way")["begun"]
    if starts.is_unique and {*starts} <= known.keys():
        return m.assign(style=m["begun"].map(known))
    return _styled(m, distinct_styles)


def by_model(m: Frame, _: str) -> Frame:
    """Make a line per model."""
    return m.assign(
        series=m["label"], line=m["name"], style=m["name"].map(distinct_styles([*m["name"]]))
    )


def _masking(m: Frame) -> str:
    rate = _rate(m)
    return "" if rate is None else f"MLM at a masking rate of {percent(rate)}. "


def _budget(m: Frame) -> str:
    return f", after {m['total_steps'].iloc[0]:,} steps. "


def _size(m: Frame) -> str:
    return f", {m['size'].iloc[0]}" if m["size"].iloc[0] else ""


def _states(m: Frame) -> str:
    outlined = "; outlined: finished models" if m["is_final"].any() else ""
    return f". Intermediate states are scored before the learning rate decays{outlined}. "


def _of_flops(m: Frame) -> str:
    order = _order(m)
    sizes = f"Sizes: {', '.join(order)}. " if len(order) > 1 else ""
    note = f". {sizes}{_masking(m)}" if m["is_final"].all() else _states(m)
    return f"{note}FLOPs of pretraining, from the ledger of each run. "


def short_steps(steps: float) -> str:
    """Return a number of steps without spaces, such as `12K`."""
    return amount(steps).replace(" ", "")


def _named(column: str) -> Callable[[Frame], Ticks]:
    """Return ticks with the names of categories."""
    return lambda points: tuple(sorted({*zip(points["x"], points[column], strict=True)}))


def _powers(points: Frame) -> Ticks:
    """Return ticks at 1, 2 and 5 times powers of ten on a wide axis, else at its ends."""
    low, high = points["x"].min(), points["x"].max()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    round_ones = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in round_ones if low / 1.05 <= tick <= high * 1.05]
    return ticks_at(inside if inside and high > WIDE * low else (low, high), _power_text)


def _power_text(number: float) -> str:
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    ten = f"10{superscript(int(exponent))}"
    return ten if float(mantissa) == 1 else f"{float(mantissa):g}·{ten}"


def _round(points: Frame) -> Ticks:
    return ticks_at(round_ticks(points["x"].min(), points["x"].max(), most=4), amount)


def _percents(points: Frame) -> Ticks:
    return ticks_at(points["x"], lambda place: percent(place / 100))


SPECS = (
    Spec(
        2, "size", "Scores by model size and objective", _by_size, "place", _by_recipe,
        "model size", _named("size"), "category", lambda m: f"{_budget(m)}{_masking(m)}",
    ),
    Spec(
        3, "mask-rate", "MLM by masking rate and model size", _by_mask_rate, "masked", _ordered,
        "tokens masked", _percents, note=_budget,
    ),
    Spec(
        4, "step", "Scores by pretraining step", _courses, "total_steps", _by_path,
        "pretraining step", ticks_of(short_steps), "wide", note=_states,
    ),
    Spec(
        6, "clm-share", "Scores by share of CLM and budget", _by_share, "share", _ordered,
        "share of CLM in the steps", lambda _: ticks_at(_QUARTERS, lambda x: f"{x:g} %"),
        note=lambda m: (
            f"{_size(m)}. From only MLM (left) to only CLM (right); MLM follows CLM. {_masking(m)}"
        ),
        of=lambda m: _size(m).replace(", ", ": "),
    ),
    Spec(
        7, "mask-rate-sensitivity", "Masking rate: MLM against CLM then MLM", _by_rate_and_clm,
        "masked", _by_clm_first, "tokens masked", _percents,
        note=lambda m: f"{_size(m)}, {m['total_steps'].iloc[0]:,} steps in all{m['by'].iloc[0]}. ",
    ),
    Spec(
        8, "continued-budget", "Continued pretraining: before and after", _at_one_length, "way",
        _by_time, "began with", _named("key"), "category", is_connected=False,
        note=lambda m: f" {m['continued_steps'].max():,} more steps, by starting model. ",
    ),
    Spec(
        9, "continued-steps", "Continued pretraining by its length", _by_length, "continued_steps",
        _by_start, "steps of continued training", ticks_of(short_steps),
        note=lambda _: "; 0 is the starting model. Each length has its own decay. ",
    ),
    Spec(
        10, "flops", "Scores by training FLOPs", _by_flops, "flops",
        lambda m, x: _by_recipe(m, x) if m["is_final"].all() else _by_path(m, x),
        "training FLOPs", _powers, "wide", note=_of_flops,
    ),
)  # fmt: skip
BY_SHARE = next(spec for spec in SPECS if spec.name == "clm-share")
BY_LABELS = Spec(
    None, "labels", "Scores by tokens predicted", _by_labels, "labels", _by_recipe,
    "tokens predicted", _round,
    note=lambda _: (
        ": CLM predicts each token that it reads, MLM the masked ones. Continued models have those "
        "of both trainings. "
    ),
)  # fmt: skip
BY_EXAMPLES = Spec(
    None, "train-examples", "Scores by training examples", lambda m: m[m["is_final"]], "num_train",
    by_model, "training examples", ticks_of("{:,.0f}".format), "log",
    note=lambda _: ". A smaller set is part of each larger one of its seed. ",
)  # fmt: skip


def score_figures(
    scores: Scores, *, is_every: bool = False, reference: Scores | None = None
) -> Iterator[Chart | Skipped]:
    """Yield each figure that needs only scores."""
    # With `is_every`, there is a panel per dataset instead of each category's average. A reference
    # is drawn in the background, on datasets that are the same in both.

    datasets, models = shown_datasets(scores, is_every=is_every), models_of(scores)
    pairs = {} if reference is None else alike_datasets(scores, reference)
    theirs = {pairs[one.name].name: one.name for one in datasets if one.name in pairs}
    values, intervals, behind = values_of(scores, datasets), interval_note(scores), None
    if reference and theirs:
        alike = [dataset for dataset in reference.datasets if dataset.name in theirs]
        behind = models_of(reference), values_of(reference, alike)

    def chart(spec: Spec, size: str | None = None) -> Chart | Skipped:
        def of_size(m: Frame) -> Frame:
            return m if size is None else m[m["size"] == size]

        made = chart_of(spec, of_size(models), values, intervals=intervals)
        if reference is None or behind is None or isinstance(made, Skipped):
            return made
        other = chart_of(spec, of_size(behind[0]), behind[1])
        if isinstance(other, Skipped):
            return made
        # Its models may have other numbers of steps and masking rates.
        note = "." if other.note == made.note else other.note.rstrip()
        merged = with_reference(made, other, name="paper", panels=theirs)
        return replace(merged, caption=f"{merged.caption} Grey: {reference.source}{note}")

    yield from map(chart, SPECS)
    # The figure of the CLM share for further model sizes, like the paper's for 1B.
    further = _order(with_shares(models))[1:]
    if not further:
        title = f"{BY_SHARE.title}: another size"
        yield Skipped("clm-share-further", title, "needs CLM then MLM at a second model size")
    for size in further:
        kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in size.lower())
        slug = kept[:40].strip("-") or "other"
        yield chart(replace(BY_SHARE, number=11, name=f"{BY_SHARE.name}-{slug}"), size)
    trained = [model for model in scores.models if model.is_final and model.labels]
    if len({(model.optimizer, model.total_steps) for model in trained}) > 1:
        yield chart(BY_LABELS)
    numbers = Counter(_task(dataset) for dataset in scores.datasets)
    several = [one for one in scores.datasets if _task(one) and numbers[_task(one)] > 1]
    if several:
        values = values_of(scores, several)
        of_task = values.assign(panel=values["task"], heading=values["task"])
        yield chart_of(BY_EXAMPLES, models, of_task, intervals=intervals)


def _task(dataset: DatasetInfo) -> str:
    """Return the task of a dataset that has as many training examples as its name says."""
    # As the setting `train_examples` of a study's task names them.
    name, _, number = dataset.name.rpartition("-")
    return name if number == str(dataset.num_train) else ""
