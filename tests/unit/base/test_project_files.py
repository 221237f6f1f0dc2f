"""Files beside the source that people and programs read first."""

import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import biphasic
from biphasic import records
from biphasic.cli.main import app
from biphasic.study.pins import Pin
from biphasic.tasks.records import HeadRecord

TOP = Path(__file__).parents[3]


def text(name: str) -> str:
    return (TOP / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt", "docs/index.md"]
)
def test_links_lead_to_files(name):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text(name))
    files = [link for link in links if "://" not in link]
    assert files
    assert [file for file in files if not ((TOP / name).parent / file).exists()] == []


def test_llms_lists_every_guide_and_no_unknown_command():
    listed = text("llms.txt")
    pages = {f"docs/{page.name}" for page in (TOP / "docs").glob("*.md")} - {"docs/index.md"}
    assert {page for page in pages if page not in listed} == set()
    commands = get_command(app)
    sentence = listed[listed.index("- Commands:") : listed.index("- In Python:")]
    for command in re.findall(r"`([a-z ]+)`", sentence):
        level = commands
        for part in command.split():
            assert part in level.commands, command
            level = level.commands[part]
    calls = set(re.findall(r"`(?:biphasic\.)?([a-z_]+)`", listed[listed.index("- In Python:") :]))
    assert calls <= set(biphasic.__all__)
    assert set(biphasic.__all__) - {"__version__"} <= calls


@pytest.mark.parametrize(
    "record",
    [
        records.ArmRecord,
        HeadRecord,
        records.HeldoutLine,
        Pin,
        records.ProbeRecord,
        records.RegistrationRecord,
        records.ResultRecord,
        records.StateRecord,
        records.StudyRecord,
        records.TrainingLine,
    ],
    ids=lambda record: record.__name__,
)
def test_the_page_of_formats_names_every_field(record):
    words = set(re.findall(r"\w+", text("docs/formats.md")))
    assert set(record.model_fields) - words == set()


def test_architecture_names_files_that_exist():
    page = text("docs/architecture.md")
    source = TOP / "src/biphasic"
    assert len(named := set(re.findall(r"`([a-z0-9_/]+\.py)`", page))) > 50
    assert {name for name in named if not [*source.rglob(name)]} == set()
    # Packages and their folders, as the first two columns of the table.
    rows = re.findall(r"(?m)^\| (?:`(\w+)`)? ?\| ((?:`[\w.]+`(?:, )?)*) \|", page)
    package, places = "", 0
    for first, second in rows:
        package = first or package
        for place in re.findall(r"`([\w.]+)`", second):
            places += 1
            assert (source / package / place).exists(), f"{package}/{place}"
    assert places > 50


def test_mutations_are_of_texts_that_the_source_has_once():
    mutations = yaml.safe_load(text("tests/mutations/mutations.yaml"))
    places = [(each["file"], each["before"]) for each in mutations]
    assert [place for place in places if text(f"src/{place[0]}").count(place[1]) != 1] == []
    assert [each for each in mutations if not (TOP / "tests" / each["tests"]).is_file()] == []


def test_citation_has_the_version():
    assert yaml.safe_load(text("CITATION.cff"))["version"] == biphasic.__version__


def test_workflows_and_ci_run_targets_that_exist():
    targets = set(re.findall(r"(?m)^([a-z-]+):", text("Makefile")))
    workflow = yaml.safe_load(text(".github/workflows/check.yml"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["run"].split() for step in steps if "run" in step]
    assert used
    for words in used:
        assert words[0] == "make"
        assert set(words[1:]) <= targets


@pytest.mark.parametrize(
    "path",
    sorted(TOP.glob("evidence/**/*.csv")),
    ids=lambda path: path.name,
)
def test_tables_beside_pages_have_rows(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) > 1
