"""The paper's claims on the paper's table, and on tables that say otherwise."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from biphasic.analysis.claims import changed_verdicts, claims_report, restated
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores

# As found by hand in the paper's tables, before there was any code.
VERDICTS = {
    "C01": "true", "C02": "true", "C03": "true", "C04": "partly", "C05": "partly", "C06": "partly",
    "C07": "true", "C08": "partly", "C09": "true", "C10": "partly", "C11": "partly",
    "C12": "partly", "C13": "true", "C14": "partly", "C15": "partly", "C16": "true", "C17": "true",
    "C18": "partly", "C19": "true", "C20": "partly", "C21": "partly", "C22": "partly",
    "C23": "partly", "C24": "partly", "C25": "partly", "B01": "partly",
}  # fmt: skip
BY_SEED = {"C26", "C27", "C28"}
"""Claims that need scores by seed, which the paper's table lacks."""
# Comparisons that hold, of how many, for each check; counted by hand as well. C07: 9 in those
# notes, but QQP at 610M has 86.98 at both 0.2 and 0.4, so that all three datasets share 0.2.
COUNTS = {
    "C01": [(9, 12), (1, 12)], "C02": [(24, 24), (3, 3)], "C03": [(4, 4)], "C04": [(3, 4)],
    "C05": [(11, 12)], "C06": [(2, 4)], "C07": [(1, 1), (8, 12)], "C08": [(2, 4)],
    "C09": [(3, 3), (9, 9)], "C10": [(0, 2)], "C11": [(2, 2), (1, 2)], "C12": [(0, 1), (0, 1)],
    "C13": [(5, 5)], "C14": [(7, 8)], "C15": [(4, 5)], "C16": [(6, 6), (1, 1)],
    "C17": [(3, 3), (4, 4)], "C18": [(30, 36)], "C19": [(12, 12)], "C20": [(11, 12)],
    "C21": [(10, 12)], "C22": [(3, 4), (1, 1)], "C23": [(3, 3), (1, 1), (1, 2)],
    "C24": [(2, 2), (1, 2)], "C25": [(3, 4), (1, 1), (1, 1)], "B01": [(4, 12)],
}  # fmt: skip
T_FACTOR = 2.776 / 1.96
SIZES = ("210M", "610M", "1B")
GOLDEN = Path(__file__).parents[2] / "golden/claims.csv"
"""Verdicts on made tables, by table and claim; BIPHASIC_RECORD=1 writes it.

When the claims were written, a second program with a plain loop for each claim gave the same.
"""


def verdicts(scores: Scores) -> dict[str, str]:
    found = {result.claim.id: result.verdict for result in claims_report(scores)}
    assert {found.pop(name) for name in BY_SEED} == {"no data"}
    return found


def remade(number: Callable[[ModelInfo, DatasetInfo, Estimate], tuple[float, float]]) -> Scores:
    """Return the paper's table with other means and half-widths."""
    paper = paper_scores()
    known = [(model, dataset, paper.get(model.name, dataset.name).estimate)
             for model in paper.models for dataset in paper.datasets]  # fmt: skip
    cells = {
        (model.name, dataset.name): Score(Estimate(*number(model, dataset, one), 5))
        for model, dataset, one in known
        if one is not None
    }
    return dataclasses.replace(paper, cells=cells)


def shaken(seed: int) -> Scores:
    """Return the table with noise of a random size, and intervals of a random width."""
    random = np.random.default_rng(seed)
    noise = float(random.choice([0.2, 1.0, 5.0, 20.0]))
    width = float(random.choice([0.1, 0.5, 1.0, 2.0, 5.0]))
    moved: dict[tuple[str, str], float] = {}

    def number(model: ModelInfo, dataset: DatasetInfo, one: Estimate) -> tuple[float, float]:
        key = model.identity, dataset.name  # several of its tables may have a model
        shift = moved.setdefault(key, float(random.normal(0, noise)))
        return one.mean + shift, (one.half_width or 0.0) * width

    return remade(number)


def made_of_effects(seed: int) -> Scores:
    """Return a table whose means are sums of random effects of what models differ in."""
    random = np.random.default_rng(seed)
    effects: dict[object, float] = {}
    scale = {place: float(random.choice([0.0, 1.0, 10.0])) for place in range(8)}
    slope = float(random.choice([-30.0, 0.0, 30.0]))

    def effect(place: int, *levels: object) -> float:
        return scale[place] * effects.setdefault((place, levels), float(random.normal(0, 1)))

    def number(model: ModelInfo, dataset: DatasetInfo, _: Estimate) -> tuple[float, float]:
        share = 0.0 if model.continued_steps else model.clm_steps / model.total_steps
        size, start = SIZES.index(model.size), model.start if model.continued_steps else ""
        mean = (
            effect(0, model.objective)
            + effect(1, model.mask_rate)
            + effect(2, model.objective) * size
            + effect(3, model.objective) * model.total_steps / 42000
            + effect(4, start) * (1 + model.continued_steps / 22000)
            + effect(5, round(4 * share))
            + effect(6, dataset.task, model.objective)
            + slope * (model.mask_rate or 0) * (1 + effect(7, "by size") * size)
            + 0.01 * effects.setdefault((model.identity, dataset.name), float(random.normal()))
        )
        return 50 + mean, 0.05

    return remade(number)


def halfway_level(_: int) -> Scores:
    """Return the table with equals on SC and QA at 12,000 continued steps, which are rare."""
    paper = paper_scores()
    others = {model.start: model.name for model in paper.models if model.continued_steps == 12000}

    def number(model: ModelInfo, dataset: DatasetInfo, one: Estimate) -> tuple[float, float]:
        if model.name == others["CLM"] and dataset.task in {"SC", "QA"}:
            partner = paper.get(others["MLM"], dataset.name).estimate
            assert partner is not None
            return partner.mean, one.half_width or 0.0
        return one.mean, one.half_width or 0.0

    return remade(number)


def reversed_table(_: int) -> Scores:
    return remade(lambda *cell: (100 - cell[-1].mean, cell[-1].half_width or 0.0))


MADE: dict[str, tuple[Callable[[int], Scores], range]] = {
    "shaken": (shaken, range(25)), "effects": (made_of_effects, range(25)),
    "halfway level": (halfway_level, range(1)), "reversed": (reversed_table, range(1)),
}  # fmt: skip


def golden() -> dict[tuple[str, int], dict[str, str]]:
    with GOLDEN.open(encoding="utf-8", newline="") as file:
        return {(row.pop("table"), int(row.pop("seed"))): row for row in csv.DictReader(file)}


@pytest.mark.skipif("BIPHASIC_RECORD" not in os.environ, reason="records golden verdicts")
def test_record() -> None:
    rows = [{"table": name, "seed": seed, **verdicts(make(seed))}
            for name, (make, seeds) in MADE.items() for seed in seeds]  # fmt: skip
    with GOLDEN.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def test_26_claims_are_about_the_table_and_each_gets_its_verdict() -> None:
    results = {result.claim.id: result for result in claims_report(paper_scores())}
    assert {results.pop(name).verdict for name in BY_SEED} == {"no data"}
    assert {name: result.verdict for name, result in results.items()} == VERDICTS
    assert {
        name: [
            (sum(c.holds is True for c in check.comparisons), len(check.comparisons))
            for check in result.strong
        ]
        for name, result in results.items()
    } == COUNTS
    assert not [result.missing for result in results.values() if result.missing]


@pytest.mark.parametrize("name", MADE)
def test_verdicts_on_made_tables_stay(name: str) -> None:
    make, seeds = MADE[name]
    known = golden()
    for seed in seeds:
        assert verdicts(make(seed)) == known[name, seed], f"{name} {seed}"


def test_every_claim_is_true_on_one_table_and_false_on_another() -> None:
    rows = golden().values()
    assert all({"true", "false"} <= {row[claim] for row in rows} for claim in VERDICTS)


def test_reversed_scores_reverse_the_ordered_claims() -> None:
    after = golden()["reversed", 0]
    # All comparisons held; now none does, apart from the kind that asks for no difference.
    for name in ("C02", "C03", "C16", "C19"):
        assert (VERDICTS[name], after[name]) == ("true", "false")
    # What was significantly lower at 610M on TC is higher now.
    assert (VERDICTS["C01"], after["C01"]) == ("true", "partly")


def test_with_t_the_verdicts_of_two_claims_change() -> None:
    # C06: 92.69 - 92.21 = 0.48, and 1.4163 * (0.14 + 0.26) = 0.57; at 0.4 nothing is left of it.
    # C23: QA at 22,000: 67.66 - 66.62 = 1.04, and 1.4163 * (0.34 + 0.53) = 1.23: the gap closes.
    changed = {"C06": ("partly", "false"), "C23": ("partly", "true")}
    assert changed_verdicts(paper_scores()) == changed
    wider = {name: changed.get(name, (verdict, verdict))[1] for name, verdict in VERDICTS.items()}
    assert verdicts(restated(paper_scores(), "standard")) == wider


def test_restated_widens_by_the_quantiles_and_comes_back() -> None:
    paper = paper_scores()
    there = restated(paper, "standard")
    for key, score in paper.cells.items():
        assert score.estimate is not None
        found = there.cells[key].estimate
        assert found is not None
        assert found.half_width == pytest.approx((score.estimate.half_width or 0) * T_FACTOR, 1e-3)
    back = restated(there, "paper")
    for key, score in paper.cells.items():
        assert back.cells[key].estimate is not None
        assert back.cells[key].estimate.half_width == pytest.approx(score.estimate.half_width)


@pytest.mark.parametrize("seed", range(12))
def test_a_missing_score_leaves_a_verdict_or_none(seed: int) -> None:
    random = np.random.default_rng(seed)
    paper = paper_scores()
    share = float(random.choice([0.002, 0.02, 0.2]))
    models = {model.name: model.identity for model in paper.models}
    lost: dict[tuple[str, str], bool] = {}
    cells = {
        (model, dataset): score
        for (model, dataset), score in paper.cells.items()
        if not lost.setdefault((models[model], dataset), bool(random.random() < share))
    }
    for result in claims_report(dataclasses.replace(paper, cells=cells)):
        name = result.claim.id
        expected = "no data" if name in BY_SEED else VERDICTS[name]
        assert result.verdict in {expected, "undecided", "no data"}
        assert result.missing or result.verdict == expected


def test_without_any_score_nothing_is_decided() -> None:
    empty = dataclasses.replace(paper_scores(), cells={})
    assert set(verdicts(empty).values()) == {"no data"}
    none = dataclasses.replace(paper_scores(), cells={}, models=())
    assert set(verdicts(none).values()) == {"no data"}


def test_without_intervals_significance_is_undecided_and_direction_is_not() -> None:
    paper = paper_scores()
    cells = {
        key: Score(Estimate(score.estimate.mean, None, 1))
        for key, score in paper.cells.items()
        if score.estimate
    }
    found = verdicts(dataclasses.replace(paper, cells=cells))
    for name in ("C03", "C04", "C08", "C11", "C12", "C14", "C15", "C16", "C18", "C19", "C20"):
        assert found[name] == VERDICTS[name]
    for name in ("C01", "C02", "C05", "C06", "C09", "C13", "C17", "C21"):
        assert found[name] == "undecided"
