"""Writes model cards: metadata for the hub, a template for the text, and escaping in both."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import TASKS, flat, metric_name
from biphasic.export.output import CARD, FILL_IN
from biphasic.files import write_text

_TEMPLATE = Path(__file__).with_name("card.md.j2")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_PIPELINES = {
    "tc": "token-classification",
    "qa": "question-answering",
    "ir": "sentence-similarity",
    "zs": "sentence-similarity",
}
_METRIC_IDS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""Hub ids of our metrics, where they differ."""


def write_card(
    folder: Path,
    *,
    name: str,
    scores: Sequence[EvalResult],
    base_model: str | None,
    metadata: Mapping[str, Any],
    **facts: Any,
) -> None:
    """Fill the template and write `README.md`.

    The initial model is passed to the hub if it is a hub id; `facts` are variables of the template.
    """
    data = ModelCardData(
        base_model=base_model if base_model and _HUB_ID.fullmatch(base_model) else None,
        model_name=flat(name) if scores else None,
        eval_results=[*scores] or None,
        **metadata,
    )
    card = ModelCard.from_template(
        data, template_path=str(_TEMPLATE), name=name, **_WRITERS, **facts
    )
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    # YAML libraries write no comments; the owner fills in these fields.
    blank = f"language:  {FILL_IN}, e.g. en\nlicense:  {FILL_IN}, e.g. apache-2.0"
    write_text(folder / CARD, card.content.replace("\n---\n", f"\n{blank}\n---\n", 1))


def pipeline_of(kind: str) -> str:
    """Return the hub's pipeline tag of a kind of task."""
    return _PIPELINES.get(kind, "text-classification")


def eval_result(
    *, kind: str, task: str, title: str, metric: str, value: float, split: str, note: str = ""
) -> EvalResult:
    """Return a score in the hub's format: a share from 0 to 1, as `evaluate` reports metrics.

    `note` is appended to the metric's name.
    """
    is_retrieval = kind in {"ir", "zs"}
    return EvalResult(
        task_type="information-retrieval" if is_retrieval else pipeline_of(kind),
        task_name=TASKS[kind.upper()],
        dataset_type=flat(task),
        dataset_name=flat(title),
        dataset_split=split,
        metric_type=_METRIC_IDS.get(metric, flat(metric)),
        metric_name=flat(f"{metric_name(metric)}{note}"),
        metric_value=round(value, 6),
    )


def code(text: str) -> str:
    """Return text in backticks, using more of them than its longest run."""
    text = flat(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    """Return a Markdown table.

    The last `numbers` columns hold numbers.
    """
    rules = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    texts = [[markdown_text(cell) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (texts[0], rules, *texts[1:]))


_WRITERS = {
    "text": markdown_text,
    "code": code,
    "string": repr,
    "shell": lambda word: shlex.quote(flat(word)),
    "table": table,
}
