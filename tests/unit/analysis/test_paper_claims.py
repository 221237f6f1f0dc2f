"""The paper's claims on the paper's table, and on tables that say otherwise."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np
import pytest
from paper_rules import RULES, SIZES, Cell, Key, Table, read

from biphasic.analysis.claims import changed_verdicts, claims_report, restated
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import ModelInfo, Score, Scores

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


@lru_cache(maxsize=1)
def published() -> Table:
    return read()


def verdicts(scores: Scores) -> dict[str, str]:
    found = {result.claim.id: result.verdict for result in claims_report(scores)}
    assert {found.pop(name) for name in BY_SEED} == {"no data"}
    return found


def by_the_rules(table: Table) -> dict[str, str]:
    return {name: rule(table) for name, rule in RULES.items()}


def key_of(model: ModelInfo, task: str, dataset: str) -> Key:
    return Key(
        model.group, task, dataset, model.size, model.objective, model.mask_rate, model.clm_steps,
        model.total_steps, model.start or "", model.continued_steps,
    )  # fmt: skip


def scores_from(table: Table) -> Scores:
    """Return the paper's table with other numbers."""
    paper = paper_scores()
    cells = {}
    for model in paper.models:
        for dataset in paper.datasets:
            name = "Average" if dataset.is_average else dataset.name
            cell = table[key_of(model, dataset.task, name)]
            cells[model.name, dataset.name] = Score(Estimate(cell.mean, cell.half, 5))
    return dataclasses.replace(paper, cells=cells)


def one_model(key: Key) -> Key:
    """Return what is equal of a cell that several tables repeat."""
    table = key.table if key.table == "data_efficiency" else ""
    return key._replace(table=table, start=key.start if key.continued else "")


def shaken(seed: int) -> Table:
    """Return the table with noise of a random size, and intervals of a random width."""
    random = np.random.default_rng(seed)
    noise = float(random.choice([0.2, 1.0, 5.0, 20.0]))
    width = float(random.choice([0.1, 0.5, 1.0, 2.0, 5.0]))
    moved: dict[Key, float] = {}
    table = {}
    for key, cell in published().items():
        shift = moved.setdefault(one_model(key), float(random.normal(0, noise)))
        table[key] = Cell(cell.mean + shift, cell.half * width)
    return table


def made_of_effects(seed: int) -> Table:
    """Return a table whose means are sums of random effects of what models differ in."""
    random = np.random.default_rng(seed)
    effects: dict[object, float] = {}
    scale = {place: float(random.choice([0.0, 1.0, 10.0])) for place in range(8)}

    def effect(place: int, *levels: object) -> float:
        if (place, levels) not in effects:
            effects[place, levels] = float(random.normal(0, 1))
        return scale[place] * effects[place, levels]

    slope = float(random.choice([-30.0, 0.0, 30.0]))
    table = {}
    for key in published():
        one = one_model(key)
        share = one.clm / one.total if not one.continued else 0.0
        place = SIZES.index(key.size)
        mean = (
            effect(0, key.objective)
            + effect(1, one.rate)
            + effect(2, key.objective) * place
            + effect(3, key.objective) * one.total / 42000
            + effect(4, one.start) * (1 + one.continued / 22000)
            + effect(5, round(4 * share))
            + effect(6, key.task, key.objective)
            + slope * (one.rate or 0) * (1 + effect(7, "by size") * place)
            + 0.01 * effects.setdefault(one, float(random.normal()))
        )
        table[key] = Cell(50 + mean, 0.05)
    return table


def test_the_rules_written_out_give_the_verdicts_by_hand() -> None:
    assert by_the_rules(published()) == VERDICTS


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


@pytest.mark.parametrize("seed", range(25))
def test_verdicts_follow_any_table_as_the_rules_do(seed: int) -> None:
    table = shaken(seed)
    assert verdicts(scores_from(table)) == by_the_rules(table)


@pytest.mark.parametrize("seed", range(25))
def test_verdicts_follow_tables_made_of_effects_as_the_rules_do(seed: int) -> None:
    table = made_of_effects(seed)
    assert verdicts(scores_from(table)) == by_the_rules(table)


def halfway_level() -> Table:
    """Return the table with equals on SC and QA at 12,000 continued steps, which are rare."""
    table = dict(published())
    for key, cell in published().items():
        if key.start == "CLM" and key.continued == 12000 and key.task in {"SC", "QA"}:
            partner = key._replace(start="MLM", objective="MLM", clm=0)
            table[key] = Cell(published()[partner].mean, cell.half)
    assert by_the_rules(table)["C24"] == "true"
    return table


def test_every_claim_can_be_true_and_false() -> None:
    found: dict[str, set[str]] = {name: set() for name in VERDICTS}
    found["C24"].add(verdicts(scores_from(halfway_level()))["C24"])
    seeds = iter(range(300))
    while lacking := {name for name, seen in found.items() if not {"true", "false"} <= seen}:
        table = made_of_effects(next(seeds))
        # The rules say so of tables like those on which claims agree with them, see above.
        for name in lacking:
            found[name].add(RULES[name](table))
    assert not lacking


def test_reversed_scores_reverse_the_ordered_claims() -> None:
    turned = {key: Cell(100 - cell.mean, cell.half) for key, cell in published().items()}
    after = verdicts(scores_from(turned))
    assert after == by_the_rules(turned)
    # All comparisons held; now none does, apart from the kind that asks for no difference.
    for name in ("C02", "C03", "C16", "C19"):
        assert (VERDICTS[name], after[name]) == ("true", "false")
    # What was significantly lower at 610M on TC is higher now.
    assert (VERDICTS["C01"], after["C01"]) == ("true", "partly")


def test_with_t_the_verdicts_of_two_claims_change() -> None:
    wider = {key: Cell(cell.mean, cell.half * T_FACTOR) for key, cell in published().items()}
    by_rule = by_the_rules(wider)
    changed = {name: (VERDICTS[name], by_rule[name]) for name in VERDICTS
               if VERDICTS[name] != by_rule[name]}  # fmt: skip
    # C06: 92.69 - 92.21 = 0.48, and 1.4163 * (0.14 + 0.26) = 0.57; at 0.4 nothing is left of it.
    # C23: QA at 22,000: 67.66 - 66.62 = 1.04, and 1.4163 * (0.34 + 0.53) = 1.23: the gap closes.
    assert changed == {"C06": ("partly", "false"), "C23": ("partly", "true")}
    assert changed_verdicts(paper_scores()) == changed
    assert verdicts(restated(paper_scores(), "standard")) == by_rule


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
