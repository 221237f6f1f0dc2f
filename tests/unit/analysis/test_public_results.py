"""The reference study's released folders, which have more datasets than its averages."""

import io
import os

import pytest
from made_layout import write_cell, write_public_results
from typer.testing import CliRunner

from biphasic.analysis.scores.layout import read_layout
from biphasic.analysis.scores.reference import DatasetChoice, reference_values
from biphasic.analysis.scores.source import paper_scores
from biphasic.cli.main import app
from biphasic.errors import ConfigError

BASE = "610M-mlm40-42k"
FIGURE_5 = ("610M-clm-42k", BASE)
FIGURE_7 = tuple(f"610M-clm-40k-mlm{rate}-42k" for rate in (20, 30, 40, 50))
LEFT_OUT = "left out: qed: not in the reference study's averages; --dataset chooses datasets"


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    write_public_results(folder)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_public_results(folder, FIGURE_5)
    return folder


def test_averages_are_over_the_datasets_of_the_paper(public):
    layout = read_layout(public)
    assert [(problem.kind, problem.text.split(":")[0]) for problem in layout.problems] == [
        ("left out", "qed")
    ]
    scores, paper = layout.scores(), paper_scores()
    for average in paper.averages:
        for model in paper.distinct:
            mean = scores.get(model.name, average.name).estimate.mean
            # The paper's averages are rounded, and over rounded means.
            assert mean == pytest.approx(
                paper.get(model.name, average.name).estimate.mean, abs=0.02
            )


def test_every_cell_has_its_published_value(public):
    scores, paper = read_layout(public).scores(), paper_scores()
    values = reference_values(scores, paper)
    assert len(values) == 46 * 16
    for (model, dataset), value in values.items():
        assert scores.get(model, dataset).estimate.mean == pytest.approx(value.mean, abs=0.02)


def test_datasets_can_be_chosen(small):
    def names(*only, without=()):
        layout = read_layout(small, DatasetChoice(only, without))
        return [each.name for each in layout.scores().datasets if each.task == "QA"]

    assert names() == ["record", "squad", "squad_v2", "QA Average"]
    assert names(without=("ReCoRD",)) == ["squad", "squad_v2", "QA Average"]
    assert names("QED", "squad") == ["qed", "squad", "QA Average"]
    with pytest.raises(ConfigError, match=r"--dataset qe: .*'qed'"):
        names("qe")
    with pytest.raises(ConfigError, match="no dataset is left"):
        names("qed", without=("qed",))


def test_a_category_without_all_datasets_of_the_paper_is_the_user_s_own(tmp_path):
    for name, score in (("squad", 0.5), ("mine", 0.7)):
        write_cell(tmp_path, f"results/m/QA/{name}", {"1e-4": [score, score]})
    layout = read_layout(tmp_path)
    assert layout.problems == ()
    assert layout.scores().get("m", "QA Average").estimate.mean == pytest.approx(60.0)


def test_every_command_says_what_is_left_out_and_takes_a_choice(small):
    ended = invoke("analyze", small)
    assert LEFT_OUT in ended.stderr.splitlines()
    assert "qed" not in ended.stdout
    chosen = invoke("analyze", small, "--dataset", "qed", "--json")
    assert '"qed"' in chosen.stdout
    assert "left out" not in chosen.stdout
    claims = invoke("claims", small, "--without", "record")
    assert LEFT_OUT in claims.stderr.splitlines()
    assert claims.exit_code == 0
    assert "give either" in str(invoke("claims").exception)
    refused = invoke("claims", "--paper", "--dataset", "qed")
    assert "among the datasets of a folder" in str(refused.exception)


@pytest.mark.usefixtures("drawn")
def test_figures_5_and_7_are_drawn_from_the_raw_runs(tmp_path):
    write_public_results(tmp_path, FIGURE_5)
    for rank, name in enumerate((*FIGURE_7, "610M-mlm20-42k", "610M-mlm30-42k")):
        for dataset in ("sst2", "QQP", "MNLI"):
            tests = {"1e-04": [0.8 + rank / 100], "1e-05": [0.7]}
            write_cell(tmp_path, f"results/{name}/SC/{dataset}", tests)
    result = invoke("figures", tmp_path, "--paper", "--format", "csv", "--format", "svg")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "gallery" / "figures"
    rates = (folder / "learning-rate.csv").read_text()
    assert "qed" not in rates
    assert all(name in rates for name in ("sst2", "squad_v2", "nq"))
    assert {"1e-05", "0.0001"} & {cell for row in rates.splitlines() for cell in row.split(",")}
    assert "clm" in (folder / "mask-rate-sensitivity.csv").read_text().lower()
    assert "needs records of training" in result.stdout
    assert LEFT_OUT in result.stderr.splitlines()


@pytest.mark.parametrize("failing", ["open", "scandir"])
def test_an_error_of_the_system_leaves_no_run_out(small, monkeypatch, failing):
    module = {"open": io, "scandir": os}[failing]
    usual = getattr(module, failing)

    def fail(path=".", *args, **options):
        if "mnli" in str(path).lower():
            raise OSError(24, "Too many open files", str(path))
        return usual(path, *args, **options)

    monkeypatch.setattr(module, failing, fail)
    with pytest.raises(OSError, match="Too many open files"):
        read_layout(small)
