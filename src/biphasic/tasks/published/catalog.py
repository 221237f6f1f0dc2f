"""The twelve datasets of the reference study and BLiMP, as published on the hub.

`docs/protocol.md` describes each, and where this differs from the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from biphasic.config import nearest
from biphasic.data.text.hub import hub_fingerprint
from biphasic.errors import DataError
from biphasic.tasks.folder import TaskDescription, write_task_folder
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.published.examples import (
    PublishedPairs,
    PublishedQuestions,
    PublishedTagging,
    PublishedTexts,
)
from biphasic.tasks.published.ir import PublishedRetrieval
from biphasic.tasks.published.tables import DatasetTable, Opener, PublishedTask

# Increase by hand when the same tables give a different task.
_READING_VERSION = 1
_ONTONOTES_TAGS = """
O B-CARDINAL B-DATE I-DATE B-PERSON I-PERSON B-NORP B-GPE I-GPE B-LAW I-LAW B-ORG I-ORG B-PERCENT
I-PERCENT B-ORDINAL B-MONEY I-MONEY B-WORK_OF_ART I-WORK_OF_ART B-FAC B-TIME I-CARDINAL B-LOC
B-QUANTITY I-QUANTITY I-NORP I-LOC B-PRODUCT I-TIME B-EVENT I-EVENT I-FAC B-LANGUAGE I-PRODUCT
I-ORDINAL I-LANGUAGE
"""


def _glue(config: str, test: str = "validation") -> dict[str, Any]:
    tables = {"train": "train", "test": test}
    return {name: DatasetTable("nyu-mll/glue", split, config) for name, split in tables.items()}


_TASKS = (
    PublishedTexts(
        name="mnli",
        title="MNLI (matched)",
        license="other",
        **_glue("mnli", "validation_matched"),
        columns=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        template="Premise: {text_a}\nHypothesis: {text_b}",
    ),
    PublishedTexts(
        name="qqp",
        title="QQP",
        license="other",
        **_glue("qqp"),
        columns=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        template="Question 1: {text_a}\nQuestion 2: {text_b}",
    ),
    PublishedTexts(
        name="sst2",
        title="SST-2",
        license="other",
        **_glue("sst2"),
        columns=("sentence",),
        labels=("negative", "positive"),
    ),
    PublishedTagging(
        name="conll2003",
        title="CoNLL-2003 English",
        dataset="hgissbkh/conll2003-en",
        words="words",
        tags="ner",
        labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
    ),
    PublishedTagging(
        name="ontonotes5",
        title="OntoNotes 5 English",
        dataset="hgissbkh/ontonotes5",
        words="tokens",
        tags="tags",
        labels=tuple(_ONTONOTES_TAGS.split()),
    ),
    PublishedTagging(
        name="uner_en",
        title="UNER English",
        dataset="hgissbkh/uner_en",
        words="tokens",
        tags="ner_tags",
        labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"),
    ),
    PublishedQuestions(
        name="squad", title="SQuAD", license="cc-by-sa-4.0", dataset="rajpurkar/squad"
    ),
    PublishedQuestions(
        name="squad_v2", title="SQuAD v2", license="cc-by-sa-4.0", dataset="rajpurkar/squad_v2"
    ),
    PublishedQuestions(name="record", title="ReCoRD", dataset="hgissbkh/record"),
    PublishedRetrieval(
        name="msmarco",
        title="MS MARCO",
        license="cc-by-sa-4.0",
        pairs=DatasetTable("hgissbkh/msmarco-pairs", "train"),
        corpus=DatasetTable("BeIR/msmarco", "corpus", "corpus"),
        queries=DatasetTable("BeIR/msmarco", "queries", "queries"),
        judged={
            split: DatasetTable("BeIR/msmarco-qrels", split) for split in ("validation", "test")
        },
    ),
    PublishedRetrieval(
        name="nq",
        title="Natural Questions",
        license="cc-by-sa-4.0",
        trained_on="msmarco",
        corpus=DatasetTable("BeIR/nq", "corpus", "corpus"),
        queries=DatasetTable("BeIR/nq", "queries", "queries"),
        judged={"test": DatasetTable("BeIR/nq-qrels", "test")},
        document_template="Document: {title}. {text}",
    ),
    PublishedRetrieval(
        name="mldr",
        title="MLDR English",
        trained_on="msmarco",
        corpus=DatasetTable("hgissbkh/mldr-en", "corpus", "corpus"),
        document_id="docid",
        judged={
            split: DatasetTable("hgissbkh/mldr-en", named, "default")
            for split, named in (("validation", "dev"), ("test", "test"))
        },
    ),
    PublishedPairs(name="blimp", title="BLiMP", license="cc-by-4.0", dataset="nyu-mll/blimp"),
)
PUBLISHED: Mapping[str, PublishedTask] = {task.name: task for task in _TASKS}


def write_published(
    name: str,
    folder: Path,
    *,
    copies: Path | None = None,
    revision: str | None = None,
    paper: bool = False,
    kind: str | None = None,
) -> None:
    """Write a dataset of the study as a canonical task folder."""
    # `revision` is that of its repository, or `owner/name=revision,...` for several.
    task = _find(name, kind)
    opener = Opener(copies=copies, revisions=_revisions(name, revision))
    fields, content = task.read(opener, paper=paper)
    origin = {
        "published": name,
        "paper": paper and task.has_paper_reading,
        "tables": opener.origins,
        **fields.pop("origin", {}),
    }
    description = TaskDescription(
        name=task.name,
        kind=task.kind,
        title=task.title,
        license=task.license,
        trained_on=task.trained_on,
        origin=origin,
        **fields,
    )
    write_task_folder(folder, description, content)


def published_origin(
    name: str,
    *,
    copies: Path | None = None,
    revision: str | None = None,
    paper: bool = False,
    kind: str | None = None,
) -> dict[str, Any]:
    """Return what determines a published task, without reading it."""
    task = _find(name, kind)
    revisions = _revisions(name, revision)
    # Tables of one dataset are of one commit.
    datasets = {
        dataset: hub_fingerprint(dataset, revision=revisions.get(dataset), copies=copies)
        for dataset in dict.fromkeys(table.dataset for table in task.tables)
    }
    return {
        "published": name,
        "kind": task.kind,
        "paper": paper and task.has_paper_reading,
        "version": _READING_VERSION,
        "tables": [
            {**datasets[table.dataset], "config": table.config, "split": table.split}
            for table in task.tables
        ],
    }


def pinned_revision(origin: Mapping[str, Any]) -> str | None:
    """Return the commits of an origin as a revision; None for local copies, which have none."""
    tables = origin.get("tables", ())
    commits = {table["dataset"]: table["revision"] for table in tables if table["revision"]}
    return ",".join(f"{dataset}={commit}" for dataset, commit in commits.items()) or None


def _find(name: str, kind: str | None) -> PublishedTask:
    """Return a task, or its variant of a derived kind, without training pairs and prompts."""
    if name not in PUBLISHED:
        raise DataError(f"no published dataset '{name}'{nearest(name, PUBLISHED)}")
    task = PUBLISHED[name]
    if kind is None:
        return task
    if KINDS[kind].derived_from != task.kind or not isinstance(task, PublishedRetrieval):
        raise DataError(f"'{name}' is of kind {task.kind}, so it cannot be read as kind {kind}")
    return replace(
        task,
        name=f"{name}-{kind}",
        title=f"{task.title}, {KINDS[kind].facts.title}",
        kind=kind,
        trained_on=None,
        pairs=None,
        has_prompts=False,
    )


def _revisions(name: str, revision: str | None) -> dict[str, str]:
    if revision is None:
        return {}
    known = [*dict.fromkeys(table.dataset for table in PUBLISHED[name].tables)]
    if "=" not in revision:
        if len(known) == 1:
            return {known[0]: revision}
        raise DataError(
            f"{name}: '{revision}' could mean any of {', '.join(known)}; "
            f"write owner/name=revision,owner/name=revision"
        )
    revisions: dict[str, str] = {}
    for part in revision.split(","):
        repository, _, value = (text.strip() for text in part.partition("="))
        if not value:
            raise DataError(f"{name}: '{part.strip()}': write owner/name=revision")
        if repository not in known:
            raise DataError(f"{name}: does not read '{repository}'{nearest(repository, known)}")
        revisions[repository] = value
    return revisions
