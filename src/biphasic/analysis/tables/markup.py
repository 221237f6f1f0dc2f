"""Tables as Markdown, LaTeX and HTML, by templates, and as CSV; all escape names."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.sheets import Sheet
from biphasic.analysis.text import csv_text, flat
from biphasic.analysis.words import environment

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
    "‡": r"\textdaggerdbl{}",
    "…": r"\textellipsis{}",
    "\ufffd": "?",
    **{character: f"\\{character}" for character in "#$%&_"},
}
_CSV_COLUMNS = (
    "group", "task", "dataset", "is_average", "metric", "model", "label", "size", "objective",
    "mask_rate", "clm_steps", "mlm_steps", "total_steps", "start", "continued_steps", "is_final",
    "optimizer", "attention", "mean", "half_width", "num_seeds", "convention", "mark",
    "is_complete", "reference_mean", "reference_half_width",
)  # fmt: skip
_LONG_WORD = 24  # longer words may be broken anywhere


def to_markdown(sheets: Iterable[Sheet]) -> str:
    """Write tables in GitHub's Markdown."""
    return _filled("tables.md.j2", sheets, markdown_text, bold="**{}**", of_score=str)


def to_latex(sheets: Iterable[Sheet]) -> str:
    """Write tables for LaTeX with booktabs, to be read in with `\\input`."""
    body = _filled("tables.tex.j2", sheets, _latex, bold="\\textbf{{{}}}")
    head = "% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}\n"
    if any(ord(character) > 0xFF for character in body):
        head += "% has letters beyond Latin-1: LuaLaTeX or XeLaTeX and a font that has them\n"
    return head + body


def to_html(sheets: Iterable[Sheet], *, title: str) -> str:
    """Write tables as one self-contained page."""
    bold = "<strong>{}</strong>"
    return _filled(
        "tables.html.j2", sheets, lambda text: html.escape(flat(text)), bold=bold, title=title
    )


def to_csv(sheets: Iterable[Sheet]) -> str:
    """Write one row per cell with all factors of its model; floats read back exactly."""
    rows = []
    for sheet in sheets:
        models = (model for block in sheet.blocks for model in block)
        for model, dataset in product(models, sheet.datasets):
            key = model.name, dataset.name
            score, reference = sheet.scores.get(*key), sheet.reference.get(key)
            rows.append((
                model.group, dataset.task, dataset.name, _flag(dataset.is_average),
                dataset.metric, sheet.scores.written_names[model.name], model.label, model.size,
                model.objective,
                model.mask_rate, model.clm_steps, model.mlm_steps, model.total_steps,
                model.start or "", model.continued_steps, _flag(model.is_final),
                model.optimizer, model.attention,
                *_numbers(score.estimate), score.estimate.num_seeds if score.estimate else "",
                sheet.scores.convention, sheet.marks.get(key) or "", _flag(score.is_complete),
                *_numbers(reference),
            ))  # fmt: skip
    return csv_text(_CSV_COLUMNS, rows)


def _filled(
    template: str,
    sheets: Iterable[Sheet],
    escape: Callable[[str], str],
    *,
    bold: str,
    of_score: Callable[[str], str] | None = None,
    **context: object,
) -> str:
    """Fill a template; `escape` writes names, and `of_score` scores if they differ."""
    made = environment()
    made.filters.update(
        text=escape, long=lambda text: any(len(word) > _LONG_WORD for word in text.split())
    )
    return made.get_template(template).render(
        sheets=[*sheets], escape=of_score or escape, bold=bold, **context
    )


def markdown_text(text: str) -> str:
    """Escape a text for Markdown."""
    escaped = _MARKDOWN_SPECIAL.sub(r"\\\1", flat(text))
    # Prevent addresses, or their beginnings, from becoming links.
    return re.sub(r"(?i)(www)\.", r"\1\\.", escaped.replace("://", "\\://"))


def _latex(text: str) -> str:
    written = "".join(_LATEX_SPECIAL.get(character, character) for character in flat(text))
    written = re.sub("-(?=-)", "-{}", written)  # two in a row would become a dash
    # At the start of a row, the end of the row before would take it as its argument or its star.
    return re.sub(r"^(?=[\[*])", "{}", written)


def _numbers(estimate: Estimate | None) -> tuple[float | None, float | None]:
    return (None, None) if estimate is None else (estimate.mean, estimate.half_width)


def _flag(is_set: bool) -> str:
    return str(is_set).lower()


# Writer of a table of scores, by file extension.
TABLE_FORMATS: Mapping[str, Callable[[Scores, Sequence[Sheet]], str]] = {
    "md": lambda _, sheets: to_markdown(sheets),
    "tex": lambda _, sheets: to_latex(sheets),
    "html": lambda scores, sheets: to_html(sheets, title=scores.source),
    "csv": lambda _, sheets: to_csv(sheets),
}
