"""Tables written as Markdown, LaTeX, HTML and CSV and read back, by readers that are not ours."""

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from grid_scores import DATASETS, grid_models, grid_scores
from markdown_it import MarkdownIt

import biphasic
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import Score
from biphasic.analysis.tables.markup import make_sheets, to_csv, to_html, to_latex, to_markdown

SHIPPED = Path(biphasic.__file__).parent / "analysis" / "reference" / "results.csv"
PARSED = Path(__file__).parents[4] / "shared" / "paper" / "results.csv"
HOSTILE = (
    "<script>alert('x')</script>",
    r"\textbf{$\frac{1}{0}$} & 100 % #1 _x^y~z -- `a` \\",
    "| a | b |",
    "[link](http://example.com) www.example.com <b>bold</b> **bold** &amp;",
    "\u202egnp.exe \u2066 right to left",
    "日本語 العربية 🎈",
    "x" * 300,
    "line\nbreak\ttab\x00\x1b[31m",
)


def shown(text):
    """Return what a hostile name should read like: no controls, one line."""
    text = re.sub("[\x00\x1b\u202e\u2066]", "\ufffd", text)
    return " ".join(text.split())


class Tables(HTMLParser):
    """Collects the cells of HTML tables."""

    def __init__(self):
        super().__init__()
        self.tables, self._cell, self.tags = [], None, Counter()

    def handle_starttag(self, tag, attrs):  # noqa: ARG002
        self.tags[tag] += 1
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell = ""

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self.tables[-1][-1].append(self._cell.strip())
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data


def html_tables(page):
    reader = Tables()
    reader.feed(page)
    return reader


def markdown_tables(text):
    """Read tables as GitHub would; empty rows between blocks are dropped."""
    reader = html_tables(MarkdownIt("commonmark").enable("table").render(text))
    return [[row for row in table if any(row)] for table in reader.tables]


LATEX = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^",
    r"\textless{}": "<", r"\textgreater{}": ">", r"\textbar{}": "|", r"\textquotedbl{}": '"',
    r"\textasciigrave{}": "`", r"\textquotesingle{}": "'", r"\textendash{}": "–",
    r"$\approx$": "≈", r"\textdagger{}": "†", r"\{": "{", r"\}": "}", r"\#": "#", r"\$": "$",
    r"\%": "%", r"\&": "&", r"\_": "_", "{}": "",
}  # fmt: skip


def latex_text(source):
    """Read LaTeX back as the text that it prints; an unknown command is an error."""
    source = re.sub(r"\\textbf\{((?:[^{}]|\{\})*)\}", r"\1", source)
    found, rest = "", source
    while rest:
        match = next((key for key in LATEX if rest.startswith(key)), None)
        if match is None:
            assert rest[0] not in "\\{}#$%&_^~", f"bare {rest[0]!r} in {source!r}"
            match = rest[0]
        found += LATEX.get(match, match)
        rest = rest[len(match) :]
    return found.strip()


def latex_tables(source):
    tables = []
    for body in re.findall(r"\\toprule\n(.*?)\\bottomrule", source, re.DOTALL):
        lines = [line for line in body.splitlines() if line != "\\midrule"]
        assert all(line.endswith(r" \\") for line in lines)
        tables.append([
            [latex_text(cell) for cell in re.split(r"(?<!\\) & ", line.removesuffix(r" \\"))]
            for line in lines
        ])  # fmt: skip
    return tables


@pytest.fixture(scope="module")
def paper():
    scores = paper_scores()
    return scores, make_sheets(scores)


def expected_cells(path):
    """Return the cells of each of the 16 tables as the paper prints them."""
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 800
    found = {}
    for row in rows:
        text = f"{row['mean']} ({row['ci95']})"
        found.setdefault((row["table"], row["task"]), Counter())[row["dataset"], text] += 1
    return found


READERS = {
    "md": (to_markdown, markdown_tables),
    "tex": (to_latex, latex_tables),
    "html": (lambda sheets: to_html(sheets, title="t"), lambda page: html_tables(page).tables),
}


@pytest.mark.parametrize("ending", READERS)
@pytest.mark.parametrize("path", [SHIPPED, PARSED], ids=["shipped", "parsed"])
def test_all_800_cells_of_the_paper_come_back(paper, ending, path):
    if not path.is_file():
        pytest.skip("the parsed tables are not beside this checkout")
    write, read = READERS[ending]
    tables = read(write(paper[1]))
    expected = expected_cells(path)
    assert len(tables) == len(expected) == 16
    number = 0
    for sheet, (columns, *rows) in zip(paper[1], tables, strict=True):
        group = sheet.blocks[0][0].group
        found = Counter()
        for row in rows:
            for column, cell in zip(columns, row, strict=True):
                if "(" in cell:
                    found[column, cell.replace("≈", "").strip()] += 1
        assert found == expected[group, sheet.datasets[0].task]
        number += found.total()
    assert number == 800


def test_each_row_of_the_paper_has_a_distinct_name(paper):
    for sheet in paper[1]:
        heads = [model.label for block in sheet.blocks for model in block]
        assert len(set(heads)) == len(heads)
    # Each cell stands in the row of its own factors: 610M, CLM, 42,000 steps.
    base = markdown_tables(to_markdown(paper[1][:1]))[0]
    assert base[0] == ["Model", "SST-2", "QQP", "MNLI", "Average"]
    row = next(row for row in base if row[0] == "610M CLM, 42,000 steps")
    assert [cell.replace(" ≈", "") for cell in row[1:]] == [
        "91.10 (0.39)", "84.14 (0.12)", "75.49 (0.22)", "83.58 (0.17)",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [SHIPPED, PARSED], ids=["shipped", "parsed"])
def test_the_csv_has_every_cell_with_its_factors(paper, path):
    if not path.is_file():
        pytest.skip("the parsed tables are not beside this checkout")
    written = {
        (
            row["group"], row["task"], "Average" if row["is_average"] == "true" else row["dataset"],
            row["size"], row["objective"], row["mask_rate"], row["clm_steps"], row["mlm_steps"],
            row["total_steps"], row["start"], row["continued_steps"],
        ): (float(row["mean"]), float(row["half_width"]))
        for row in csv.DictReader(io.StringIO(to_csv(paper[1])))
    }  # fmt: skip
    with path.open(encoding="utf-8") as stream:
        expected = {
            (
                row["table"], row["task"], row["dataset"], row["model_size"], row["objective"],
                row["mask_rate"], row["clm_steps"], row["mlm_steps"], row["total_steps"],
                row["cpt_init"], row["cpt_steps"] or "0",
            ): (float(row["mean"]), float(row["ci95"]))
            for row in csv.DictReader(stream)
        }  # fmt: skip
    assert len(expected) == 800
    assert written == expected


def hostile():
    datasets = tuple(replace(d, name=name) for d, name in zip(DATASETS, HOSTILE[:4], strict=True))
    models = [
        replace(each, label=f"{i} {HOSTILE[i % 8]}", group=HOSTILE[i % 3])
        for i, each in enumerate(grid_models())
    ]
    return grid_scores(models, datasets=datasets)


@pytest.mark.parametrize("ending", READERS)
def test_hostile_names_come_back_as_text(ending):
    scores = hostile()
    write, read = READERS[ending]
    sheets = make_sheets(scores)
    written = write(sheets)
    names = [row[0] for columns, *rows in read(written) for row in rows]
    columns = {column for table in read(written) for column in table[0][1:]}
    lost = "?" if ending == "tex" else "\ufffd"
    wanted = [
        shown(model.label).replace("\ufffd", lost)
        for sheet in sheets for block in sheet.blocks for model in block
    ]  # fmt: skip
    assert names == wanted
    assert columns == {shown(name) for name in HOSTILE[:4]}


@pytest.mark.parametrize("begin", ["[1] ", "* "])
def test_no_row_of_latex_begins_like_an_option_of_the_row_before(begin):
    models = [replace(each, label=f"{begin}{each.label}") for each in grid_models()]
    source = to_latex(make_sheets(grid_scores(models)))
    assert not re.search(r"\n\s*[\[*]", source)
    names = [row[0] for _, *rows in latex_tables(source) for row in rows]
    assert names
    assert all(name.startswith(begin) for name in names)


def test_hostile_names_bring_no_tags_links_or_controls():
    sheets = make_sheets(hostile())
    page = to_html(sheets, title=HOSTILE[0])
    tags = html_tables(page).tags
    assert set(tags) <= {"html", "head", "meta", "title", "style", "body", "h1", "figure", "table",
                         "caption", "thead", "tbody", "tr", "th", "td", "strong",
                         "figcaption"}  # fmt: skip
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(to_markdown(sheets))
    assert set(html_tables(rendered).tags) <= {
        "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "strong",
    }  # fmt: skip
    for text in (page, to_markdown(sheets), to_latex(sheets)):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)


def test_a_csv_of_hostile_names_keeps_them():
    scores = hostile()
    text = to_csv(make_sheets(scores))
    rows = [*csv.DictReader(io.StringIO(text, newline=""))]
    assert {unescaped(row["label"]) for row in rows} == {model.label for model in scores.models}
    assert {unescaped(row["dataset"]) for row in rows} == set(HOSTILE[:4])
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)


def unescaped(name):
    """Return a name with the characters that steer a terminal."""
    return re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), name)


def test_the_csv_names_optimizer_and_attention():
    scores = grid_scores()
    models = tuple(replace(m, optimizer="muon", attention="causal") for m in scores.models)
    rows = csv.DictReader(io.StringIO(to_csv(make_sheets(replace(scores, models=models)))))
    assert {(row["optimizer"], row["attention"]) for row in rows} == {("muon", "causal")}


def test_marks_and_missing_values_are_written():
    scores = grid_scores()
    cells = {**scores.cells}
    best = max(cells, key=lambda key: cells[key].estimate.mean)
    cells["small-clm", "words-sc"] = Score(None)
    cells["large-clm", "words-sc"] = Score(Estimate(51.234, None, 1), {0: 51.234}, False)
    sheets = make_sheets(replace(scores, cells=cells))
    markdown = to_markdown(sheets)
    assert re.search(r"\| small-clm \| – \|", markdown)
    assert "51.23 ≈ †" in markdown or "51.23 †" in markdown
    assert "†: runs are missing" in markdown
    assert f"| {best[0]} | **" in markdown
    assert "\\textbf{" in to_latex(sheets)
    assert "<strong>" in to_html(sheets, title="t")
