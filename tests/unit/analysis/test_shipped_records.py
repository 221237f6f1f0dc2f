"""Records in docs/: complete, packed as `docs/records.py` packs them, and what README.md quotes."""

import csv
import gzip
import importlib.util
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from biphasic.analysis.records import load_study
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.study_file import read_study

CHECKOUT = Path(__file__).parents[3]
ARCHIVES = sorted(CHECKOUT.glob("docs/*/records.tar.gz"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folders of the shipped studies, beside their store, by archive."""
    folders = {}
    for archive in ARCHIVES:
        root = tmp_path_factory.mktemp("records")
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
        folders[archive] = sorted(record.parent for record in root.glob("*/study.json"))
    return folders


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.parent.name)
def test_shipped_records_are_complete_and_pack_to_the_same_files(unpacked, archive, tmp_path):
    folders = unpacked[archive]
    assert folders
    for folder in folders:
        records = load_study(folder, folder.parent / "store")
        assert records.problems == ()
        assert all(outcome.result is not None for outcome in records.outcomes)
    spec = importlib.util.spec_from_file_location("docs_records", CHECKOUT / "docs/records.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.pack_records(folders, tmp_path / "records.tar.gz")
    packed = tmp_path / "records.tar.gz"
    assert gzip.decompress(packed.read_bytes()) == gzip.decompress(archive.read_bytes())


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart/README.md"])
def test_pages_quote_the_scores_of_the_quickstart(unpacked, page):
    [folder] = unpacked[CHECKOUT / "docs/quickstart/records.tar.gz"]
    scores = study_scores(load_study(folder, folder.parent / "store"))
    estimates = [score.estimate for score in scores.cells.values()]
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    quoted = re.search(r"untrained (.+), MLM (.+), CLM (.+), CLM then MLM (.+)\]\(", text)
    assert quoted.groups() == tuple(f"{each.mean:.1f}" for each in estimates)
    table = re.findall(r"^\W*(?:Untrained|MLM|CLM|CLM then MLM)\W.* (\S+ \(±\S+\))", text, re.M)
    assert table == [f"{each.mean:.2f} (±{each.half_width:.2f})" for each in estimates]


def test_the_quickstart_has_the_best_rates_of_its_trials(unpacked):
    [folder] = unpacked[CHECKOUT / "docs/quickstart/records.tar.gz"]
    arms = {arm.name: arm.record for arm in load_study(folder, folder.parent / "store").arms}
    page = (CHECKOUT / "docs/quickstart/README.md").read_text(encoding="utf-8")
    with (CHECKOUT / "docs/quickstart/rates.csv").open(encoding="utf-8", newline="") as stream:
        trials = list(csv.DictReader(stream))
    assert {trial["name"] for trial in trials} == arms.keys() - {"untrained"}
    for name in arms.keys() - {"untrained"}:
        losses = [(float(trial["loss"]), trial) for trial in trials if trial["name"] == name]
        assert all(f"{loss:.3f}" in page for loss, _ in losses)
        _, best = min(losses, key=lambda pair: pair[0])
        assert (arms[name].state, arms[name].peak) == (best["state"], float(best["peak"]))
        assert arms[name].is_tuned
        assert arms[name].num_trials == len(losses)


WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "datasets"]))
from biphasic.cli.main import app
app(sys.argv[1:])
"""


def run_python(*arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_pages_have_the_answers_of_reports_that_are_rebuilt_without_torch(unpacked):
    asked = [
        (archive.with_name("README.md").read_text(encoding="utf-8"), folder)
        for archive, folders in unpacked.items()
        for folder in folders
        if read_study(folder).questions
    ]
    assert asked
    for page, folder in asked:
        command = ("-c", WITHOUT_TORCH, "study", "report", folder)
        run_python(*command)
        report = (folder / "report/report.html").read_text(encoding="utf-8")
        drawn = "each recipe" if folder.name == "survives" else "each of the 8 best"
        assert f"first run of {drawn}" in " ".join(report.split())
        answers = run_python(*command, "--markdown")
        assert f"<!-- answers of {folder.name} -->\n\n{answers}<!-- end -->" in page


@pytest.mark.slow
def test_the_replication_is_rebuilt_from_its_records_without_torch(unpacked):
    page = CHECKOUT / "docs/replication/README.md"
    studies = unpacked[page.with_name("records.tar.gz")]
    options = ("--by-pretraining", "--every-dataset", "--format", "png")
    for folder in studies:
        run_python("-c", WITHOUT_TORCH, "study", "report", folder)
        run_python("-c", WITHOUT_TORCH, "figures", folder, *options)
        assert "3 pretraining runs" in (folder / "report/report.html").read_text(encoding="utf-8")
    for figure in re.findall(r"\]\((figures/.+?)\)", page.read_text(encoding="utf-8")):
        rebuilt = [file for folder in studies for file in folder.glob(f"gallery/{figure}")]
        assert (page.parent / figure).read_bytes() in [file.read_bytes() for file in rebuilt]
