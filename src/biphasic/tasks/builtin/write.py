"""Writes the four built-in tasks from the documentation of the built-in corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from biphasic.tasks.folder import TaskDescription, write_task_folder
from biphasic.tasks.kinds.classification import Classification
from biphasic.tasks.kinds.kind import TaskKind
from biphasic.tasks.kinds.questions import QuestionAnswering
from biphasic.tasks.kinds.retrieval import Retrieval
from biphasic.tasks.kinds.tagging import Tagging
from biphasic.tasks.rows.content import TaskContent

TASKS_VERSION = 1
"""Increase by hand whenever the same documents would give different tasks."""
BUILTIN_TASKS = {
    f"pydocs-{kind.name}": kind.name
    for kind in (Classification, Tagging, QuestionAnswering, Retrieval)
}
"""Kind of each built-in task."""
LIMITS: Mapping[Split, int] = {"train": 4_000, "validation": 400, "test": 600}
RETRIEVAL_LIMITS: Mapping[Split, int] = {"train": 3_000, "validation": 300, "test": 600}

Selected = Mapping[Split, Sequence[Example]]


def build_tasks(documents: Sequence[Document], out: Path) -> None:
    """Write `pydocs-sc`, `pydocs-tc`, `pydocs-qa` and `pydocs-ir`; only documents matter."""
    parsed = parse_documents(documents)
    leak_filter = LeakFilter(parsed)
    labels = library_labels(parsed)

    chosen = leak_filter.select(library_examples(parsed, labels), limits=LIMITS)
    _write(out, Classification, chosen, partial(_examples, labels), title="Which library?")

    chosen = leak_filter.select(parameter_examples(parsed), limits=LIMITS)
    _write(out, Tagging, chosen, partial(_examples, TAGS), title="Parameter spans")

    chosen = leak_filter.select(parameter_questions(parsed), limits=LIMITS)
    _write(out, QuestionAnswering, chosen, partial(_examples, ()), title="Parameter questions")

    chosen = leak_filter.select(summary_examples(parsed), limits=RETRIEVAL_LIMITS)
    _write(out, Retrieval, chosen, _texts, title="Find the page")


def _write(
    out: Path,
    kind: type[TaskKind],
    chosen: Selected,
    content_of: Callable[[Selected], TaskContent],
    *,
    title: str,
) -> None:
    name = f"pydocs-{kind.name}"
    for split in SPLITS:
        if not chosen[split]:
            raise DataError(f"{name}: the documentation yields no {split} example")
    description = TaskDescription(name=name, kind=kind.name, title=title)
    write_task_folder(out / name, description, content_of(chosen))


def _examples(labels: Sequence[str], chosen: Selected) -> TaskContent:
    rows = {
        split: [{"id": example.id, **example.record} for example in examples]
        for split, examples in chosen.items()
    }
    return TaskContent(splits=rows, labels=labels)


def _texts(chosen: Selected) -> TaskContent:
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
