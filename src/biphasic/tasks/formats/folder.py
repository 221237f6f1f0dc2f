"""The canonical task folder: its description, and writing it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from biphasic.config import Config, nearest, parse_config
from biphasic.errors import ConfigError, DataError
from biphasic.files import complete_folder, read_json, write_json
from biphasic.tasks.formats.templates import check_retrieval_template, check_template
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import KINDS, LABEL_KINDS, METRICS_BY_KIND, SPLITS, TEXT_KINDS, Kind

DESCRIPTION = "task.json"
QRELS_HEADER = "query-id\tcorpus-id\tscore"
RETRIEVAL_KINDS = ("ir", "zs")


class TaskDescription(Config):
    """Description of a task without its examples: `task.json`."""

    name: str = Field(min_length=1, description="Name in reports.")
    kind: Kind = Field(description="Kind of task.")
    title: str = Field(default="", description="Longer name; by default the name.")
    metric: str = Field(default="", description="The primary metric; by default the kind's first.")
    template: str | None = Field(
        default=None,
        description="sc, ml, sr: joins the fields of an example into one text, such as "
        "'Premise: {text_a}\\nHypothesis: {text_b}'.",
    )
    query_template: str | None = Field(
        default=None, description="ir, zs: template of a query, over {text}."
    )
    document_template: str | None = Field(
        default=None, description="ir, zs: template of a document, over {title} and {text}."
    )
    trained_on: str | None = Field(
        default=None, description="ir: the task whose training split replaces this task's own."
    )
    protocol: dict[str, Any] = Field(
        default_factory=dict, description="Fine-tuning settings that this task needs."
    )
    license: str = Field(default="", description="License of the data.")
    origin: dict[str, Any] = Field(
        default_factory=dict, description="Source of the examples, human-readable."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        first = METRICS_BY_KIND.get(str(raw.get("kind")), ("",))[0]
        return {
            **raw,
            "title": raw.get("title") or raw.get("name", ""),
            "metric": raw.get("metric") or first,
        }

    @model_validator(mode="after")
    def _consistent(self) -> TaskDescription:
        check_kind_settings(self)
        metrics = METRICS_BY_KIND[self.kind]
        if self.metric not in metrics:
            known = nearest(self.metric, metrics)
            raise ValueError(f"no metric '{self.metric}' for kind '{self.kind}'{known}")
        return self


def check_kind_settings(task: Any) -> None:
    """Check the settings of a task, or of a task file, that only some kinds support.

    Raises:
        ValueError: A setting does not fit the kind, or a template is unusable.
    """
    settings = {
        "template": TEXT_KINDS,
        "query_template": RETRIEVAL_KINDS,
        "document_template": RETRIEVAL_KINDS,
        "trained_on": ("ir",),
    }
    for name, kinds in settings.items():
        if getattr(task, name) is not None and task.kind not in kinds:
            raise ValueError(f"'{name}' is for tasks of kind {' or '.join(kinds)}, not {task.kind}")
    if task.template is not None:
        check_template(task.template)
    if task.query_template is not None:
        check_retrieval_template(task.query_template, known=("text",))
    if task.document_template is not None:
        check_retrieval_template(task.document_template, known=("title", "text"))


def read_description(folder: Path, *, kind: Kind | None = None) -> TaskDescription:
    """Read the description of a task folder.

    `kind` is required if no `task.json` names one, and must agree with it otherwise, except that a
    folder of kind `ir` may be read as `zs` (zero-shot retrieval) and keeps its kind. The name in
    `task.json` overrides the folder's.

    Raises:
        DataError: The folder is missing, or its description is unusable.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such task folder")
    path = folder / DESCRIPTION
    raw = read_json(path) if path.is_file() else {}
    if not isinstance(raw, dict):
        raise DataError(f"{path}: expected a JSON object")
    named_kind = raw.get("kind", kind)
    if named_kind is None:
        lack = f"{path}: no 'kind'" if path.is_file() else f"{folder}: no {DESCRIPTION}"
        raise DataError(f"{lack}; set the kind of the task: {', '.join(KINDS)}")
    if kind not in {None, named_kind} and (kind, named_kind) != ("zs", "ir"):
        raise DataError(f"{path}: the task is of kind '{named_kind}', not '{kind}'")
    settings = {"name": folder.resolve().name, **raw, "kind": named_kind}
    try:
        description = parse_config(TaskDescription, settings, where=str(path))
        parse_config(FinetuneProtocol, description.protocol, where=f"{path}: protocol")
    except ConfigError as error:
        raise DataError(str(error)) from None
    return description


def task_files(folder: Path, description: TaskDescription) -> list[str]:
    """Return the file names of a task, in a fixed order.

    Raises:
        DataError: A file is missing.
    """
    if description.kind == "zs":
        # No training, and no selection on validation.
        names = ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"]
    elif description.kind == "ir":
        splits = SPLITS if description.trained_on is None else SPLITS[1:]
        names = ["corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in splits)]
    else:
        labels = ["labels.json"] if description.kind in LABEL_KINDS else []
        names = [*(f"{split}.jsonl" for split in SPLITS), *labels]
    for name in names:
        if not (folder / name).is_file():
            raise DataError(
                f"{folder / name}: no such file; a task of kind '{description.kind}' needs it"
            )
    optional = "qrels/validation.tsv"
    if description.kind == "zs" and (folder / optional).is_file():
        names.insert(2, optional)
    return names


@dataclass(frozen=True)
class TaskContent:
    """Content of a task folder besides its description; its rows are read once.

    Attributes:
        splits: sc, ml, sr, tc, qa: rows by split.
        labels: sc, ml, tc: names of the labels.
        corpus: ir, zs: documents, `{"_id", "title", "text"}`.
        queries: ir, zs: queries, `{"_id", "text"}`.
        qrels: ir, zs: query, document and score, by split.
    """

    splits: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    corpus: Iterable[Mapping[str, Any]] = ()
    queries: Iterable[Mapping[str, Any]] = ()
    qrels: Mapping[str, Iterable[tuple[str, str, int]]] = field(default_factory=dict)


def write_task_folder(folder: Path, description: TaskDescription, content: TaskContent) -> None:
    """Write a complete task folder; `folder` must not exist, or already be complete.

    Raises:
        DataError: A file that the kind needs is missing.
    """
    with complete_folder(folder) as partial:
        if content.labels:
            write_json(partial / "labels.json", list(content.labels))
        for split, rows in content.splits.items():
            _write_lines(partial / f"{split}.jsonl", rows)
        if description.kind in RETRIEVAL_KINDS:
            _write_lines(partial / "corpus.jsonl", content.corpus)
            _write_lines(partial / "queries.jsonl", content.queries)
        for split, judgements in content.qrels.items():
            _write_qrels(partial / "qrels" / f"{split}.tsv", judgements)
        write_json(partial / DESCRIPTION, description.model_dump(exclude_defaults=True))
        task_files(partial, description)


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")


def _write_qrels(path: Path, judgements: Iterable[tuple[str, str, int]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(f"{QRELS_HEADER}\n")
        for query, document, score in judgements:
            stream.write(f"{query}\t{document}\t{score}\n")
