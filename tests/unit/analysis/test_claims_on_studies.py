"""The paper's claims on studies: what carries over, what stays open, and what reports say of it."""

from __future__ import annotations

import dataclasses

import pytest
from small_table import ask, miniature, model, table

from biphasic.analysis.claims import ClaimResult, Table, claims_report
from biphasic.analysis.claims.claim import closing_lines
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import ModelInfo, Score, Scores
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs

# What the miniature of the paper's table cannot say: it has one dataset per task.
BY_DATASET = {"C07"}
CLM, MLM = model("clm", objective="CLM"), model("mlm")


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


def test_another_masking_rate_is_used_and_named() -> None:
    clm, mlm = model("clm", objective="CLM"), model("mlm", mask_rate=0.3)
    cells = {"SC": 70.0, "TC": 80.0, "QA": 30.0, "IR": 40.0}
    scores = table({clm: cells, mlm: {name: value + 5 for name, value in cells.items()}})
    result = report(scores)["C01"]
    assert result.verdict == "true"
    assert result.numbers == ("4 of 4 hold (at least 3 needed); 0 of 4 hold (at most 0 allowed)")
    assert result.scope == "size nano; masking rate 0.3; steps 100; task SC, TC, QA and IR"


def test_a_rate_too_far_off_does_not_stand_in_for_40_percent() -> None:
    rates = {model(f"mlm{rate}", mask_rate=rate): {"SC": 70 + rate} for rate in (0.15, 0.2)}
    result = report(table(rates))["C12"]
    assert result.verdict == "no data"
    assert result.missing == "no masking rate nearest 0.4 within 0.05 to compare with others"


def test_each_claim_reports_what_a_single_pair_of_models_lacks() -> None:
    found = report(table({CLM: {"SC": 70.0, "TC": 80.0}, MLM: {"SC": 72.0, "TC": 79.0}}))
    assert found["C03"].missing == "no models that differ only in size (2 levels or more)"
    assert found["C09"].missing == "no task IR"
    assert found["C10"].missing == "fewer than 2 levels of size"
    assert found["C14"].missing == "no intermediate models"
    assert "FLOPs" in found["C28"].missing
    assert found["C25"].missing.startswith("no continued steps above 0")
    assert "rates of MLM and of CLM+MLM" in found["C27"].missing
    assert found["C26"].missing.startswith("no spread over learning rates for clm")
    assert found["C20"].checks[0].missing == ("no objective CLM+MLM", "no CLM share 0.25")
    assert found["C22"].missing.startswith("no continued steps above 0")
    # What is known is reported: the half of the claim that speaks of SC and QA lacks QA.
    assert found["C02"].verdict == "undecided"
    assert found["C02"].missing == "no task QA, and 1 more"
    assert found["C05"].verdict == "true"
    decided = {name for name, result in found.items() if result.verdict in {"true", "false"}}
    assert decided == {"C05", "C06"}
    assert {name for name, r in found.items() if r.verdict == "partly"} == {"C01"}
    assert {name for name, r in found.items() if r.verdict == "undecided"} == {"C02", "C16"}
    decided.add("C01")
    assert all(result.missing for name, result in found.items() if name not in decided)


def test_a_model_without_counterpart_leaves_a_claim_open_and_is_named() -> None:
    small = {"parameters": 1_000_000, "size": "pico"}
    mlm, clm, alone = model("mlm"), model("clm", objective="CLM"), model("alone", **small)
    scores = table({mlm: {"TC": 70.0}, clm: {"TC": 71.0}, alone: {"TC": 60.0}})
    result = report(scores)["C05"]
    assert result.verdict == "undecided"
    assert result.missing == "no number for a counterpart of alone with objective CLM"
    # One comparison that fails decides, whatever the missing one would be: not true any more.
    lost = table({mlm: {"TC": 75.0}, clm: {"TC": 71.0}, alone: {"TC": 60.0}})
    assert report(lost)["C05"].verdict == "undecided", "false or partly, that is still open"
    both = table({
        mlm: {"TC": 75.0}, clm: {"TC": 71.0}, alone: {"TC": 60.0},
        model("more", mask_rate=0.2): {"TC": 71.0},
    })  # fmt: skip
    assert report(both)["C05"].verdict == "partly"


def test_a_missing_score_is_named() -> None:
    scores = table({CLM: {"TC": 70.0}, MLM: {"TC": None}})
    result = report(scores)["C05"]
    assert (result.verdict, result.missing) == ("no data", "no number for mlm")


def test_one_seed_has_no_significance() -> None:
    scores = table({CLM: {"TC": 70.0}, MLM: {"TC": 72.0}})
    cells = {key: Score(Estimate(found.estimate.mean, None, 1))
             for key, found in scores.cells.items() if found.estimate}  # fmt: skip
    result = report(dataclasses.replace(scores, cells=cells))["C05"]
    assert result.verdict == "undecided"
    assert result.lines("open") == ["TC, nano: mlm 72.00, clm 70.00: +2.00"]


def test_a_score_that_may_change_is_named() -> None:
    scores = table({CLM: {"TC": 72.0}, MLM: {"TC": 70.0}})
    cells = dict(scores.cells)
    cells["mlm", "TC"] = dataclasses.replace(cells["mlm", "TC"], is_complete=False)
    results = claims_report(partial := dataclasses.replace(scores, cells=cells))
    assert "Some runs are missing or diverged" in " ".join(closing_lines(results, partial, {}))
    whole = claims_report(scores)
    assert "Some runs are" not in " ".join(closing_lines(whole, scores, {}))


def test_zero_shot_tasks_take_no_part_unless_named() -> None:
    cells = {"SC": 70.0, "TC": 80.0, "QA": 30.0, "IR": 40.0}
    better = {name: value + 5 for name, value in cells.items()}
    other = {"ZS": 90.0, "MP": 90.0}
    scores = table({CLM: {**cells, **other}, MLM: {**better, "ZS": 10.0, "MP": 10.0}})
    scores = dataclasses.replace(
        scores,
        datasets=tuple(
            dataclasses.replace(each, about=MinimalPairs.facts) if each.task == "MP" else each
            for each in scores.datasets
        ),
    )
    result = report(scores)["C01"]
    assert result.verdict == "true"
    assert [len(check.comparisons) for check in result.checks] == [4, 4]
    # Nor where the task is sought at which the gap is largest: that would be ZS, at 80 points.
    wide = table({CLM: {**cells, "ZS": 10.0}, MLM: {**better, "QA": 40.0, "ZS": 90.0}})
    gaps = report(wide)["C02"].checks[1].comparisons
    assert [(gap.text, gap.holds) for gap in gaps] == [
        ("5.00 at SC, 5.00 at TC, 10.00 at QA, 5.00 at IR", True)
    ]


def test_pretraining_seeds_are_compared_one_by_one() -> None:
    cells = {}
    for seed in (0, 1):
        cells[model(f"clm-{seed}", objective="CLM")] = {"TC": 70.0 + seed}
        cells[model(f"mlm-{seed}")] = {"TC": 70.0 + 3 * seed}
    result = report(table(cells))["C05"]
    (check,) = result.checks
    assert [(check.where(c), c.holds) for c in check.comparisons] == [
        ("TC, nano, run 1", True), ("TC, nano, run 2", False)
    ]  # fmt: skip
    assert result.verdict == "partly"


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
    small = {"parameters": 1_000_000, "size": "pico"}
    arms = [
        model(f"{name}-{size}", objective=name, **factors)
        for name in ("MLM", "CLM")
        for size, factors in (("nano", {}), ("pico", small))
    ]
    scores = table({arm: {"TC": 70.0} for arm in arms})
    check = Table(scores).trend("size", "never decreases")
    places = [check.where(one) for one in check.comparisons]
    assert [place.rpartition(", ")[2] for place in places] == ["CLM share 0", "CLM share 1"]


def continued(start: str, steps: int) -> ModelInfo:
    own = {"clm_steps": 100, "mlm_steps": steps, "objective": "CLM+MLM"}
    both = {"total_steps": 100 + steps, "continued_steps": steps, "start": start}
    return model(f"{start}-{steps}", **both, **(own if start == "CLM" else {}))


@pytest.mark.parametrize(
    ("lengths", "scopes"),
    [
        ({"CLM": (12, 22), "MLM": (12, 22)}, {"C22": "22", "C24": "12"}),
        ({"CLM": (12, 22), "MLM": (12,)}, {"C22": "", "C24": "12"}),
        ({"CLM": (6, 22), "MLM": (12, 22)}, {"C22": "22", "C24": ""}),
    ],
)
def test_continued_models_of_equal_length_are_compared(lengths, scopes) -> None:
    cells = {
        continued(start, steps): dict.fromkeys(("SC", "TC", "QA", "IR"), 70.0 + steps)
        for start, every in lengths.items()
        for steps in every
    }
    found = report(table(cells))
    for name, steps in scopes.items():
        assert (found[name].verdict == "no data") == (not steps)
        of_length = [part for part in found[name].scope.split("; ") if "continued" in part]
        assert of_length == ([f"continued steps {steps}"] if steps else [])
        if not steps:
            assert "counterpart of CLM-" in found[name].missing
            assert "start MLM" in found[name].missing


def test_a_study_of_continued_models_alone_reports_what_it_lacks() -> None:
    cells = {continued(start, n): {"TC": 70.0} for start in ("CLM", "MLM") for n in (12, 22)}
    found = report(table(cells))
    assert found["C25"].missing == "no task SC"
    assert found["C12"].missing == "no models from scratch"


def test_a_group_that_no_model_has_is_named() -> None:
    scores = table({CLM: {"TC": 70.0}, MLM: {"TC": 72.0}})
    result = ask(scores, lambda table: table.trend("steps", "increases", group="mine"))
    assert result.missing == "no group mine"


def test_sizes_without_numbers_of_parameters_have_no_order() -> None:
    cells = {}
    for size in ("a", "b"):
        factors = {"size": size, "parameters": None}
        cells[model(f"clm-{size}", objective="CLM", **factors)] = {"SC": 70.0}
        cells[model(f"mlm-{size}", **factors)] = {"SC": 71.0}
    result = report(table(cells))["C03"]
    assert result.verdict == "no data"
    assert result.missing == "sizes have no order: numbers of parameters are unknown"


@pytest.mark.parametrize("name", ["<b>&", "a|b\n# c", "\u202eright to left", "x" * 300])
def test_names_of_models_are_texts(name: str) -> None:
    clm, mlm = model(name, objective="CLM"), model("mlm")
    result = report(table({clm: {"TC": 70.0}, mlm: {"TC": 75.0}}))["C05"]
    assert result.verdict == "false"
    assert name in result.lines("against")[0]
