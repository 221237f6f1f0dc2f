"""The paper's claims on studies: what carries over, what stays open, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from small_table import ask, miniature, model, table

from biphasic.analysis.claims import ClaimResult, Table, claims_report, paper_claims
from biphasic.analysis.claims.claim import CheckedClaims
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import ModelInfo, Score, Scores
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs
from snapshots import compare

# What the miniature of the paper's table cannot say: it has one dataset per task.
BY_DATASET = {"C07"}
CLM, MLM = model("clm", objective="CLM"), model("mlm")
SMALL = {"parameters": 1_000_000, "size": "pico"}
ALONE = model("alone", **SMALL)
CELLS = {"SC": 70.0, "TC": 80.0, "QA": 30.0, "IR": 40.0}
BETTER = {name: value + 5 for name, value in CELLS.items()}


def report(scores: Scores) -> dict[str, ClaimResult]:
    return {result.claim.id: result for result in claims_report(scores)}


def test_a_study_of_the_same_shape_gets_the_paper_s_verdicts() -> None:
    paper, small = report(paper_scores()), report(miniature())
    assert {name: small[name].verdict for name in small if name not in BY_DATASET} == {
        name: paper[name].verdict for name in paper if name not in BY_DATASET
    }
    assert small["C07"].verdict == "undecided"
    assert small["C07"].missing == "no models or tasks that differ only in dataset"
    assert small["C06"].scope == "size nano; masking rate 0.2, 0.3, 0.4 and 0.5; steps 420; task TC"
    # Same comparisons as in the paper, whatever else is in the study.
    for name in ("C01", "C14", "C17", "C18", "C19", "C20", "C23", "C25"):
        assert [len(check.comparisons) for check in small[name].checks] == [
            len(check.comparisons) for check in paper[name].checks
        ]


def one_seed() -> Scores:
    scores = table({CLM: {"TC": 70.0}, MLM: {"TC": 72.0}})
    cells = {key: Score(Estimate(found.estimate.mean, None, 1))
             for key, found in scores.cells.items() if found.estimate}  # fmt: skip
    return dataclasses.replace(scores, cells=cells)


def incomplete() -> Scores:
    scores = table({CLM: {"TC": 72.0}, MLM: {"TC": 70.0}})
    cell = dataclasses.replace(scores.cells["mlm", "TC"], is_complete=False)
    return dataclasses.replace(scores, cells={**scores.cells, ("mlm", "TC"): cell})


def zero_shot() -> Scores:
    """Zero-shot tasks on which CLM is better, of a first kind and of another one."""
    scores = table({CLM: CELLS | {"ZS": 90.0, "MP": 90.0}, MLM: BETTER | {"ZS": 10.0, "MP": 10.0}})
    datasets = tuple(
        dataclasses.replace(each, about=MinimalPairs.facts) if each.task == "MP" else each
        for each in scores.datasets
    )
    return dataclasses.replace(scores, datasets=datasets)


def seeds() -> Scores:
    cells = {}
    for seed in (0, 1):
        cells[model(f"clm-{seed}", objective="CLM")] = {"TC": 70.0 + seed}
        cells[model(f"mlm-{seed}")] = {"TC": 70.0 + 3 * seed}
    return table(cells)


def continued(start: str, steps: int) -> ModelInfo:
    own = {"clm_steps": 100, "mlm_steps": steps, "objective": "CLM+MLM"}
    both = {"total_steps": 100 + steps, "continued_steps": steps, "start": start}
    return model(f"{start}-{steps}", **both, **(own if start == "CLM" else {}))


def lengths(clm: tuple[int, ...], mlm: tuple[int, ...]) -> Scores:
    """Models of each start, continued for these numbers of steps."""
    return table({
        continued(start, steps): dict.fromkeys(("SC", "TC", "QA", "IR"), 70.0 + steps)
        for start, every in (("CLM", clm), ("MLM", mlm))
        for steps in every
    })  # fmt: skip


def without_parameters() -> Scores:
    return table({
        model(f"{name}-{size}", objective=name.upper(), size=size, parameters=None): {"SC": mean}
        for size in ("a", "b")
        for name, mean in (("clm", 70.0), ("mlm", 71.0))
    })  # fmt: skip


# Tables, and the claims that are printed of each, all without any.
SCENARIOS: dict[str, tuple[Callable[[], Scores], str]] = {
    "another masking rate": (
        lambda: table({CLM: CELLS, model("mlm", mask_rate=0.3): BETTER}), "C01"
    ),
    "a rate too far from 40 %": (
        lambda: table({model(f"mlm{r}", mask_rate=r): {"SC": 70 + r} for r in (0.15, 0.2)}), "C12"
    ),
    "a single pair of models": (
        lambda: table({CLM: {"SC": 70.0, "TC": 80.0}, MLM: {"SC": 72.0, "TC": 79.0}}), ""
    ),
    "a model without counterpart": (
        lambda: table({MLM: {"TC": 70.0}, CLM: {"TC": 71.0}, ALONE: {"TC": 60.0}}), "C05"
    ),
    "the same, where one comparison fails": (
        lambda: table({MLM: {"TC": 75.0}, CLM: {"TC": 71.0}, ALONE: {"TC": 60.0}}), "C05"
    ),
    "the same, where another one holds": (
        lambda: table({MLM: {"TC": 75.0}, CLM: {"TC": 71.0}, ALONE: {"TC": 60.0},
                       model("more", mask_rate=0.2): {"TC": 71.0}}), "C05"
    ),
    "a missing score": (lambda: table({CLM: {"TC": 70.0}, MLM: {"TC": None}}), "C05"),
    "one seed": (one_seed, "C05"),
    "a score that may change": (incomplete, "C05"),
    "zero-shot tasks, which are not named": (zero_shot, "C01"),
    "zero-shot tasks, where the largest gap is sought": (
        lambda: table({CLM: {**CELLS, "ZS": 10.0}, MLM: {**BETTER, "QA": 40.0, "ZS": 90.0}}), "C02"
    ),
    "pretraining seeds": (seeds, "C05"),
    "continued for equal lengths": (lambda: lengths((12, 22), (12, 22)), "C22 C24 C25 C12"),
    "continued longer after CLM": (lambda: lengths((12, 22), (12,)), "C22 C24"),
    "continued for less after CLM too": (lambda: lengths((6, 22), (12, 22)), "C22 C24"),
    "sizes without numbers of parameters": (without_parameters, "C03"),
}  # fmt: skip


def test_what_is_said_of_claims_stays() -> None:
    parts = []
    for name, (make, ids) in SCENARIOS.items():
        scores = make()
        claims = [claim for claim in paper_claims() if not ids or claim.id in ids.split()]
        results = claims_report(scores, claims=claims)
        parts += [f"== {name}", *CheckedClaims(results, scores, {}, ()).lines(details=True), ""]
    compare("claims", "\n".join(parts) + "\n", Path("/nowhere"), is_made=True)


def test_arms_are_compared_with_those_of_their_optimizer_unless_it_is_named() -> None:
    # The order of arms differs between the objectives, and CLM has no arm by Adam.
    means = {"clm": {"muon": 70, "adamw": 65}, "mlm": {"adamw": 67, "adam": 60, "muon": 71}}
    asked = Table(table({
        model(f"{name}-{optimizer}", objective=name.upper(), optimizer=optimizer): {"TC": mean}
        for name, of_optimizer in means.items()
        for optimizer, mean in of_optimizer.items()
    }))  # fmt: skip
    pairs = asked.compare({"objective": "CLM"}, {"objective": "MLM"}, "higher")
    assert [tuple(row.name for row in one.rows) for one in pairs.comparisons] == [
        ("clm-muon", "mlm-muon"), ("clm-adamw", "mlm-adamw")
    ]  # fmt: skip
    assert pairs.where(pairs.comparisons[0]) == "TC, nano, muon"
    pairs = asked.compare({"optimizer": "muon"}, {"optimizer": "adamw"}, "higher")
    assert [tuple(row.name for row in one.rows) for one in pairs.comparisons] == [
        ("clm-muon", "clm-adamw"), ("mlm-muon", "mlm-adamw")
    ]  # fmt: skip


def test_a_place_says_that_a_number_is_the_share_of_clm() -> None:
    arms = [
        model(f"{name}-{size}", objective=name, **factors)
        for name in ("MLM", "CLM")
        for size, factors in (("nano", {}), ("pico", SMALL))
    ]
    check = Table(table({arm: {"TC": 70.0} for arm in arms})).trend("size", "never decreases")
    places = [check.where(one) for one in check.comparisons]
    assert [place.rpartition(", ")[2] for place in places] == ["CLM share 0", "CLM share 1"]


def test_a_group_that_no_model_has_is_named() -> None:
    scores = table({CLM: {"TC": 70.0}, MLM: {"TC": 72.0}})
    result = ask(scores, lambda table: table.trend("steps", "increases", group="mine"))
    assert result.missing == "no group mine"


@pytest.mark.parametrize("name", ["<b>&", "a|b\n# c", "\u202eright to left", "x" * 300])
def test_names_of_models_are_texts(name: str) -> None:
    clm, mlm = model(name, objective="CLM"), model("mlm")
    result = report(table({clm: {"TC": 70.0}, mlm: {"TC": 75.0}}))["C05"]
    assert result.verdict == "false"
    assert name in result.lines("against")[0]
