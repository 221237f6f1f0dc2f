import base64
import csv
import errno
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest
from fake_study import ARMS, TASKS, FakeStudy, seal_again
from hostile import HOSTILE, NUM_NAMES, SIGNS, TRICKS, hostile_study
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from biphasic.analysis import report
from biphasic.analysis.page.render import render as render_with_link
from biphasic.analysis.records import load_records
from biphasic.analysis.report import write_report
from biphasic.analysis.tables.results import format_table, results_csv, rows_statement, table_csv
from biphasic.analysis.text import plain
from biphasic.store import MANIFEST

pytestmark = pytest.mark.slow

KNOWN_TAGS = frozenset(
    """a abbr article b bdi body button circle clippath code dd defs details dialog div dl dt
    figcaption figure footer g h1 h2 h3 head header html li line main meta nav p path rect script
    section small span strong style summary svg table tbody td text th thead title tr tspan ul
    use""".split()  # noqa: SIM905 - one line of words reads better than fifty quoted ones
)
VOID = {"meta", "link", "br", "img", "input", "hr"}


def render(records):
    return render_with_link(records, store="../../store")


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.styles: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        kept = {"style": self.styles, "script": self.scripts}.get(inside, self.text)
        kept.append(data)

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return FakeStudy(steps=40).write(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def page(good):
    return Page(render(load_records(*good)))


@pytest.mark.usefixtures("drawn")
def test_the_report_folder_holds_the_page_results_and_figures(tmp_path):
    study = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1]).write(tmp_path)
    path = write_report(*study)
    folder = path.parent
    assert path == study[0] / "report" / "report.html"
    assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*")) == [
        "comparisons.csv", "figures/learning-rates.png", "figures/learning-rates.svg",
        "figures/loss.png", "figures/loss.svg", "figures/scores.png", "figures/scores.svg",
        "made-from.json", "problems.csv", "report.html", "results.csv", "table.csv",
    ]  # fmt: skip
    first = {file: file.read_bytes() for file in folder.rglob("*.*")}
    (folder / "table.csv").unlink()
    write_report(*study)
    assert {file: file.read_bytes() for file in folder.rglob("*.*")} == first


def test_a_report_is_written_again_when_a_record_or_a_file_of_it_changed(tmp_path, monkeypatch):
    folder, store = FakeStudy(steps=20, arms=ARMS[1:2], tasks=TASKS[:1]).write(tmp_path)
    written = []

    def write(page, *_):
        written.append(page)
        page.parent.mkdir(exist_ok=True)
        page.write_text("page")

    monkeypatch.setattr(report, "_write", write)
    monkeypatch.setattr(report, "_running", report._running.__wrapped__)  # in each process anew
    state, other = sorted(store.glob("states/*/state.json"))[0], store / "states/other"
    result = sorted(store.glob("finetunes/*/result.json"))[0]
    other.mkdir()
    result.with_name("link").symlink_to("nowhere")  # hides no change of the other files
    for change in (
        lambda: None,  # there is no report yet
        state.unlink,
        lambda: result.write_text("other"),
        lambda: result.with_name("scores.parquet").write_bytes(b"new"),
        lambda: (folder / "report/report.html").write_text("egap"),
        (folder / "report/made-from.json").unlink,
        lambda: monkeypatch.setattr(report, "version", str.upper),
    ):
        change()
        assert not report.is_current(folder, store)
        written.clear()
        for _ in range(2):
            assert report.write_report(folder, store) == folder / "report/report.html"
            (other / "state.json").write_text("of no arm")
        assert len(written) == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("result.json", errno.EIO),
        ("state.json", errno.EMFILE),
        ("metrics.jsonl", errno.EACCES),
        ("manifest.json", errno.EIO),
        ("study.json", errno.EMFILE),
    ],
)
def test_an_error_of_the_system_stops_a_report_and_is_never_stored(
    tmp_path, monkeypatch, code, name
):
    study = FakeStudy(steps=20, arms=ARMS[1:2], tasks=TASKS[:1]).write(tmp_path)
    usual, raised = io.open, []

    def fail_once(path, *args, **options):
        if str(path).endswith(f"/{name}") and not raised:
            raised.append(path)
            raise OSError(code, os.strerror(code), str(path))
        return usual(path, *args, **options)

    monkeypatch.setattr(io, "open", fail_once)
    with pytest.raises(OSError, match=os.strerror(code)):
        write_report(*study)
    assert not report.is_current(*study)
    page = write_report(*study)
    assert (page.parent / "problems.csv").read_text().splitlines() == ["kind,text"]
    assert report.is_current(*study)


@pytest.mark.parametrize("failing", ["scandir", "stat"])
def test_an_error_of_the_system_is_no_input_of_a_report(tmp_path, monkeypatch, failing):
    study = FakeStudy(steps=20, arms=ARMS[1:2], tasks=TASKS[:1]).write(tmp_path)

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    if failing == "scandir":
        monkeypatch.setattr(os, "scandir", fail)
    else:
        entry = SimpleNamespace(name="result.json", stat=fail)
        monkeypatch.setattr(os, "scandir", lambda _: nullcontext([entry]))
    with pytest.raises(OSError, match="Input/output error"):
        report.is_current(*study)


def test_the_page_needs_nothing_from_elsewhere(page):
    for tag, attrs in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "foreignobject", "form", "base"}
        for name, value in attrs.items():
            assert not name.startswith("on")
            if name in {"src", "href", "xlink:href"}:
                assert re.match(r"#|\w+\.csv$|\.\./\.\./store/states/\w+/", value)
    assert "@import" not in "".join(page.styles)
    assert "url(" not in "".join(page.styles)


def test_the_policy_allows_the_pages_own_script_and_no_other(page):
    assert page.named("script") == [{"type": "application/json", "id": "data"}, {}]
    json.loads(page.scripts[0])
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    (policy,) = (
        attrs["content"] for attrs in page.named("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )  # fmt: skip
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_page_is_accessible(page):
    assert page.named("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all("scope" in attrs for attrs in page.named("th"))
    figures = [attrs for attrs in page.named("svg") if "viewbox" in attrs]
    assert len(figures) == 4 + 4 + 1 + len(TASKS)
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in figures)


def test_every_number_has_its_runs_and_every_run_its_record(good, page):
    data = json.loads(page.scripts[0])
    records = load_records(*good)
    cells = {int(attrs["data-cell"]) for attrs in page.named("button") if "data-cell" in attrs}
    assert cells == set(range(len(ARMS) * len(TASKS))) == set(range(len(data["cells"])))
    for number, (arm, task) in enumerate((arm, task) for arm in records.arms for task in TASKS):
        runs = data["cells"][number]["runs"]
        by_id = {run.id: run for run in records.by_cell[arm.name, task[0]]}
        assert {run[-1] for run in runs} == by_id.keys()
        for seed, rate, status, validation, test, _, identity in runs:
            run = by_id[identity]
            assert (seed, data["status"][status]) == (run.seed, "finished")
            assert float(data["rates"][rate]) == run.learning_rate
            shares = records.scores_of(run, task[3])
            assert [validation, test] == [round(100 * share, 2) for share in shares]
        assert sum(run[5] for run in runs) == 5
    page_folder = good[0] / "report"
    path = page_folder / data["records"] / data["cells"][0]["runs"][0][-1] / "result.json"
    assert path.resolve().is_file()
    states = [attrs["href"] for attrs in page.named("a") if "/states/" in attrs["href"]]
    assert len(states) == 2 * len({s for arm in records.arms for s in arm.record.segments})
    assert all((page_folder / state).resolve().is_file() for state in states)


def test_ids_are_unique_and_references_resolve(page):
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [value for _, attrs in page.tags for name, value in attrs.items()
               if name in {"href", "xlink:href"} and value.startswith("#")]  # fmt: skip
    clips = [attrs["clip-path"][4:-1] for _, attrs in page.tags if "clip-path" in attrs]
    assert clips
    assert {target[1:] for target in (*targets, *clips)} <= set(ids)


@pytest.mark.usefixtures("drawn")
def test_figures_use_the_pages_colours_and_no_fixed_ones(good):
    html = render(load_records(*good))
    figures = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert "var(--series-1)" in figures
    assert re.findall(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b(?=[;\"])", figures) == []
    assert 'fill="black"' not in figures


def test_the_scores_on_the_page_are_those_of_the_table(good, page):
    text = " ".join("".join(page.text).split())
    rows = list(csv.DictReader(io.StringIO(table_csv(load_records(*good)))))
    scores = [row for row in rows if row["half_width"] and row["metric"] != "exact_match"]
    assert len(scores) == len(ARMS) * len(TASKS)
    for row in scores:
        cell = f"{100 * float(row['mean']):.2f} (±{100 * float(row['half_width']):.2f})"
        assert cell in text
    assert "5 seeds per cell; convention 'standard' (Student's t)." in text
    assert "All 4 trained arms read the same rows in the same order" in text


def test_rows_are_compared_among_arms_of_the_same_data_seed(tmp_path):
    folder, store = FakeStudy(steps=40, arms=ARMS[1:], tasks=TASKS[:1]).write(tmp_path)
    record = json.loads((folder / "study.json").read_text())

    def statement(*seeds):
        for arm, seed in zip(record["arms"], seeds, strict=True):
            arm["seeds"] = {"data_seed": seed}
        (folder / "study.json").write_text(json.dumps(record))
        return rows_statement(load_records(folder, store))

    for arm in record["arms"][2:]:
        path = store / "states" / arm["state"] / "state.json"
        path.write_text(re.sub(r'(?<="rows_sha256": )"\w+"', f'"{"f" * 64}"', path.read_text()))
        seal_again(path.parent)
    assert statement(1, 1, 1, 1)[0] is False
    assert statement(1, 1, 2, 1)[0] is False
    agrees, sentence = statement(1, 1, 2, 2)
    assert agrees
    assert "data seed" in sentence
    assert "ffffffffffff" in sentence
    agrees, sentence = statement(1, 2, 3, 4)
    assert agrees
    assert "read the same rows" not in sentence


def test_results_csv_has_one_row_per_run_and_reads_back_exactly(good):
    records = load_records(*good)
    rows = list(csv.DictReader(io.StringIO(results_csv(records))))
    pretraining = [row for row in rows if row["task"] == "pretraining"]
    runs = [row for row in rows if row["task"] != "pretraining"]
    assert len(pretraining) == len(ARMS) * 2
    assert len(runs) == 5 * 4 * 3 * 5
    assert sum(row["selected"] == "true" for row in runs) == 5 * 4 * 5
    expected = {(r.arm, r.task, r.learning_rate, r.seed): r for r in records.runs}
    for row in runs:
        key = (row["arm"], row["task"], float(row["learning_rate"]), int(row["seed"]))
        validation, test = records.scores_of(expected[key], row["metric"])
        assert (float(row["validation"]), float(row["test"])) == (validation, test)
    assert float(pretraining[0]["test"]) == 9.01


def test_results_csv_knows_no_times_paths_or_order_of_records(good, tmp_path):
    folder, store = FakeStudy(steps=40).write(tmp_path / "elsewhere")
    for path in store.glob("*/*/*.json"):
        if path.name != MANIFEST:
            path.write_text(re.sub(r'"seconds": [\d.e-]+', '"seconds": 99.0', path.read_text()))
            seal_again(path.parent)
    assert results_csv(load_records(folder, store)) == results_csv(load_records(*good))


def test_runs_without_scores_have_empty_fields_and_are_never_selected(tmp_path):
    study = FakeStudy(
        steps=40, arms=ARMS[1:2], tasks=TASKS[:1], seeds=(0,), learning_rates=(1e-4, 2e-4, 5e-4),
        missing={("mlm", "pydocs-sc", 1e-4, 0)}, diverged={("mlm", "pydocs-sc", 2e-4, 0)},
    )  # fmt: skip
    lines = results_csv(load_records(*study.write(tmp_path))).splitlines()
    assert lines[-3] == "mlm,pydocs-sc,accuracy,0.0001,0,missing,false,,"
    assert lines[-2] == "mlm,pydocs-sc,accuracy,0.0002,0,diverged,false,,"
    assert lines[-1].startswith("mlm,pydocs-sc,accuracy,0.0005,0,finished,true,0.")


def visible(text):
    """Return a name as a page shows it."""
    return " ".join(plain(text).split())


def assert_shown(html, names):
    page = Page(html)
    assert len(page.named("script")) == 2
    assert {tag for tag, _ in page.tags} <= KNOWN_TAGS
    assert not {name for _, attrs in page.tags for name in attrs if name.startswith("on")}
    text = " ".join("".join(page.text).split())
    for name in names[:-2]:  # names of provenance lose their underscores
        assert visible(name) in text
    data = json.loads(page.scripts[0])
    assert [visible(label) for label in data["arms"][1:]] == [visible(n) for n in names[2:4]]


@pytest.mark.usefixtures("drawn")
def test_hostile_names_are_text_everywhere(tmp_path):
    folder, store = hostile_study([HOSTILE] * NUM_NAMES).write(tmp_path)
    html = write_report(folder, store).read_text(encoding="utf-8")
    assert_shown(html, [HOSTILE] * NUM_NAMES)
    text = "".join(Page(html).text)
    assert "<img src=x onerror=alert(1)> $\\frac{1}$ 漢字 \ufffd" in text
    assert "\x00" not in html
    terminal = io.StringIO()
    Console(file=terminal, width=200).print(format_table(load_records(folder, store)))
    assert "[bold]" in terminal.getvalue()


def test_tables_have_no_characters_that_steer_a_terminal(tmp_path):
    name = "\x1b]0;owned\x07\u202egnp.exe\x9b2J\r"
    arms = ((name, name, "MLM", (("mlm", 1.0),), 0.1),)
    tasks = ((name, "sc", name, "accuracy", 0.5),)
    folder, store = FakeStudy(steps=20, arms=arms, tasks=tasks, learning_rates=(1e-4,)).write(
        tmp_path
    )
    page = write_report(folder, store)
    for file in ("results.csv", "table.csv", "problems.csv"):
        text = (page.parent / file).read_bytes().decode()
        assert all(c.isprintable() or c == "\n" for c in text), file
    results = (page.parent / "results.csv").read_text(encoding="utf-8")
    [row, *_] = csv.DictReader(io.StringIO(results))
    assert row["arm"] == r"\u001b]0;owned\u0007\u202egnp.exe\u009b2J\u000d"


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    st.text(SIGNS, min_size=1, max_size=300),
    st.sampled_from(TRICKS),
)  # fmt: skip


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TEXTS, min_size=NUM_NAMES, max_size=NUM_NAMES))
@pytest.mark.usefixtures("drawn")
def test_any_text_may_be_a_name(tmp_path_factory, names):
    study = hostile_study(names, missing={("evil", "pydocs-sc", 1e-4, 1)})
    assert_shown(render(load_records(*study.write(tmp_path_factory.mktemp("any")))), names)


def test_what_is_half_written_not_a_number_or_doubled_is_named_and_left_out(tmp_path):
    study = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1], learning_rates=(1e-4,))
    folder, store = study.write(tmp_path)
    record = json.loads((folder / "study.json").read_text())
    half, unreal, *_ = (store / "finetunes" / run["id"] / "result.json" for run in record["runs"])
    half.write_text(half.read_text()[:100])
    seal_again(half.parent)
    score = re.compile(r'("test": {"accuracy": )[\d.]+')
    unreal.write_text(score.sub(r"\1NaN", unreal.read_text()))
    seal_again(unreal.parent)
    record["runs"].append(record["runs"][2])
    (folder / "study.json").write_text(json.dumps(record))
    page = Page(render(load_records(folder, store)))
    text = " ".join("".join(page.text).split())
    where = "mlm on pydocs-sc, learning rate 1e-4, seed"
    assert f"{where} 0: " in text
    assert f"{where} 1: " in text
    assert f"{where} 2: listed twice" in text
    assert "Damaged (3)" in text
    assert "† 3 of 5 seeds, runs missing" in text
    runs = json.loads(page.scripts[0])["cells"][0]["runs"]
    assert [run[5] for run in runs] == [0, 0, 1, 1, 1]
    results = [store / "finetunes" / run[-1] / "result.json" for run in runs if run[5]]
    tests = [json.loads(path.read_text())["test"]["accuracy"] for path in results]
    assert f"{100 * sum(tests) / 3:.2f} (±" in text


def test_a_study_before_any_run_still_has_a_report(tmp_path):
    folder, store = FakeStudy(steps=40, learning_rates=(1e-4,)).write(tmp_path)
    for path in store.rglob("*.json*"):
        path.unlink()
    assert "Nothing to compare" in write_report(folder, store).read_text(encoding="utf-8")


def test_analysis_imports_neither_torch_nor_pyplot():
    code = (
        "import sys, biphasic.analysis.page.render;"
        "print([m for m in ('torch', 'transformers', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
