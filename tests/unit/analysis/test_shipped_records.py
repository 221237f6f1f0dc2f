"""Records in evidence/: complete, packed as `records.py` packs them, and as README.md quotes."""

import csv
import importlib.util
import json
import lzma
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import biphasic
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.study_file import read_study
from mini_study import once
from warm import render_nothing

CHECKOUT = Path(__file__).parents[3]
ARCHIVES = sorted(CHECKOUT.glob("evidence/*/records.tar.xz"))
NUMBERS = CHECKOUT / "tests/golden/studies"  # BIPHASIC_RECORD=1 writes them


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory, worker_id):
    """The folders of the shipped studies, beside their store, by archive."""

    def unpack(folder):
        for archive in ARCHIVES:
            with tarfile.open(archive) as tar:
                tar.extractall(folder / archive.parent.name, filter="data")

    root = once(tmp_path_factory, worker_id, "shipped records", unpack)
    return {
        archive: sorted(file.parent for file in root.glob(f"{archive.parent.name}/*/study.json"))
        for archive in ARCHIVES
    }


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.parent.name)
def test_shipped_records_are_complete_and_pack_to_the_same_files(unpacked, archive, tmp_path):
    folders = unpacked[archive]
    assert folders
    for folder in folders:
        records = load_records(folder)
        assert records.problems == ()
        assert all(run in records.results for run in records.runs)
    spec = importlib.util.spec_from_file_location("docs_records", CHECKOUT / "evidence/records.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with (tmp_path / "records.tar").open("wb") as packed:
        module.write_records(folders, packed)
    assert (tmp_path / "records.tar").read_bytes() == lzma.decompress(archive.read_bytes())


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(each, marks=() if each.parent.name == "quickstart" else pytest.mark.slow)
        for each in ARCHIVES
    ],
    ids=lambda path: path.parent.name,
)
def test_notebooks_show_what_is_computed_from_shipped_records(unpacked, archive, tmp_path):
    for folder in unpacked[archive]:
        analysis = biphasic.analyze(folder)
        shown = analysis._repr_html_()
        models = analysis.scores.models
        assert shown.count("<svg") == (len(models) <= 40)
        scores, means = analysis.scores, analysis.means
        assert len(means) == len(scores.cells) + len(scores.baseline_cells)
        if len(means) <= 60:  # longer tables are cut
            assert shown.count("<tr") == 1 + len(means)
        frame, known = analysis.frame, means.set_index(["model", "dataset"])["mean"].dropna()
        tests = frame[frame.is_selected & (frame.split == "test")]
        of_runs = tests.groupby(["model", "dataset"]).value.mean()
        averages = known.index.get_level_values("dataset").str.endswith(" Average")
        assert of_runs.to_dict() == pytest.approx(known[~averages].to_dict())
        assert "<table" in biphasic.claims(folder)._repr_html_()
        compared = biphasic.compare(folder)
        assert ("<table" in compared._repr_html_()) == bool(list(compared.results()))
        drawn = biphasic.figures(folder, tmp_path / folder.name, formats=["csv"])
        assert drawn._repr_html_().count("<svg") == len(drawn.drawn)


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(each, marks=() if each.parent.name == "quickstart" else pytest.mark.slow)
        for each in ARCHIVES
    ],
    ids=lambda path: path.parent.name,
)
def test_comparisons_answers_and_verdicts_of_shipped_studies_stay(unpacked, archive, monkeypatch):
    render_nothing(monkeypatch)
    for folder in unpacked[archive]:
        report = biphasic.report_study(folder).parent
        claims = biphasic.claims(folder, by_pretraining=False)
        verdicts = "".join(f"{one['id']},{one['verdict']}\n" for one in claims.table())
        tables = {"comparisons": (report / "comparisons.csv").read_text("utf-8"),
                  "questions": "", "verdicts": f"claim,verdict\n{verdicts}"}  # fmt: skip
        if (report / "questions.csv").is_file():
            tables["questions"] = (report / "questions.csv").read_text("utf-8")
        shutil.rmtree(report)  # it has no figures
        for name, table in tables.items():
            path = NUMBERS / f"{folder.name}.{name}.csv"
            if os.environ.get("BIPHASIC_RECORD") and table:
                path.write_text(table, encoding="utf-8")
            known = path.read_text("utf-8") if path.is_file() else ""
            assert alike(table, known), f"{path.name} has other rows than the report"


def alike(table, known):
    """Whether two CSV texts have the same cells; numbers may differ by rounding."""
    tables = [list(csv.reader(text.splitlines())) for text in (table, known)]
    shapes = [[len(row) for row in rows] for rows in tables]
    return shapes[0] == shapes[1] and all(
        same(*cells) for rows in zip(*tables, strict=True) for cells in zip(*rows, strict=True)
    )


def same(cell, known):
    try:
        return math.isclose(float(cell), float(known), rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return cell == known


@pytest.mark.parametrize("page", ["README.md", "evidence/quickstart/README.md"])
def test_pages_quote_the_scores_of_the_quickstart(unpacked, page):
    [folder] = unpacked[CHECKOUT / "evidence/quickstart/records.tar.xz"]
    scores = study_scores(load_records(folder))
    estimates = [score.estimate for score in scores.cells.values()]
    [dictionary] = (score.estimate.mean for score in scores.baseline_cells.values())
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    quoted = re.search(
        r"untrained (.+), MLM (.+), CLM (.+), CLM then MLM (.+), and a dictionary (.+)\]\(", text
    )
    means = [*(each.mean for each in estimates), dictionary]
    assert quoted.groups() == tuple(f"{mean:.1f}" for mean in means)
    table = re.findall(r"^\W*(?:Untrained|MLM|CLM|CLM then MLM)\W.* (\S+ \(±\S+\))", text, re.M)
    assert table == [f"{each.mean:.2f} (±{each.half_width:.2f})" for each in estimates]


def test_the_quickstart_has_the_best_rates_of_its_trials(unpacked):
    [folder] = unpacked[CHECKOUT / "evidence/quickstart/records.tar.xz"]
    arms = {arm.name: arm.record for arm in load_records(folder).arms}
    page = (CHECKOUT / "evidence/quickstart/README.md").read_text(encoding="utf-8")
    with (CHECKOUT / "evidence/quickstart/rates.csv").open(encoding="utf-8", newline="") as stream:
        trials = list(csv.DictReader(stream))
    assert {trial["name"] for trial in trials} == arms.keys() - {"untrained"}
    for name in arms.keys() - {"untrained"}:
        losses = [(float(trial["loss"]), trial) for trial in trials if trial["name"] == name]
        assert all(f"{loss:.3f}" in page for loss, _ in losses)
        _, best = min(losses, key=lambda pair: pair[0])
        assert (arms[name].state, arms[name].peak) == (best["state"], float(best["peak"]))
        assert arms[name].is_tuned
        assert arms[name].num_trials == len(losses)


# Prints what each command prints; those of the first list draw nothing.
WITHOUT_TORCH = """
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "datasets"]))
import pytest
from biphasic.cli.main import app
from warm import draw_nothing

def run(arguments):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        app(arguments, standalone_mode=False)
    return printed.getvalue()

reports, figures = json.loads(sys.argv[1])
with pytest.MonkeyPatch.context() as patch:
    draw_nothing(patch)
    printed = [run(arguments) for arguments in reports]
json.dump([*printed, *map(run, figures)], sys.__stdout__)
"""


@pytest.mark.slow
def test_pages_have_the_answers_and_figures_of_reports_that_are_rebuilt_without_torch(
    unpacked, drawn, warm
):
    asked = {
        folder: archive.with_name("README.md")
        for archive, folders in unpacked.items()
        for folder in folders
        if read_study(folder).questions
    }
    replication = CHECKOUT / "evidence/replication/README.md"
    replications = unpacked[replication.with_name("records.tar.xz")]
    answers = [["study", "report", str(folder), "--markdown"] for folder in asked]
    [embeddings] = unpacked[CHECKOUT / "evidence/embeddings/records.tar.xz"]  # many recipes
    report = ["study", "report", str(embeddings)]
    options = ("--by-pretraining", "--every-dataset", "--format", "png")
    figures = [["figures", str(folder), *options] for folder in replications]
    ended = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_TORCH, json.dumps([[*answers, report], figures])],
        capture_output=True,
        text=True,
        check=True,
    )
    for (folder, page), answer in zip(asked.items(), json.loads(ended.stdout), strict=False):
        assert f"<!-- answers of {folder.name} -->\n\n{answer}<!-- end -->" in page.read_text(
            "utf-8"
        )
    page = " ".join((embeddings / "report/report.html").read_text("utf-8").split())
    assert "first run of each of the 8 best" in page
    assert "squared distance per text" in page
    assert "3 pretraining runs" in page
    for figure in re.findall(r"\]\((figures/.+?)\)", replication.read_text("utf-8")):
        rebuilt = [file for folder in replications for file in folder.glob(f"gallery/{figure}")]
        assert (replication.parent / figure).read_bytes() in [file.read_bytes() for file in rebuilt]
