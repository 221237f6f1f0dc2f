"""The canonical task folder: its description, and writing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from biphasic.config import Config, nearest, parse_config
from biphasic.errors import ConfigError, DataError
from biphasic.files import complete_folder, read_json, write_json
from biphasic.tasks.kinds.kind import TRAINED_ON
from biphasic.tasks.kinds.registry import KINDS, KindName, kinds_with
from biphasic.tasks.kinds.text import TEMPLATE
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.rows.beir import write_qrels
from biphasic.tasks.rows.content import TaskContent, write_lines
from biphasic.tasks.rows.templates import check_retrieval_template, check_template

DESCRIPTION = "task.json"


class TaskDescription(Config):
    """Description of a task without its examples: `task.json`."""

    name: str = Field(min_length=1, description="Name in reports.")
    kind: KindName = Field(description="Kind of task.")
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
        kind = KINDS.get(str(raw.get("kind")))
        first = kind.facts.metric_keys[0] if kind else ""
        return {
            **raw,
            "title": raw.get("title") or raw.get("name", ""),
            "metric": raw.get("metric") or first,
        }

    @model_validator(mode="after")
    def _consistent(self) -> TaskDescription:
        check_kind_settings(self)
        metrics = KINDS[self.kind].facts.metric_keys
        if self.metric not in metrics:
            known = nearest(self.metric, metrics)
            raise ValueError(f"no metric '{self.metric}' for kind '{self.kind}'{known}")
        return self


def check_kind_settings(task: Any) -> None:
    """Check the settings of a task, or of a task file, that only some kinds support."""
    for name in (TEMPLATE, "query_template", "document_template", TRAINED_ON):
        check_setting(task, name)
    if task.template is not None:
        check_template(task.template)
    if task.query_template is not None:
        check_retrieval_template(task.query_template, known=("text",))
    if task.document_template is not None:
        check_retrieval_template(task.document_template, known=("title", "text"))


def check_setting(task: Any, name: str) -> None:
    """Check that the kind of a task has a setting, if it is given."""
    kinds = kinds_with(name)
    if getattr(task, name) is not None and task.kind not in kinds:
        raise ValueError(f"'{name}' is for tasks of kind {' or '.join(kinds)}, not {task.kind}")


def read_description(folder: Path, *, kind: str | None = None) -> TaskDescription:
    """Read the description of a task folder.

    `kind` is required if no `task.json` names one, and must agree with it otherwise, or be derived
    from it: the folder then keeps its kind. The name in `task.json` overrides the folder's.
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
    if kind is not None and named_kind not in {kind, KINDS[kind].derived_from}:
        raise DataError(f"{path}: the task is of kind '{named_kind}', not '{kind}'")
    settings = {"name": folder.resolve().name, **raw, "kind": named_kind}
    try:
        description = parse_config(TaskDescription, settings, where=str(path))
        parse_config(FinetuneProtocol, description.protocol, where=f"{path}: protocol")
    except ConfigError as error:
        raise DataError(str(error)) from None
    return description


def task_files(folder: Path, description: TaskDescription) -> list[str]:
    """Return the file names of a task, in a fixed order."""
    kind = KINDS[description.kind]
    names = kind.file_names(trained_on=description.trained_on)
    for name in names:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: no such file; a task of kind '{kind.name}' needs it")
    return names + [name for name in kind.optional_files() if (folder / name).is_file()]


def write_task_folder(folder: Path, description: TaskDescription, content: TaskContent) -> None:
    """Write a complete task folder; `folder` must not exist, or already be complete."""
    with complete_folder(folder) as partial:
        if content.labels:
            write_json(partial / "labels.json", list(content.labels))
        for split, rows in content.splits.items():
            write_lines(partial / f"{split}.jsonl", rows)
        for name, texts in (("corpus", content.corpus), ("queries", content.queries)):
            if texts is not None:
                write_lines(partial / f"{name}.jsonl", texts)
        for split, judgements in content.qrels.items():
            write_qrels(partial / "qrels" / f"{split}.tsv", judgements)
        write_json(partial / DESCRIPTION, description.model_dump(exclude_defaults=True))
        task_files(partial, description)
