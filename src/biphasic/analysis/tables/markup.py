"""Tables like those of the paper's Appendix C: Markdown, LaTeX, HTML and CSV, names escaped."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import Literal

from biphasic.amounts import percent
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.reference import ReferenceValues, reference_values
from biphasic.analysis.scores.source import PAPER_SOURCE
from biphasic.analysis.scores.table import AT_END, DatasetInfo, ModelInfo, Scores, grouped
from biphasic.analysis.statistics.compare import indistinguishable
from biphasic.analysis.statistics.doubts import doubt_notes
from biphasic.analysis.text import csv_text, flat, score_text
from biphasic.analysis.words import environment, interval_note, words

Mark = Literal["best", "level"]
_LEVEL = "≈"
_PROVISIONAL = "†"
_PAPER_GROUPS = {
    "base": "Base models",
    "data_efficiency": "On the way to 40,000 steps, before decay",
    "pfs": "CLM, then MLM, within a budget",
    "cpt": "Continued pretraining",
}


@dataclass(frozen=True)
class Sheet:
    """One table: models by datasets."""

    scores: Scores
    name: str  # unique among tables; letters, digits and hyphens
    title: str
    notes: tuple[str, ...]
    datasets: tuple[DatasetInfo, ...]  # one column each
    blocks: Sequence[tuple[ModelInfo, ...]]  # groups of models that are compared with each other
    # Whether a score is the best of its block and column, or not clearly below the best.
    marks: Mapping[tuple[str, str], Mark]
    reference: ReferenceValues  # another table's values

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings: the model, then datasets, with metrics if they differ."""
        is_one = len({dataset.metric for dataset in self.datasets}) == 1
        names = ("Average" if dataset.is_average else dataset.name for dataset in self.datasets)
        metrics = ("" if is_one else f", {d.metric_facts.title}" for d in self.datasets)
        return ("Model", *map("".join, zip(names, metrics, strict=True)))

    def text(self, model: str, dataset: str, escape: Callable[[str], str], bold: str) -> str:
        """Write a score with its signs: level with the best, provisional, the paper's value."""
        key = model, dataset
        score, mark, reference = self.scores.get(*key), self.marks.get(key), self.reference.get(key)
        text = escape(score_text(score.estimate))
        signs = [
            *([_LEVEL] if mark == "level" else []),
            *([_PROVISIONAL] if not score.is_complete else []),
            *([AT_END] if score.is_at_end else []),
            *([f"[paper: {score_text(reference)}]"] if reference else []),
        ]
        return " ".join([bold.format(text) if mark == "best" else text, *map(escape, signs)])


def make_sheets(scores: Scores, *, reference: Scores | None = None) -> list[Sheet]:
    """Make a table for each group of models and category of tasks."""
    # Recipes of several pretraining runs are in one table for each category. Values of a reference
    # are shown beside the same cells.
    values = reference_values(scores, reference) if reference is not None else {}
    groups: list[str | None] = [*dict.fromkeys(model.group for model in scores.models)]
    if scores.runs is not None:
        groups = [None]
    tasks = [*dict.fromkeys(dataset.task for dataset in scores.datasets)]
    sheets = [_sheet(scores, group, task, values) for group in groups for task in tasks]
    seen: Counter[str] = Counter()
    for index, sheet in enumerate(sheets):
        seen[sheet.name] += 1
        if seen[sheet.name] > 1:
            sheets[index] = replace(sheet, name=f"{sheet.name}-{seen[sheet.name]}")
    return sheets


def marks(scores: Scores, dataset: DatasetInfo, models: Sequence[ModelInfo]) -> dict[str, Mark]:
    """Mark the best of some models on a dataset, and those not clearly below it."""
    # Models that share the highest mean are all best. Nothing is marked if fewer than two have a
    # score, or all are equal.
    names = {model.name for model in models}
    means = {name: mean for name, mean in scores.means(dataset.name).items() if name in names}
    if len(set(means.values())) < 2:
        return {}
    level = indistinguishable(scores, dataset.name, models=[*means])
    by_model: dict[str, Mark] = dict.fromkeys(level, "level")
    highest = max(means.values())
    by_model.update({name: "best" for name, mean in means.items() if mean == highest})
    return by_model


def _sheet(scores: Scores, group: str | None, task: str, values: ReferenceValues) -> Sheet:
    """Make the table of a group, or of all models."""
    models = tuple(model for model in scores.models if group in {None, model.group})
    group = group or ""
    datasets = tuple(dataset for dataset in scores.datasets if dataset.task == task)
    is_paper = scores.source == PAPER_SOURCE
    blocks = _blocks(models)
    marked: dict[tuple[str, str], Mark] = {
        (name, dataset.name): mark
        for block in blocks
        for dataset in datasets
        for name, mark in marks(scores, dataset, block).items()
    }
    category = datasets[0].facts.title
    heading = _PAPER_GROUPS.get(group, group) if is_paper else flat(group)
    title = f"{heading or flat(scores.source)}: {category}"
    if len({dataset.metric for dataset in datasets}) == 1:
        title += f", {datasets[0].metric_facts.title}"
    notes = tuple(_notes(scores, models, datasets, values, num_blocks=len(blocks)))
    baselines = tuple(
        model
        for model in scores.baselines
        if any(scores.get(model.name, dataset.name).estimate for dataset in datasets)
    )
    if baselines:
        blocks.append(baselines)
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{group}-{task}".lower())
    name = "-".join(filter(None, name[:80].split("-"))) or "table"
    return Sheet(scores, name, title, notes, datasets, blocks, marked, values)


def _blocks(models: Sequence[ModelInfo]) -> list[tuple[ModelInfo, ...]]:
    """Split models into comparable blocks: of one size, after equally many steps."""
    # If a model would be alone, split by size only, or not at all. Untrained models of a split
    # table come first and are compared only with each other.
    trained = [model for model in models if model.total_steps]
    for factors in (("size", "total_steps"), ("size",)):
        blocks = grouped(trained, attrgetter(*factors))
        if len(blocks) > 1 and all(len(block) > 1 for block in blocks.values()):
            untrained = tuple(model for model in models if not model.total_steps)
            return [*([untrained] if untrained else []), *map(tuple, blocks.values())]
    return [tuple(models)]


def _constants(models: Sequence[ModelInfo]) -> list[str]:
    """Return what all models have in common: size, masking rate, steps."""
    shared = []
    if len({model.size for model in models}) == 1 and models[0].size:
        shared.append(flat(models[0].size))
    rates = {model.mask_rate for model in models if model.mask_rate is not None}
    if len(rates) == 1:
        shared.append(f"{percent(rates.pop())} of tokens masked in MLM")
    if len({model.total_steps for model in models}) == 1 and models[0].total_steps:
        shared.append(f"{models[0].total_steps:,} steps")
    return shared


def _notes(
    scores: Scores,
    models: Sequence[ModelInfo],
    datasets: Sequence[DatasetInfo],
    values: ReferenceValues,
    *,
    num_blocks: int,
) -> list[str]:
    keys = [(model.name, dataset.name) for model in models for dataset in datasets]
    is_incomplete = any(not scores.get(*key).is_complete for key in keys)
    has_paper, intervals = any(key in values for key in keys), interval_note(scores)
    notes = words().sheet(
        scores, _constants(models), num_blocks, is_incomplete, has_paper, PAPER_SOURCE, intervals
    )
    return [*notes.splitlines(), *doubt_notes(scores, models=models, datasets=datasets)]


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
