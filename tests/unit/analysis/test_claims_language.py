"""What claims files may say, what each word means, and how wrong files are refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from small_table import model, table

from biphasic.analysis.claims import (
    ClaimResult,
    claims_report,
    claims_schema,
    load_claims,
    paper_claims,
)
from biphasic.analysis.claims.answers import Comparison
from biphasic.analysis.claims.language import Claim, Hold
from biphasic.analysis.claims.render import body_lines
from biphasic.analysis.claims.verdict import holds
from biphasic.analysis.score_table import ModelInfo, Scores
from biphasic.errors import ConfigError

GOOD = """
format: biphasic.claims/1
claims:
  - id: mine
    text: A sentence.
    checks:
      - where: {steps: largest}
        compare: {first: {objective: MLM}, second: {objective: CLM}, expect: higher}
"""
CHECK = ["claims", 0, "checks", 0]


def ask(
    scores: Scores, *checks: dict[str, Any], weaker: tuple[dict[str, Any], ...] = ()
) -> ClaimResult:
    raw = {"id": "mine", "text": "A sentence.", "checks": checks, "weaker": weaker}
    (result,) = claims_report(scores, claims=[Claim.model_validate(raw)])
    return result


def held(scores: Scores, check: dict[str, Any]) -> list[bool | None]:
    (found,) = ask(scores, check).checks
    return [comparison.holds for comparison in found.comparisons]


def pair(first: float | tuple[float, float], second: float | tuple[float, float]) -> Scores:
    return table({model("mlm"): {"SC": first}, model("clm", objective="CLM"): {"SC": second}})


@pytest.mark.parametrize(
    ("first", "second", "expect", "answer"),
    [
        ((70, 1), (69, 1), "higher", True),
        ((70, 1), (70, 1), "higher", False),
        ((70, 1), (70, 1), "not higher", True),
        ((69, 1), (70, 1), "lower", True),
        ((69, 1), (70, 1), "not lower", False),
        ((72.1, 1), (70, 1), "significantly higher", True),
        ((72, 1), (70, 1), "significantly higher", False),  # intervals that touch overlap
        ((70, 1), (72.1, 1), "significantly higher", False),
        ((70, 1), (72.1, 1), "significantly lower", True),
        ((70, 1), (72.1, 1), "significantly different", True),
        ((70, 1), (71, 1), "not significantly different", True),
        ((70, 1), (72.1, 1), "not significantly different", False),
        ((70, 1), (72.1, 1), "not significantly higher", True),
        ((72.1, 1), (70, 1), "not significantly higher", False),
        ((70, 1), (72.1, 1), "not significantly lower", False),
    ],
)
def test_how_one_score_stands_to_another(first, second, expect, answer) -> None:
    check = {"compare": {"first": {"objective": "MLM"}, "second": {"objective": "CLM"},
                         "expect": expect}}  # fmt: skip
    assert held(pair(first, second), check) == [answer]


@pytest.mark.parametrize(
    ("means", "expect", "answer"),
    [
        ((1, 2, 3), "increases", True),
        ((1, 2, 2), "increases", False),
        ((1, 2, 2), "never decreases", True),
        ((1, 3, 2), "never decreases", False),
        ((3, 2, 1), "decreases", True),
        ((3, 3, 1), "never increases", True),
        ((1, 3, 2.5), "never significantly decreases", True),  # 0.5 down, intervals of 0.5
        ((3, 2.5, 1.9), "never significantly decreases", False),  # first to last: 1.1 down
        ((1, 1.5, 2.1), "never significantly increases", False),
        ((3, 1, 2), "dips in the middle", True),
        ((3, 1, 1), "dips in the middle", False),
        ((1, 3, 2), "peaks in the middle", True),
    ],
)
def test_how_scores_run_along_a_factor(means, expect, answer) -> None:
    rates = dict(zip((0.2, 0.3, 0.4), means, strict=True))
    # Rows come in another order than their levels.
    scores = table({
        model(f"mlm{rate}", mask_rate=rate): {"SC": rates[rate]} for rate in (0.4, 0.2, 0.3)
    })  # fmt: skip
    assert held(scores, {"trend": {"along": "mask_rate", "expect": expect}}) == [answer]


def test_sizes_are_ordered_by_parameters() -> None:
    parameters = {"b": 1_000, "c": 2_000, "a": 3_000}
    scores = table({
        model(size, size=size, parameters=number): {"SC": number / 1000}
        for size, number in parameters.items()
    })  # fmt: skip
    assert held(scores, {"trend": {"along": "size", "expect": "increases"}}) == [True]
    check = {"compare": {"first": {"size": "largest"}, "second": {"size": "smallest"},
                         "expect": "higher"}}  # fmt: skip
    result = ask(scores, check)
    assert result.bound == ("largest size: a", "smallest size: b")
    assert result.verdict == "true"


@pytest.mark.parametrize(
    ("rates", "middle"),
    [((0.2,), 0.2), ((0.2, 0.3), 0.2), ((0.2, 0.3, 0.4), 0.3), ((0.2, 0.3, 0.4, 0.5), 0.3)],
)
def test_the_middle_is_one_of_the_levels(rates, middle) -> None:
    scores = table({model(f"mlm{rate}", mask_rate=rate): {"SC": 100 * rate} for rate in rates})
    check = {
        "where": {"mask_rate": "middle"},
        "compare": {"first": {"mask_rate": "largest"}, "second": {"mask_rate": "smallest"},
                    "expect": "higher"},
    }  # fmt: skip
    assert f"middle masking rate: {middle}" in ask(scores, check).bound


def test_a_difference_says_which_side_is_missing() -> None:
    scores = pair(70.0, 60.0)
    for of, minus, missing in (
        ("CLM+MLM", "MLM", "no objective CLM+MLM"),
        ("MLM", "CLM+MLM", "no counterpart of mlm: CLM+MLM"),
    ):
        gap = {"difference": {"of": {"objective": of}, "minus": {"objective": minus}}}
        result = ask(scores, {"value": gap, "varies": {"over": ["task"]}})
        assert result.verdict == "undecided"
        assert missing in result.missing


def test_what_is_not_named_is_held_equal() -> None:
    scores = table({
        model("mlm-100"): {"SC": 70.0, "TC": 80.0},
        model("clm-100", objective="CLM"): {"SC": 69.0, "TC": 81.0},
        model("mlm-900", total_steps=900, mlm_steps=900): {"SC": 60.0, "TC": 60.0},
        model("clm-900", objective="CLM", total_steps=900, clm_steps=900): {"SC": 59.0, "TC": 61.0},
        model("far", objective="CLM", size="micro"): {"SC": 99.0, "TC": 99.0},
    })  # fmt: skip
    check = {"compare": {"first": {"objective": "MLM"}, "second": {"objective": "CLM"},
                         "expect": "higher"}}  # fmt: skip
    (found,) = ask(scores, check).checks
    assert [(c.text.split(" ")[0], c.text.split(", ")[1].split(" ")[0], c.holds)
            for c in found.comparisons] == [
        ("mlm-100", "clm-100", True), ("mlm-100", "clm-100", False),
        ("mlm-900", "clm-900", True), ("mlm-900", "clm-900", False),
    ]  # fmt: skip
    longest = held(scores, {"where": {"steps": "largest"}, **check})
    assert longest == [True, False]


def test_shares_of_clm_are_rounded_but_a_mix_is_never_pure() -> None:
    def mix(clm: int) -> ModelInfo:
        mlm = 100 - clm
        return model(f"mix{clm}", objective="CLM+MLM", clm_steps=clm, mlm_steps=mlm)

    scores = table({
        model("mlm"): {"SC": 50.0}, mix(1): {"SC": 51.0}, mix(23): {"SC": 52.0},
        mix(99): {"SC": 53.0}, model("clm", objective="CLM"): {"SC": 54.0},
    })  # fmt: skip
    best = {"best": {"over": "clm_share", "expect": 1}}
    (found,) = ask(scores, best).checks
    assert found.comparisons[0].text == (
        "50.00 at 0, 51.00 at 0.05, 52.00 at 0.25, 53.00 at 0.95, 54.00 at 1"
    )


def test_states_on_the_way_and_continued_models_count_where_they_are_named() -> None:
    early = {"total_steps": 50, "is_final": False}
    more = {"total_steps": 150, "continued_steps": 50}
    scores = table({
        model("mlm"): {"SC": 70.0},
        model("clm", objective="CLM"): {"SC": 60.0},
        model("mlm-50", **early): {"SC": 40.0},
        model("clm-50", objective="CLM", **early): {"SC": 50.0},
        model("mlm-more", start="MLM", **more): {"SC": 71.0},
        model("clm-more", objective="CLM+MLM", clm_steps=100, start="CLM", **more): {"SC": 72.0},
    })  # fmt: skip
    objectives = {"first": {"objective": "MLM"}, "second": {"objective": "CLM"}, "expect": "higher"}
    assert held(scores, {"compare": objectives}) == [True]
    assert held(scores, {"where": {"finished": False}, "compare": objectives}) == [False]
    starts = {"first": {"start": "MLM"}, "second": {"start": "CLM"}, "expect": "higher"}
    continued = {"where": {"continued_steps": {"above": 0}}, "compare": starts}
    assert held(scores, continued) == [False]
    gain = {"first": {"continued_steps": 50}, "second": {"continued_steps": 0}, "expect": "higher"}
    assert held(scores, {"where": {"start": "CLM"}, "compare": gain}) == [True]
    along = {"trend": {"along": "steps", "expect": "increases"}}
    assert ask(scores, along).verdict == "undecided", "states on the way are not named"


def test_masking_rates_are_held_equal_where_there_are_any() -> None:
    mixes = {"objective": "CLM+MLM", "clm_steps": 25, "mlm_steps": 75}
    scores = table({
        model("mlm20", mask_rate=0.2): {"SC": 60.0}, model("mlm40"): {"SC": 70.0},
        model("mix20", mask_rate=0.2, **mixes): {"SC": 61.0}, model("mix40", **mixes): {"SC": 69.0},
        model("clm", objective="CLM"): {"SC": 65.0},
    })  # fmt: skip
    mix = {"compare": {"first": {"objective": "CLM+MLM"}, "second": {"objective": "MLM"},
                       "expect": "higher"}}  # fmt: skip
    assert held(scores, mix) == [True, False]  # 61 against 60, 69 against 70
    clm = {"compare": {"first": {"objective": "CLM"}, "second": {"objective": "MLM"},
                       "expect": "higher"}}  # fmt: skip
    assert held(scores, clm) == [True, False]  # CLM has none and meets both
    best = {"best": {"over": "clm_share", "expect": 1}}
    assert held(scores, best) == [True, False]  # at 0.2: 60, 61, 65; at 0.4: 70, 69, 65
    # Where both sides name it, CLM has no place.
    rates = {"where": {"mask_rate": [0.2, 0.4]},
             "compare": {"first": {"mask_rate": 0.4}, "second": {"mask_rate": 0.2},
                         "expect": "higher"}}  # fmt: skip
    assert held(scores, rates) == [True, True]


def test_differences_and_best_levels_are_looked_at() -> None:
    cells = {}
    for size, number, gap in (("pico", 1, 5.0), ("nano", 2, 3.0)):
        factors = {"size": size, "parameters": number}
        cells[model(f"{size}-clm", objective="CLM", **factors)] = {"SC": 50.0, "TC": 50.0}
        cells[model(f"{size}-20", mask_rate=0.2, **factors)] = {"SC": 50.0 + gap, "TC": 51.0}
        cells[model(f"{size}-40", **factors)] = {"SC": 50.0 + 2 * gap, "TC": 50.0 + number / 2}
    scores = table(cells)
    gap = {"difference": {"of": {"objective": "MLM"}, "minus": {"objective": "CLM"}}}
    shrinks = {"where": {"task": "SC"}, "value": gap, "trend": {"along": "size",
               "expect": "decreases"}}  # fmt: skip
    found = ask(scores, shrinks).checks[0].comparisons
    assert [c.text for c in found] == [
        "+5.00 at pico, +3.00 at nano",
        "+10.00 at pico, +6.00 at nano",
    ]
    most = {"where": {"mask_rate": 0.4}, "value": gap, "best": {"over": "task", "expect": "SC"}}
    assert held(scores, most) == [True, True]
    rate = {"value": {"best_level": "mask_rate"}}
    # SC: 0.4 at both; TC: 51 against 50.5, then 51 against 51, of which the smaller rate counts.
    assert held(scores, {**rate, "varies": {"over": ["task"]}}) == [True, True]
    assert held(scores, {**rate, "varies": {"over": ["size"]}}) == [False, False]


def test_means_and_mean_ranks_over_tasks() -> None:
    scores = table({
        model("mlm20", mask_rate=0.2): {"SC": 50.0, "TC": 50.0, "QA": 10.0},
        model("mlm30", mask_rate=0.3): {"SC": 49.0, "TC": 49.0, "QA": 40.0},
        model("mlm40"): {"SC": 48.0, "TC": 48.0, "QA": 20.0},
    })  # fmt: skip
    # Means 36.67, 46, 38.67; ranks 1 1 3, 2 2 1, 3 3 2: means 1.67, 1.67, 2.67.
    by_mean = {"best": {"over": "mask_rate", "expect": 0.3, "across": "task"}}
    assert held(scores, by_mean) == [True]
    by_rank = {"best": {"over": "mask_rate", "expect": [0.2, 0.3], "across": "task",
                        "by": "mean rank"}}  # fmt: skip
    assert held(scores, by_rank) == [True]
    alone = {"best": {**by_rank["best"], "expect": 0.3}}
    assert held(scores, alone) == [False], "a tie is not won"
    assert held(scores, {"worst": {"over": "mask_rate", "expect_not": 0.4}}) == [False, False, True]
    tied = table({model("mlm20", mask_rate=0.2): {"SC": 50.0}, model("mlm40"): {"SC": 50.0}})
    assert held(tied, {"worst": {"over": "mask_rate", "expect_not": 0.4}}) == [False]
    assert held(tied, {"best": {"over": "mask_rate", "expect": 0.4}}) == [False]


def test_datasets_are_averages_unless_named() -> None:
    cells = {model("mlm"): {"TC/a": 60.0, "TC/b": 80.0, "SC": 50.0},
             model("clm", objective="CLM"): {"TC/a": 70.0, "TC/b": 60.0, "SC": 50.5}}  # fmt: skip
    scores = table(cells, averaged=("TC",))
    scores = Scores(scores.source, "paper", scores.models, tuple(
        type(d)(d.name, d.task, d.metric, d.is_average) for d in scores.datasets
    ), scores.cells)  # fmt: skip
    check = {"compare": {"first": {"objective": "MLM"}, "second": {"objective": "CLM"},
                         "expect": "higher"}}  # fmt: skip
    assert held(scores, check) == [False, True]  # SC: 50 < 50.5; TC: 70 > 65
    each = held(scores, {"where": {"dataset": "each"}, **check})
    assert each == [False, True, False]  # TC/a, TC/b, SC
    named = ask(scores, {"where": {"dataset": ["TC/b", "TC/c"]}, **check})
    assert named.verdict == "undecided"
    assert named.missing == ("no dataset TC/c",)


def test_headings_can_be_asked_for() -> None:
    scores = table({
        model("mlm", group="one"): {"SC": 70.0},
        model("clm", objective="CLM", group="one"): {"SC": 69.0},
        model("other", mask_rate=0.2, group="two"): {"SC": 1.0},
    })  # fmt: skip
    check = {"compare": {"first": {"objective": "MLM"}, "second": {"objective": "CLM"},
                         "expect": "higher"}}  # fmt: skip
    assert held(scores, check) == [True, False]
    assert held(scores, {"where": {"group": "one"}, **check}) == [True]


def comparisons(num_true: int, num_false: int, num_unknown: int) -> list[Comparison]:
    answers = [True] * num_true + [False] * num_false + [None] * num_unknown
    return [Comparison({}, "", answer) for answer in answers]


@pytest.mark.parametrize(
    ("hold", "counts", "answer"),
    [
        ("all", (3, 0, 0), True),
        ("all", (3, 1, 5), False),
        ("all", (3, 0, 1), None),
        ({"at_least": 2}, (2, 3, 4), True),
        ({"at_least": 2}, (1, 3, 1), None),
        ({"at_least": 2}, (1, 3, 0), False),
        ({"at_least": "8/12"}, (3, 1, 0), True),  # 8/12 of 4 is 2.67: 3
        ({"at_least": "8/12"}, (2, 2, 0), False),
        ({"at_most": "1/12"}, (1, 11, 0), True),
        ({"at_most": "1/12"}, (1, 10, 0), False),  # of 11 it is none
        ({"at_most": 1}, (1, 3, 1), None),
        ({"at_most": 1}, (2, 0, 3), False),
    ],
)
def test_how_many_must_hold(hold, counts, answer) -> None:
    assert holds(Hold.model_validate(hold), comparisons(*counts), 0) is answer


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3), st.sampled_from(
    ["all", {"at_least": 2}, {"at_least": "1/2"}, {"at_most": 2}, {"at_most": "1/3"}]
))  # fmt: skip
def test_an_answer_stands_whatever_the_unknown_ones_turn_out_to_be(
    num_true: int, num_false: int, num_unknown: int, hold: Any
) -> None:
    rule = Hold.model_validate(hold)
    if num_true + num_false + num_unknown == 0:
        assert holds(rule, [], 0) is None
        return
    outcomes = {
        holds(rule, comparisons(num_true + more, num_false + num_unknown - more, 0), 0)
        for more in range(num_unknown + 1)
    }
    found = holds(rule, comparisons(num_true, num_false, num_unknown), 0)
    assert found is (outcomes.pop() if len(outcomes) == 1 else None)


def test_most_often_is_more_often_than_any_other() -> None:
    def won(*winners: float) -> list[Comparison]:
        return [Comparison({}, "", winner == 0.5, winner=winner) for winner in winners]

    rule = Hold.model_validate("most often")
    assert holds(rule, won(0.5, 0.5, 0.25, 0.75), 0) is True
    assert holds(rule, won(0.5, 0.5, 0.25, 0.25), 0) is False
    assert holds(rule, [*won(0.5, 0.5, 0.25), Comparison({}, "", None)], 0) is None


def test_a_weaker_form_decides_between_partly_and_false() -> None:
    strong = {"compare": {"first": {"objective": "MLM"}, "second": {"objective": "CLM"},
                          "expect": "significantly higher"}}  # fmt: skip
    weak = {"compare": {**strong["compare"], "expect": "higher"}}
    assert ask(pair(75, 70), strong, weaker=(weak,)).verdict == "true"
    assert ask(pair(70.5, 70), strong, weaker=(weak,)).verdict == "partly"
    assert ask(pair(70.5, 70), strong).verdict == "false"
    assert ask(pair(69, 70), strong, weaker=(weak,)).verdict == "false"


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(yaml.safe_load(GOOD))
    node = raw
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "biphasic.claims/2", "format: unknown value 'biphasic.claims/2' (did"),
        (["claims"], [], "claims: give one at least"),
        (["claims", 0, "chekcs"], [], "claim 'mine': unknown key 'chekcs' (did you mean"),
        (["claims", 0, "checks"], [], "claim 'mine': checks: give one at least"),
        (["claims", 0, "verdict"], "true", "claim 'mine': unknown key 'verdict'"),
        ([*CHECK, "where", "mask_rat"], 0.4,
         "claim 'mine': unknown key 'checks.0.where.mask_rat' (did you mean 'mask_rate'?)"),
        ([*CHECK, "where", "mask_rate"], "high", "mask_rate: 'high' is not a number"),
        ([*CHECK, "where", "mask_rate"], True, "expected a value, a list of values, one of"),
        ([*CHECK, "where", "mask_rate"], {"at_leest": 1}, "(did you mean 'at_least'?)"),
        ([*CHECK, "where", "mask_rate"], {"nearest": 1, "above": 1}, "one of them, not 2"),
        ([*CHECK, "where", "mask_rate"], {"at_least": 0, "within": 1}, "'within' goes with"),
        ([*CHECK, "where", "size"], 350, "size: write 350 in quotes: names are text"),
        ([*CHECK, "where", "task"], "largest", "task: has no order; give a name or a list"),
        ([*CHECK, "compare", "expect"], "much higher", "(did you mean 'higher'?)"),
        ([*CHECK, "compare", "first", "group"], "a", "group: give it in 'where'"),
        ([*CHECK, "trend"], {"along": "size", "expect": "increases"},
         "give one of compare, trend, best, worst, varies, not ['compare', 'trend']"),
        ([*CHECK, "hold"], "some", "expected all, most often, {at_least: N} or {at_most: N}"),
        ([*CHECK, "hold"], {"at_least": "9/8"}, "9/8 is no share of the comparisons"),
        ([*CHECK, "hold"], {"at_least": 0}, "0 comparisons decide nothing"),
        ([*CHECK, "hold"], {"at_least": 1, "at_most": 2}, "give one of 'at_least', 'at_most'"),
        ([*CHECK, "hold"], "most often", "'most often' goes with 'best' and 'worst'"),
        ([*CHECK, "value"], {}, "give one of 'difference' and 'best_level'"),
        ([*CHECK, "value"], {"best_level": "objective"}, "unknown value 'objective' (known:"),
        ([*CHECK, "needs"], {"task": 2}, "unknown value 'task' (known:"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_claim_place_and_remedy(tmp_path, path, value, message) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(yaml.safe_dump(changed(path, value)))
    with pytest.raises(ConfigError) as error:
        load_claims(file)
    assert str(error.value).startswith(str(file))
    assert message in str(error.value)
    assert "should have at least" not in str(error.value)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ({"value": {"best_level": "mask_rate"},
          "trend": {"along": "size", "expect": "never significantly decreases"}},
         "trend.expect: only scores have intervals"),
        ({"best": {"over": "mask_rate"}}, "give one of 'expect' and 'expect_not'"),
        ({"best": {"over": "mask_rate", "expect": "QA"}}, "mask_rate: 'QA' is not a number"),
        ({"best": {"over": "task", "expect": 3}}, "task: write 3 in quotes"),
        ({"best": {"over": "task", "expect": "QA", "across": "task"}}, "'task' is what levels"),
        ({"best": {"over": "task", "expect": "QA", "by": "mean rank"}}, "'by' goes with 'across'"),
        ({"value": {"best_level": "mask_rate"}, "best": {"over": "task", "expect": "QA"}},
         "looks at scores or differences"),
        ({"varies": {"over": []}}, "give one at least"),
    ],
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(tmp_path, check, message) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(yaml.safe_dump(changed(CHECK, check)))
    with pytest.raises(ConfigError) as error:
        load_claims(file)
    assert str(error.value).startswith(f"{file}: claim 'mine': checks.0")
    assert message in str(error.value)


def test_two_claims_of_one_id_are_refused(tmp_path) -> None:
    file = tmp_path / "claims.yaml"
    raw = yaml.safe_load(GOOD)
    file.write_text(yaml.safe_dump({**raw, "claims": raw["claims"] * 2}))
    with pytest.raises(ConfigError, match="id: mine given more than once"):
        load_claims(file)


def test_the_schema_knows_every_word_and_describes_it() -> None:
    schema = claims_schema()
    json.dumps(schema)
    definitions = schema["$defs"]
    for name in ("Selection", "Check", "Compare", "Trend", "Extreme", "Varies", "Claim"):
        for field, described in definitions[name]["properties"].items():
            assert described.get("description"), f"{name}.{field}"
    shapes = [shape.get("type") for shape in definitions["Levels"]["anyOf"]]
    assert shapes == ["number", "string", "array", "object"]


def test_the_paper_s_file_has_every_claim_once_with_its_place() -> None:
    claims = paper_claims()
    assert [claim.id for claim in claims] == [*(f"C{n:02}" for n in range(1, 26)), "B01"]
    assert all(claim.source for claim in claims)


def test_a_check_that_its_weaker_form_repeats_is_told_as_both() -> None:
    check = {"compare": {"first": {"objective": "MLM"}, "second": {"objective": "CLM"},
                         "expect": "higher"}}  # fmt: skip
    result = ask(pair(75, 70), check, weaker=(check,))
    lines = [line for line in body_lines(result, with_details=True) if "higher than" in line]
    assert [line.startswith("weaker form") for line in lines] == [False, True]
