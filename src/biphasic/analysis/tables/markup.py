"""Tables as Markdown, LaTeX, HTML and CSV, with names escaped in all of them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.sheets import Sheet, SheetCell, columns_of, score_text
from biphasic.analysis.text import csv_text, exact, flat

_LEVEL = "≈"
_PROVISIONAL = "†"
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$^&@])")
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "–": r"\textendash{}",
    "≈": r"$\approx$",
    "†": r"\textdagger{}",
    "…": r"\textellipsis{}",
    "\ufffd": "?",
    **{character: f"\\{character}" for character in "#$%&_"},
}
_CSV_COLUMNS = (
    "group", "task", "dataset", "is_average", "metric", "model", "label", "size", "objective",
    "mask_rate", "clm_steps", "mlm_steps", "total_steps", "start", "continued_steps", "is_final",
    "mean", "half_width", "num_seeds", "convention", "mark", "is_complete", "reference_mean",
    "reference_half_width",
)  # fmt: skip
_LONG_WORD = 24
"""Longer words may be broken anywhere."""
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
figure { margin: 0 0 3rem; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { padding: .2rem .8rem; text-align: right; white-space: nowrap; }
th.name { text-align: left; font-weight: 400; white-space: normal; }
th.long { overflow-wrap: anywhere; min-width: 12rem; }
thead th.name { font-weight: 600; }
thead th { border-bottom: 2px solid; }
tbody + tbody tr:first-child > * { border-top: 1px solid; }
figcaption { font-size: .875rem; max-width: 45rem; padding-top: .5rem; }
""".strip()


def to_markdown(sheets: Iterable[Sheet]) -> str:
    """Write tables in GitHub's Markdown."""
    return "\n".join(_markdown_sheet(sheet) for sheet in sheets)


def to_latex(sheets: Iterable[Sheet]) -> str:
    """Write tables for LaTeX with booktabs, to be read in with `\\input`."""
    body = "\n".join(_latex_sheet(sheet) for sheet in sheets)
    head = "% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}\n"
    if any(ord(character) > 0xFF for character in body):
        head += "% has letters beyond Latin-1: LuaLaTeX or XeLaTeX and a font that has them\n"
    return head + body


def to_html(sheets: Iterable[Sheet], *, title: str) -> str:
    """Write tables as one self-contained page."""
    body = "\n".join(_html_sheet(sheet) for sheet in sheets)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_html(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>{_html(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _html_sheet(sheet: Sheet) -> str:
    num_heads = len(sheet.head_columns)
    head = "".join(
        _html_name(column, "col") if index < num_heads else f'<th scope="col">{_html(column)}</th>'
        for index, column in enumerate(columns_of(sheet))
    )
    bodies = []
    for block in sheet.blocks:
        rows = []
        for row in block:
            names = "".join(_html_name(text, "row") for text in row.heads)
            cells = [_cell(cell, _html, "<strong>{}</strong>") for cell in row.cells]
            rows.append(f"<tr>{names}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        bodies.append("<tbody>\n" + "\n".join(rows) + "\n</tbody>")
    notes = " ".join(_html(note) for note in sheet.notes)
    return (
        f'<figure id="table-{sheet.name}">\n<table>\n<caption>{_html(sheet.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n" + "\n".join(bodies) + "\n</table>\n"
        f"<figcaption>{notes}</figcaption>\n</figure>"
    )


def to_csv(scores: Scores, sheets: Iterable[Sheet]) -> str:
    """Write one row per cell with all factors of its model; floats read back exactly."""
    rows = []
    for sheet in sheets:
        for block in sheet.blocks:
            for row in block:
                model = row.model
                for dataset, cell in zip(sheet.datasets, row.cells, strict=True):
                    rows.append(
                        (
                            model.group, dataset.task, dataset.name, _flag(dataset.is_average),
                            dataset.metric, model.name, model.label, model.size, model.objective,
                            exact(model.mask_rate), model.clm_steps, model.mlm_steps,
                            model.total_steps, model.start or "", model.continued_steps,
                            _flag(model.is_final), *_numbers(cell.estimate),
                            cell.estimate.num_seeds if cell.estimate else "", scores.convention,
                            cell.mark or "", _flag(cell.is_complete), *_numbers(cell.reference),
                        )
                    )  # fmt: skip
    return csv_text(_CSV_COLUMNS, rows)


def _markdown_sheet(sheet: Sheet) -> str:
    columns = [markdown_text(column) for column in columns_of(sheet)]
    rule = [":--"] * len(sheet.head_columns) + ["--:"] * len(sheet.datasets)
    lines = [f"## {markdown_text(sheet.title)}", "", _pipes(columns), _pipes(rule)]
    for index, block in enumerate(sheet.blocks):
        if index:
            lines.append(_pipes([""] * len(columns)))
        for row in block:
            names = [markdown_text(text) for text in row.heads]
            lines.append(_pipes([*names, *(_cell(cell, str, "**{}**") for cell in row.cells)]))
    return "\n".join([*lines, "", " ".join(markdown_text(note) for note in sheet.notes), ""])


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown_text(text: str) -> str:
    """Escape a text for Markdown."""
    escaped = _MARKDOWN_SPECIAL.sub(r"\\\1", flat(text))
    # Prevent addresses, or their beginnings, from becoming links.
    return re.sub(r"(?i)(www)\.", r"\1\\.", escaped.replace("://", "\\://"))


def _latex_sheet(sheet: Sheet) -> str:
    columns = [_latex(column) for column in columns_of(sheet)]
    layout = "l" * len(sheet.head_columns) + "r" * len(sheet.datasets)
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_latex(sheet.title)}. {' '.join(_latex(note) for note in sheet.notes)}}}",
        f"\\label{{tab:{sheet.name}}}",
        f"\\begin{{tabular}}{{{layout}}}",
        "\\toprule",
        _ampersands(columns),
    ]
    for block in sheet.blocks:
        lines.append("\\midrule")
        for row in block:
            names = [_latex(text) for text in row.heads]
            cells = (_cell(cell, _latex, "\\textbf{{{}}}") for cell in row.cells)
            lines.append(_ampersands([*names, *cells]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def _ampersands(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _latex(text: str) -> str:
    written = "".join(_LATEX_SPECIAL.get(character, character) for character in flat(text))
    return re.sub("-(?=-)", "-{}", written)  # two in a row would become a dash


def _html(text: str) -> str:
    return html.escape(flat(text), quote=True)


def _html_name(text: str, scope: str) -> str:
    is_long = any(len(word) > _LONG_WORD for word in text.split())
    return f'<th scope="{scope}" class="name{" long" if is_long else ""}">{_html(text)}</th>'


def _cell(cell: SheetCell, write: Callable[[str], str], bold: str) -> str:
    """Write a score with its signs: level with the best, provisional, the paper's value."""
    text = write(score_text(cell.estimate))
    signs = [
        *([_LEVEL] if cell.mark == "level" else []),
        *([_PROVISIONAL] if not cell.is_complete else []),
        *([f"[paper: {score_text(cell.reference)}]"] if cell.reference else []),
    ]
    return " ".join([bold.format(text) if cell.mark == "best" else text, *map(write, signs)])


def _numbers(estimate: Estimate | None) -> tuple[str, str]:
    return ("", "") if estimate is None else (exact(estimate.mean), exact(estimate.half_width))


def _flag(is_set: bool) -> str:
    return str(is_set).lower()


TABLE_FORMATS: Mapping[str, Callable[[Scores, Sequence[Sheet]], str]] = {
    "md": lambda _, sheets: to_markdown(sheets),
    "tex": lambda _, sheets: to_latex(sheets),
    "html": lambda scores, sheets: to_html(sheets, title=scores.source),
    "csv": to_csv,
}
"""Writer of a table of scores, by file extension."""
