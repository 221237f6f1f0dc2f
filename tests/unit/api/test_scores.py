"""Results from Python: the numbers that the commands print, as tables and drawings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from made_layout import write_cell

import biphasic
from biphasic.errors import ConfigError, DataError


@pytest.fixture
def results(tmp_path):
    """Two models on two datasets; the name of one is hostile."""
    for model, shift in (("<b>a</b>", 0.03), ("b", 0.0)):
        for dataset in ("MNLI", "QQP"):
            tests = [0.60 + shift, 0.62 + shift, 0.64 + shift + (0.001 if shift else 0)]
            place = f"results/{model.replace('/', chr(0x2215))}/sc/{dataset}"
            write_cell(tmp_path, place, {"1e-4": tests})
    return tmp_path


def test_an_analysis_has_the_numbers_of_the_command(results, cli):
    analysis = biphasic.analyze(results, dataset=["MNLI"])
    printed = json.loads(cli("analyze", str(results), "--dataset", "MNLI", "--json")[1])
    assert analysis.to_json() == printed
    frame = analysis.frame
    assert frame["mean"].tolist() == [cell["mean"] for cell in printed["cells"]]
    assert frame["half_width"].tolist() == [cell["half_width"] for cell in printed["cells"]]
    assert "62.00 (4.97)" in str(analysis)
    assert str(analysis) == repr(analysis)


def test_an_analysis_is_a_frame_with_the_factors_of_models(tmp_path):
    for name, score in (("610m-mlm20-42k", 0.6), ("610m-mlm40-42k", 0.7), ("610m-clm-42k", 0.5)):
        write_cell(tmp_path, f"results/{name}/sc/MNLI", {"1e-4": [score, score]})
    frame = biphasic.analyze(tmp_path).frame
    by_rate = frame[frame["objective"] == "MLM"].set_index("mask_rate")["mean"]
    assert by_rate.to_dict() == {0.2: pytest.approx(60), 0.4: pytest.approx(70)}
    assert frame.loc[frame["model"] == "610m-clm-42k", "clm_steps"].tolist() == [42_000]


def test_a_notebook_gets_a_drawing_and_a_table_without_markup_of_names(results):
    shown = biphasic.analyze(results)._repr_html_()
    assert shown.count("<svg") == 1
    assert "<td>b</td>" in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;a" in shown


def test_comparisons_are_those_of_the_command(results, cli):
    compared = biphasic.compare(results, dataset=["QQP"])
    [row] = compared.frame.to_dict("records")
    assert (row["dataset"], row["second"], row["verdict"]) == ("QQP", "b", "higher")
    assert row["difference"] == pytest.approx(3.0333, abs=1e-4)
    assert 0 < row["low"] < row["difference"] < row["high"]
    assert row["p"] < 0.05
    printed = cli("analyze", str(results), "--dataset", "QQP", "--compare")[1]
    assert str(compared) in printed


def test_claims_are_checked(results, cli):
    checked = biphasic.claims(paper=True)
    assert len(checked.frame) == len(checked.results) > 10
    assert set(checked.frame["verdict"]) <= {"true", "partly", "false", "undecided", "no data"}
    printed = json.loads(cli("claims", "--paper", "--json")[1])
    assert json.loads(json.dumps(checked.to_json())) == printed
    [one] = biphasic.claims(results, only=["C01"]).results
    assert one.claim.id == "C01"
    with pytest.raises(ConfigError, match="either a folder, or --paper"):
        biphasic.claims()
    with pytest.raises(ConfigError, match="--only C99: no such claim"):
        biphasic.claims(paper=True, only=["C99"])


def test_figures_are_written_and_shown(results, tmp_path):
    made = biphasic.figures(results, tmp_path / "drawn", formats=["csv", "svg"], dataset=["MNLI"])
    assert {path.suffix for path in made.paths} <= {".csv", ".svg", ".md"}
    assert set(made.frame["skipped"]) != {""}
    assert made._repr_html_().count("<svg") == len(made.drawn)
    assert f"{made.out}/tables.csv" in str(made)
    with pytest.raises(ConfigError, match="unknown; choose from"):
        biphasic.figures(results, formats=["gif"])
    with pytest.raises(DataError, match="no results"):
        biphasic.analyze(tmp_path / "drawn")


@pytest.mark.slow
def test_notebooks_show_what_a_study_does_and_has_done(finished, root, tmp_path):
    study = finished / "mini.yaml"
    shown = [
        biphasic.plan(study, root=root),
        biphasic.analyze(root / "mini"),
        biphasic.jobs(study, root=tmp_path),
        biphasic.status("mini", root=root),
        biphasic.verify("mini", root=root),
        biphasic.diff(study, study, root=root),
    ]
    assert [made._repr_html_().count("<svg") for made in shown] == [0, 1, 0, 0, 0, 0]
    assert all(made._repr_html_().count("<tr") == 1 + len(made.frame) > 1 for made in shown)
