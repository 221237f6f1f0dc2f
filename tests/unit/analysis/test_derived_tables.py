"""Claims on the spread over learning rates and masking rates, and at equal FLOPs."""

import math
import statistics
from dataclasses import replace

import pytest
from grid_scores import model

from biphasic.analysis.claims import Table, claims_report, paper_claims
from biphasic.analysis.estimate import GridScore, estimate
from biphasic.analysis.scores.table import DatasetInfo, Score, Scores, score_of_grid

DATASET = DatasetInfo("words-sc", "SC", "accuracy")
SEEDS = range(5)


def table(*cells):
    """Return a table of one dataset from models and their scores by seed, or whole scores."""
    scores = {
        one.name: value if isinstance(value, Score) else scored(value) for one, value in cells
    }
    models = tuple(one for one, _ in cells)
    cells = {(name, DATASET.name): score for name, score in scores.items()}
    return Scores("Made up", "standard", models, (DATASET,), cells)


def scored(by_seed):
    return Score(estimate([*by_seed.values()], convention="standard"), by_seed)


def around(mean):
    """Return scores of five seeds: the mean and small differences, other ones for each mean."""
    return {seed: mean + ((round(13 * mean) * (seed + 1) + seed**2) % 7 - 3) / 20 for seed in SEEDS}


def means(table):
    return {row.name: row.mean for row in table.rows() if row.dataset == DATASET.name}


def verdict(scores, name):
    [claim] = [each for each in paper_claims() if each.id == name]
    return claims_report(scores, claims=[claim])[0].verdict


def runs(by_rate):
    """Return a score whose test scores, in percent, vary over rates by the given amounts."""
    grid = [
        GridScore(rate, seed, 0.5, (70 + shift + seed * shift / 50) / 100, None)
        for rate, shift in by_rate.items()
        for seed in SEEDS
    ]
    return score_of_grid(grid, convention="standard", is_complete=True)


class TestLearningRates:
    def test_spread_is_over_the_rates_within_ten_times_the_lowest(self):
        # 2e-4 is twenty times the lowest rate; 1e-4 / 1e-5 is slightly above 10 in floats.
        score = runs({1e-5: 0.0, 5e-5: 2.0, 1e-4: 4.0, 2e-4: 90.0})
        assert score.rate_spread is not None
        assert score.rate_spread[0] == pytest.approx(2.0)  # of 70, 72 and 74
        assert score.rate_spread[4] == pytest.approx(2.0 * 1.08)

    def test_one_rate_has_no_spread(self):
        assert runs({1e-5: 0.0}).rate_spread is None

    @pytest.mark.parametrize(("clm", "mlm", "expected"), [(1.0, 4.0, "true"), (4.0, 1.0, "false")])
    def test_claim(self, clm, mlm, expected):
        scores = table(
            (model("clm", "small", 400, 0), runs({1e-3: 0.0, 2e-3: clm})),
            (model("mlm", "small", 0, 400), runs({1e-3: 0.0, 2e-3: mlm})),
        )
        assert means(Table(scores).rate_spreads)["clm"] == pytest.approx(
            statistics.fmean(clm * (1 + seed / 50) / 2**0.5 for seed in SEEDS)
        )
        assert verdict(scores, "C26") == expected

    def test_a_model_that_diverged_at_a_rate_is_not_more_stable(self):
        diverged = runs({1e-3: 0.0, 2e-3: 1.0})
        scores = table(
            (model("clm", "small", 400, 0), runs({1e-3: 0.0, 2e-3: 1.0, 4e-3: 4.0, 2e-2: 9.0})),
            (model("mlm", "small", 0, 400), diverged),
        )
        assert [*means(Table(scores).rate_spreads)] == ["clm", "mlm"]
        assert math.isnan(means(Table(scores).rate_spreads)["mlm"])
        assert verdict(scores, "C26") == "no data"
        # Beyond ten times the lowest rate it does not matter.
        cells = {**scores.cells, ("mlm", DATASET.name): runs({1e-3: 0.0, 2e-3: 9.0, 4e-3: 16.0})}
        assert verdict(replace(scores, cells=cells), "C26") == "true"


class TestMaskingRates:
    def scores(self, *, mlm, both):
        return table(
            *((model(f"mlm{rate}", "small", 0, 400, rate), around(60 + mlm * rate))
              for rate in (0.2, 0.3, 0.4, 0.5)),
            *((model(f"both{rate}", "small", 200, 200, rate), around(60 + both * rate))
              for rate in (0.2, 0.4)),
            (model("other", "small", 100, 300, 0.4), around(90.0)),
        )  # fmt: skip

    def test_spread_is_over_the_rates_that_both_have(self):
        scores = self.scores(mlm=50.0, both=10.0)
        spreads = means(Table(scores).mask_rate_spreads)
        ends = [scores.get(name, DATASET.name).by_seed for name in ("mlm0.2", "mlm0.4")]
        expected = [statistics.stdev([ends[0][seed], ends[1][seed]]) for seed in SEEDS]
        assert spreads["mlm0.2"] == pytest.approx(statistics.fmean(expected))
        assert [*spreads] == ["mlm0.2", "both0.2"]

    @pytest.mark.parametrize(("mlm", "both", "expected"), [(50, 10, "true"), (10, 50, "false")])
    def test_claim(self, mlm, both, expected):
        assert verdict(self.scores(mlm=mlm, both=both), "C27") == expected

    def test_one_common_rate_is_no_data(self):
        scores = self.scores(mlm=50.0, both=10.0)
        models = tuple(one for one in scores.models if one.name != "both0.2")
        assert verdict(replace(scores, models=models), "C27") == "no data"


class TestFlops:
    def scores(self, *, clm, mlm):
        """CLM at 400 FLOPs, halfway in logarithms between MLM at 200 and at 800."""
        return table(
            (model("mlm", "small", 0, 400), around(80.0)),
            (model("mlm-20", "small", 0, 20, is_final=False, flops=200.0), around(mlm - 10)),
            (model("mlm-80", "small", 0, 80, is_final=False, flops=800.0), around(mlm + 10)),
            (model("clm-20", "small", 20, 0, is_final=False, flops=400.0), around(clm)),
            (model("clm-160", "small", 160, 0, is_final=False, flops=1600.0), around(99.0)),
        )  # fmt: skip

    def test_mlm_is_interpolated_at_the_flops_of_clm(self):
        scores = self.scores(clm=70.0, mlm=60.0)
        derived = Table(scores).at_equal_flops.rows()
        ends = [scores.get(name, DATASET.name).by_seed for name in ("mlm-20", "mlm-80")]
        halfway = statistics.fmean((ends[0][seed] + ends[1][seed]) / 2 for seed in SEEDS)
        (found,) = [row for row in derived if row.name == "mlm-20 at the FLOPs of clm-20"
                    and row.dataset == DATASET.name]  # fmt: skip
        assert found.mean == pytest.approx(halfway)
        # Nothing is known of MLM beyond 800 FLOPs.
        states = [row for row in derived if row.objective == "MLM" and not row.finished]
        assert {row.steps for row in states} == {20}

    @pytest.mark.parametrize(("clm", "mlm", "expected"), [(70, 60, "true"), (60, 70, "false")])
    def test_claim(self, clm, mlm, expected):
        assert verdict(self.scores(clm=clm, mlm=mlm), "C28") == expected
