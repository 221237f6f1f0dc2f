"""Results from Python: the numbers that the commands print, as tables and drawings."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from docs_page import DOCS
from fake_study import FakeStudy
from made_layout import write_cell, write_run
from made_scores import scores_with_examples

import biphasic
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.tables.text import Analysis
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
    frame = analysis.means
    assert frame["mean"].tolist() == [cell["mean"] for cell in printed["cells"]]
    assert frame["half_width"].tolist() == [cell["half_width"] for cell in printed["cells"]]
    assert "62.00 (4.97)" in str(analysis)
    assert str(analysis) == repr(analysis)


def test_an_analysis_is_a_frame_of_runs_with_the_factors_of_models(tmp_path):
    for name, score in (("610m-mlm20-42k", 0.6), ("610m-mlm40-42k", 0.7), ("610m-clm-42k", 0.5)):
        grid = {"1e-4": [score, score + 0.02], "1e-5": [score - 0.1, score - 0.1]}
        write_cell(tmp_path, f"results/{name}/sc/MNLI", grid)
    analysis = biphasic.analyze(tmp_path)
    frame = analysis.frame
    assert len(frame) == 3 * 2 * 2 * 2
    assert {*frame["split"]} == {"validation", "test"}
    tests = frame[frame.is_selected & (frame.split == "test")]
    assert {*tests["rate"]} == {1e-4}
    by_rate = tests[tests["objective"] == "MLM"].groupby("mask_rate")["value"].mean()
    assert by_rate.to_dict() == {0.2: pytest.approx(61), 0.4: pytest.approx(71)}
    means = analysis.means
    assert means.loc[means["model"] == "610m-clm-42k", "clm_steps"].tolist() == [42_000]
    at_one = biphasic.analyze(tmp_path, one_rate=True)
    assert {*at_one.frame["rate"]} == {1e-4}
    assert at_one.frame["is_selected"].all()


def write_harness(folder):
    """Write samples of two models as lm-evaluation-harness does."""
    for model, right in (("a", 0.5), ("b", 1.0)):
        path = folder / model / "samples_copa_2026-01-16T15-23-47.2.jsonl"
        path.parent.mkdir()
        known = {"filter": "none", "metrics": ["acc"], "target": " a", "resps": [["x"]]}
        lines = [json.dumps({"doc_id": n, **known, "acc": n % 2 * right}) for n in range(8)]
        path.write_text("\n".join(lines))


def write_mteb(folder):
    """Write a task of two models as mteb does."""
    for model, right in (("a", 0.25), ("b", 0.5)):
        (folder / model / "1").mkdir(parents=True)
        (folder / model / "1/model_meta.json").write_text(json.dumps({"name": model}))
        scores = [{"main_score": right, "hf_subset": "default", "languages": ["eng-Latn"]}]
        (folder / model / "1/STS12.json").write_text(json.dumps({
            "dataset_revision": "1", "task_name": "STS12", "mteb_version": "2.26.0",
            "scores": {"test": scores}, "evaluation_time": 1.0,
        }))  # fmt: skip


def write_tables(folder):
    """Write tables of two models, which have different examples."""
    for model, lines in (("a", "1,0\n2,1\n3,0.5\n"), ("b", "1,1\n2,1\n")):
        (folder / model).mkdir()
        (folder / model / "qa.csv").write_text(f"id,score\n{lines}")


@pytest.mark.parametrize(
    ("write", "dataset", "metric", "means"),
    [
        (write_harness, "copa", "acc", [25, 50]),
        (write_mteb, "MTEB", "main_score", [25, 50]),
        (write_tables, "qa", "score", [50, 100]),
    ],
)
def test_results_of_other_tools_are_frames(write, dataset, metric, means, tmp_path):
    write(tmp_path)
    analysis = biphasic.analyze(tmp_path)
    frame = analysis.frame
    assert frame["model"].tolist() == ["a", "b"]
    assert {*zip(frame["dataset"], frame["metric"], frame["split"], strict=True)} == {
        (dataset, metric, "test")
    }
    assert frame["value"].tolist() == means
    assert frame[["rate", "seed"]].isna().all(axis=None)
    assert analysis.examples(dataset).mean().tolist() == pytest.approx(means)


def test_a_published_table_is_a_frame_of_means():
    frame = Analysis(paper_scores(), ()).frame
    assert len(frame) == sum(
        not paper_scores().dataset(dataset).is_average for _, dataset in paper_scores().cells
    )
    assert frame["seed"].isna().all()
    mnli = frame[frame["dataset"] == "MNLI"].set_index("model")
    assert mnli.loc["610M-clm-42k", ["value", "objective"]].tolist() == [
        paper_scores().get("610M-clm-42k", "MNLI").estimate.mean, "CLM",
    ]  # fmt: skip


def test_scores_of_examples_are_a_frame(tmp_path):
    right = np.array([[[1, 0, 1, 1], [1, 0, 0, 1]], [[1, 1, 1, 1], [0, 1, 1, 1]]], float)
    scores = scores_with_examples(dict(zip("ab", right, strict=True)))
    [dataset] = (one.name for one in scores.datasets)
    table = Analysis(scores, ()).examples(dataset)
    assert [*table.columns] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert table.to_numpy().T.tolist() == (100 * right.reshape(4, 4)).tolist()
    with pytest.raises(DataError, match="no scores of single examples"):
        Analysis(paper_scores(), ()).examples("MNLI")
    with pytest.raises(DataError, match="no dataset 'x'"):
        Analysis(scores, ()).examples("x")
    with pytest.raises(DataError, match=f"no model has a score on '{dataset}' yet"):
        Analysis(replace(scores, cells={}), ()).examples(dataset)
    average = replace(scores.datasets[0], name="Average", is_average=True)
    with pytest.raises(DataError, match="'Average' is an average and has no examples"):
        Analysis(replace(scores, datasets=(*scores.datasets, average)), ()).examples("Average")


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
    assert row["p"] == row["p_adjusted"] < 0.05  # the only comparison
    assert row["n"] == 3
    printed = cli("analyze", str(results), "--dataset", "QQP", "--compare")[1]
    assert str(compared) in printed


def test_pairs_that_are_named_are_corrected_together(tmp_path):
    for name, worse in (("a", 0.0), ("b", 0.01), ("c", 0.03)):
        for dataset, noise in (("MNLI", 0.001), ("QQP", 0.01)):
            tests = [0.6 - worse + noise * (seed * ord(name) % 3) for seed in range(4)]
            write_cell(tmp_path, f"results/{name}/sc/{dataset}", {"1e-4": tests})
    pairs = [("b", "a"), ("b", "c")]
    found = biphasic.compare(tmp_path, pairs=pairs)
    frame = found.frame
    assert [*zip(frame["first"], frame["second"], strict=True)] == 2 * pairs
    assert {*frame["kind"]} == {"planned"}
    holm = (frame["p"].sort_values() * [4, 3, 2, 1]).cummax().clip(upper=1)
    assert frame["p_adjusted"].tolist() == pytest.approx(holm.sort_index().tolist())
    assert {*frame["num_comparisons"]} == {4}
    assert "b is" in str(found)
    assert "Average" not in str(found)
    assert "Exploratory" not in str(found)
    again = biphasic.analyze(tmp_path).compare(zip(*zip(*pairs, strict=True), strict=True))
    assert again.frame.equals(frame)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("mm", "a")], "pairs: no model 'mm'"),
        (["ab"], "pairs: 'ab' is no pair of two models"),
        ([("a", "b", "c")], r"pairs: \('a', 'b', 'c'\) is no pair of two models"),
        ([("a", "a")], r"pairs: \('a', 'a'\) is no pair of two models, such as"),
        ([("a", "b"), ("b", "a")], "pairs: a and b are given more than once; compare them once"),
        ([("a", "b"), ("a", "c")], "'a' and 'c' have no seeds in common on any dataset; leave"),
    ],
)
def test_what_is_no_pair_is_refused(tmp_path, pairs, message):
    for name, seeds in (("a", (0, 1)), ("b", (0, 1)), ("c", (7, 8))):
        for seed in seeds:
            test = 0.6 + 0.01 * (seed * ord(name) % 3)
            write_run(tmp_path, f"results/{name}/sc/MNLI", "1e-4", seed, 0.9, test)
    with pytest.raises((ConfigError, DataError), match=message):
        biphasic.compare(tmp_path, pairs=pairs)


def test_the_script_of_the_page_makes_a_plot(tmp_path, monkeypatch, capsys):
    folder, _ = FakeStudy(steps=40, seeds=(0, 1, 2)).write(tmp_path)
    script = (DOCS / "analyze.md").read_text("utf-8").split("```python\n")[1].partition("```")[0]
    assert len(script.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    exec(script.replace("runs/mine", str(folder)), {})  # noqa: S102 - our own documentation
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("pydocs-sc", "p_adjusted", "detectable"))


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
    assert all(made._repr_html_().count("<tr") == 1 + len(made.table()) > 1 for made in shown)
