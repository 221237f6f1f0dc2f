"""Writes the four built-in tasks from the documentation of the built-in corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from biphasic.data.text.pydocs import Document, Split
from biphasic.errors import DataError
from biphasic.tasks.builtin.examples import SPLITS, Example, LeakFilter, parse_documents
from biphasic.tasks.builtin.kinds import (
    TAGS,
    library_examples,
    library_labels,
    parameter_examples,
    parameter_questions,
    summary_examples,
)
from biphasic.tasks.formats.folder import TaskContent, TaskDescription, write_task_folder
from biphasic.tasks.records import Kind

TASKS_VERSION = 1
"""Increase by hand whenever the same documents would give different tasks."""
BUILTIN_TASKS = ("pydocs-sc", "pydocs-tc", "pydocs-qa", "pydocs-ir")
LIMITS: Mapping[Split, int] = {"train": 4_000, "validation": 400, "test": 600}
RETRIEVAL_LIMITS: Mapping[Split, int] = {"train": 3_000, "validation": 300, "test": 600}

Selected = Mapping[Split, Sequence[Example]]


def build_tasks(documents: Sequence[Document], out: Path) -> None:
    """Write `pydocs-sc`, `pydocs-tc`, `pydocs-qa` and `pydocs-ir` below `out`.

    The files depend on the documents alone. Examples come from documents of their own split, and
    none from a passage that occurs in another split.

    Raises:
        DataError: The documents yield no example for some split of a task.
    """
    parsed = parse_documents(documents)
    leak_filter = LeakFilter(parsed)
    labels = library_labels(parsed)

    chosen = leak_filter.select(library_examples(parsed, labels), limits=LIMITS)
    _write(out, "sc", chosen, title="Which library?", labels=labels)

    chosen = leak_filter.select(parameter_examples(parsed), limits=LIMITS)
    _write(out, "tc", chosen, title="Parameter spans", labels=TAGS)

    chosen = leak_filter.select(parameter_questions(parsed), limits=LIMITS)
    _write(out, "qa", chosen, title="Parameter questions")

    chosen = leak_filter.select(summary_examples(parsed), limits=RETRIEVAL_LIMITS)
    _write(out, "ir", chosen, title="Find the page")


def _write(
    out: Path, kind: Kind, chosen: Selected, *, title: str, labels: Sequence[str] = ()
) -> None:
    name = f"pydocs-{kind}"
    for split in SPLITS:
        if not chosen[split]:
            raise DataError(f"{name}: the documentation yields no {split} example")
    if kind == "ir":
        content = _retrieval_content(chosen)
    else:
        rows = {
            split: [{"id": example.id, **example.record} for example in examples]
            for split, examples in chosen.items()
        }
        content = TaskContent(splits=rows, labels=labels)
    description = TaskDescription(name=name, kind=kind, title=title)
    write_task_folder(out / name, description, content)


def _retrieval_content(chosen: Selected) -> TaskContent:
    """Return corpus, queries and judgements; all splits share one corpus."""
    every = sorted((e for part in chosen.values() for e in part), key=lambda e: e.id)
    return TaskContent(
        corpus=[{"_id": e.id, "title": "", "text": e.record["text"]} for e in every],
        queries=[{"_id": f"q:{e.id}", "text": e.record["query"]} for e in every],
        qrels={
            split: [(f"q:{example.id}", example.id, 1) for example in examples]
            for split, examples in chosen.items()
        },
    )
