"""The twelve datasets of the reference study and BLiMP: task files of tables on the hub.

`docs/protocol.md` describes each, and where this differs from the study.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from biphasic.config import nearest
from biphasic.data.text.hub import hub_fingerprint
from biphasic.errors import DataError
from biphasic.tasks.folder import write_task_folder
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.published.examples import (
    read_pairs,
    read_questions,
    read_tagging,
    read_texts,
)
from biphasic.tasks.published.ir import read_retrieval
from biphasic.tasks.published.tables import Opener
from biphasic.tasks.task_file import HubTables, TaskFile, describe, load_task_file

# Increase by hand when the same tables give a different task.
_READING_VERSION = 1
_FILES = {path.stem: path for path in sorted(Path(__file__).with_name("datasets").glob("*.yaml"))}
_READERS = {
    "sc": read_texts,
    "tc": read_tagging,
    "qa": read_questions,
    "mp": read_pairs,
}


class _Published(Mapping[str, TaskFile]):
    """Task files by name, read when they are asked for."""

    def __getitem__(self, name: str) -> TaskFile:
        return _load(_FILES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)


@cache
def _load(path: Path) -> TaskFile:
    return load_task_file(path)


PUBLISHED = _Published()


def published_text(name: str) -> str:
    """Return the task file of a published dataset."""
    if name not in PUBLISHED:
        raise DataError(f"no published dataset '{name}'{nearest(name, PUBLISHED)}")
    return _FILES[name].read_text("utf-8")


def tables_of(file: TaskFile) -> HubTables:
    """Return the tables of a task on the hub."""
    if file.hub is None:
        raise DataError(f"task '{file.name}': no tables on the hub (hub)")
    return file.hub


def has_paper_reading(file: TaskFile) -> bool:
    """Return whether the reference study reads the tables otherwise, mistakes included."""
    return tables_of(file).corpus is not None


def write_hub(
    file: TaskFile,
    folder: Path,
    *,
    copies: Path | None = None,
    revision: str | None = None,
    paper: bool = False,
    origin: Mapping[str, Any],
) -> None:
    """Write a task of tables on the hub as a canonical task folder."""
    # `revision` is that of its repository, or `owner/name=revision,...` for several.
    hub = tables_of(file)
    opener = Opener(copies=copies, revisions=_revisions(file, revision))
    more, content = (
        read_retrieval(file, hub, opener, paper=paper)
        if hub.corpus is not None
        else _READERS[file.kind](file, hub, opener)
    )
    described = {**origin, "tables": opener.origins, **more}
    write_task_folder(folder, describe(file, origin=described, where=file.name), content)


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
    file = _find(name, kind)
    paper = paper and has_paper_reading(file)
    origin = {"published": name, "paper": paper}
    write_hub(file, folder, copies=copies, revision=revision, paper=paper, origin=origin)


def published_origin(
    name: str,
    *,
    copies: Path | None = None,
    revision: str | None = None,
    paper: bool = False,
    kind: str | None = None,
) -> dict[str, Any]:
    """Return what determines a published task, without reading it."""
    file = _find(name, kind)
    return {
        "published": name,
        "kind": file.kind,
        "paper": paper and has_paper_reading(file),
        **hub_origin(file, copies=copies, revision=revision),
    }


def hub_origin(
    file: TaskFile, *, copies: Path | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Return which tables a task is read from, and the commits of their datasets."""
    revisions, tables = _revisions(file, revision), tables_of(file).tables
    # Tables of one dataset are of one commit.
    datasets = {
        dataset: hub_fingerprint(dataset, revision=revisions.get(dataset), copies=copies)
        for dataset in dict.fromkeys(table.dataset for table in tables)
    }
    return {
        "version": _READING_VERSION,
        "tables": [
            {**datasets[table.dataset], "config": table.config, "split": table.split}
            for table in tables
        ],
    }


def pinned_revision(origin: Mapping[str, Any]) -> str | None:
    """Return the commits of an origin as a revision; None for local copies, which have none."""
    tables = origin.get("tables", ())
    commits = {table["dataset"]: table["revision"] for table in tables if table["revision"]}
    return ",".join(f"{dataset}={commit}" for dataset, commit in commits.items()) or None


def _find(name: str, kind: str | None) -> TaskFile:
    """Return a task, or its variant of a derived kind, without training pairs and prompts."""
    if name not in PUBLISHED:
        raise DataError(f"no published dataset '{name}'{nearest(name, PUBLISHED)}")
    file = PUBLISHED[name]
    if kind is None:
        return file
    if KINDS[kind].derived_from != file.kind:
        raise DataError(f"'{name}' is of kind {file.kind}, so it cannot be read as kind {kind}")
    changes = {
        "name": f"{name}-{kind}",
        "title": f"{file.title}, {KINDS[kind].facts.title}",
        "kind": kind,
        "hub": tables_of(file).model_copy(update={"pairs": None}),
    }
    own = file.model_fields_set - {"trained_on", "query_template", "document_template"}
    return TaskFile.model_construct(own, **{**dict(file), **changes})


def _revisions(file: TaskFile, revision: str | None) -> dict[str, str]:
    name, tables = file.name, tables_of(file).tables
    if revision is None:
        return {table.dataset: table.revision for table in tables if table.revision}
    known = [*dict.fromkeys(table.dataset for table in tables)]
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
