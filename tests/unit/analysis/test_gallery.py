"""Files of tables and figures, and the commands that write them."""

import csv
import hashlib
import re
from pathlib import Path

import pytest
from fake_study import FakeStudy
from grid_scores import grid_models, grid_scores
from typer.testing import CliRunner

from biphasic.analysis.figures.catalog import score_figures
from biphasic.analysis.figures.chart import Skipped
from biphasic.analysis.figures.runs import run_figures
from biphasic.analysis.page.gallery import FORMATS, chosen_formats, write_gallery
from biphasic.analysis.scores.source import paper_scores
from biphasic.cli.main import app
from biphasic.errors import ConfigError

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs" / "report.md"
SIGNATURES = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-1"}


def hashes(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


@pytest.mark.usefixtures("drawn")
def test_each_figure_comes_in_each_format_with_its_points(tmp_path):
    [chart, *_] = score_figures(grid_scores())
    gallery = write_gallery(tmp_path, grid_scores(), [chart])
    for ending, signature in SIGNATURES.items():
        assert (tmp_path / f"figures/size.{ending}").read_bytes().startswith(signature)
    rows = [*csv.DictReader((tmp_path / "figures/size.csv").read_text("utf-8").splitlines())]
    assert len(rows) == len(chart.points)
    assert {path.relative_to(tmp_path).as_posix() for path in gallery.paths} == set(
        hashes(tmp_path)
    )


def test_the_list_has_every_caption_and_every_reason(tmp_path):
    figures = [*score_figures(grid_scores([m for m in grid_models() if m.size == "small"]))]
    write_gallery(tmp_path, grid_scores(), figures, formats=["svg"])
    text = (tmp_path / "figures.md").read_text("utf-8")
    for name in re.findall(r"\((figures/[^)]*)\)", text):
        assert (tmp_path / name).is_file()
    for figure in figures:
        if isinstance(figure, Skipped):
            assert f"- {figure.title}: {figure.reason}" in text
        else:
            assert f"(figures/{figure.name}.svg)" in text
    assert sum(isinstance(figure, Skipped) for figure in figures) == 2


def test_the_files_of_a_skipped_figure_are_deleted(tmp_path):
    [chart, *_] = score_figures(grid_scores())
    write_gallery(tmp_path, grid_scores(), [chart], formats=["svg"])
    assert (tmp_path / "figures/size.svg").is_file()
    write_gallery(tmp_path, grid_scores(), [Skipped("size", "A", "no")], formats=["svg"])
    assert not [*(tmp_path / "figures").iterdir()]


def test_an_unknown_format_is_named():
    assert chosen_formats(None) == frozenset(FORMATS)
    assert chosen_formats(["md"]) == {"md"}
    with pytest.raises(ConfigError, match="--format gif: unknown; choose from md"):
        chosen_formats(["md", "gif"])


@pytest.mark.usefixtures("drawn")
def test_biphasic_paper_writes_tables_and_lists_skipped_figures(tmp_path):
    result = run("paper", "--out", tmp_path / "p", "--format", "csv", "--format", "svg")
    assert result.exit_code == 0
    assert set(hashes(tmp_path / "p")) == {"tables.csv", "figures.md"} | {
        f"figures/{name}.{ending}" for ending in ("svg", "csv")
        for name in ("size", "mask-rate", "step", "clm-share", "continued-budget",
                     "continued-steps")
    }  # fmt: skip
    assert len((tmp_path / "p/tables.csv").read_text("utf-8").splitlines()) == 801
    missing = re.findall("^skipped: (.*?): ", result.output, re.MULTILINE)
    assert len(missing) == 5
    assert "Losses of continued training" in missing


@pytest.mark.usefixtures("drawn")
def test_biphasic_figures_writes_what_a_study_supports(tmp_path):
    study, _ = FakeStudy(steps=40, seeds=(0, 1)).write(tmp_path)
    arguments = ("figures", study, "--format", "md", "--format", "png")
    result = run(*arguments)
    assert result.exit_code == 0
    assert (study / "gallery/figures/learning-rate.png").is_file()
    text = (study / "gallery/tables.md").read_text("utf-8")
    assert "CLM 25 % then MLM 75 %" in text
    assert "Student's t" in text
    before = hashes(study / "gallery")
    assert run(*arguments).exit_code == 0
    assert hashes(study / "gallery") == before
    elsewhere = tmp_path / "elsewhere"
    options = ("--format", "md", "--format", "csv", "--convention", "paper", "--paper")
    result = run("figures", study, "--out", elsewhere, *options)
    assert "no dataset and metric of these results match the reference study" in result.output
    assert "1.96 standard errors" in (elsewhere / "tables.md").read_text("utf-8")
    rows = csv.DictReader((elsewhere / "tables.csv").read_text("utf-8").splitlines())
    assert {row["reference_mean"] for row in rows} == {""}


@pytest.mark.usefixtures("drawn")
def test_the_documented_example_runs(tmp_path, monkeypatch, capsys):
    study, _ = FakeStudy(steps=40, seeds=(0, 1)).write(tmp_path)
    block = re.search(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)[1]
    assert "runs/my-study" in block
    block = block.replace("runs/my-study", str(study))
    monkeypatch.chdir(tmp_path)
    exec(block, {})  # noqa: S102 - our own documentation
    # The made-up study has models of one size, or of none that is known.
    assert "two model sizes" in capsys.readouterr().out


def test_every_figure_is_documented():
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", DOCS.read_text("utf-8"), re.MULTILINE))
    made = {figure.name for figure in score_figures(grid_scores())}
    made |= {figure.name for figure in run_figures(paper_scores())}
    # Of studies with several optimizers, or numbers of training examples.
    made |= {"labels", "train-examples"}
    assert documented == made - {"clm-share-large"}
