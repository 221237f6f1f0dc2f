"""Text sources of a corpus: the built-in documentation, files, or hub datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from operator import not_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, model_validator

from biphasic.config import nearest
from biphasic.data.text.hub_tables import HubSplit, Resolve, find_copy, resolve_revision
from biphasic.data.text.source import (
    SourceContext,
    SourceDocument,
    TextSource,
    as_setting,
    document_of,
    files_fingerprint,
    find_text_files,
    has_values,
    read_text_files,
)
from biphasic.errors import DataError, reading
from biphasic.files import canonical_json, expanded, is_folder, json_value, read_json_object
from biphasic.plugins import accepting, code_of
from biphasic.rows import text_fault
from biphasic.store import PAIRS, is_complete

BUILTIN = "builtin:pydocs"
_HUB = "hf:"
_ALONE = SourceContext()
_SPLITS = (None, "train", "heldout")
_TRUTH = {"true": True, "false": False}
_PAIRS = "pairs.json"  # of a folder of `biphasic pairs build`
_DOCUMENTATION = "biphasic.pydocs.documents:Documentation"
_Value = Annotated[
    str, BeforeValidator(lambda value: as_setting(value) if isinstance(value, int) else value)
]  # of a row: a text, a whole number, true or false


def _texts_of_pairs(folder: Path) -> Iterator[SourceDocument]:
    import pyarrow as pa  # noqa: PLC0415 - keeps other commands fast to start

    with pa.memory_map(str(PAIRS.open(folder).check("texts.arrow"))) as file:
        for number, text in enumerate(pa.ipc.open_file(file).read_all()["text"]):
            yield SourceDocument(id=str(number), text=text.as_py())


@cache
def documentation() -> Any:
    """Return the source that `BUILTIN` names: loaded like an installed plugin, when it is used."""
    return EntryPoint(BUILTIN, _DOCUMENTATION, "biphasic.sources").load()(source=BUILTIN)


class SourceConfig(TextSource):
    """One text source of ours."""

    source: str
    """`builtin:pydocs`; a file or folder, also of pairs; or
    `hf:ID?name=CONFIG&split=SPLIT&revision=...`."""
    column: str = "text"
    """Column of a table, or key of a JSON line, that holds the text."""
    # Not written if it is empty, so that records stay as they were before this setting.
    only: dict[str, _Value] = Field(default_factory=dict, exclude_if=not_)
    """Values of the rows to read by column, such as `{language: de}`."""

    @model_validator(mode="after")
    def _consistent(self) -> SourceConfig:
        if self.source.startswith("builtin:") and not self.is_builtin:
            raise ValueError(f"unknown source '{self.source}' (did you mean '{BUILTIN}'?)")
        if not self.source.strip():
            raise ValueError("source is empty")
        # Compare values, because a fully written configuration must load again.
        if self.is_builtin and self.column != SourceConfig.model_fields["column"].default:
            raise ValueError(f"'{self.source}' has no columns; omit 'column'")
        if self.is_builtin and self.only:
            raise ValueError(f"'{self.source}' has no columns; omit 'only'")
        if (hub := self.hub) and hub.column and "column" in self.model_fields_set:
            raise ValueError(f"'{self.source}': column given twice; remove one")
        return self

    @property
    def is_builtin(self) -> bool:
        """True if this is the documentation of installed libraries."""
        return self.source == BUILTIN

    @property
    def hub(self) -> HubSplit | None:
        """The dataset; None for other sources."""
        return parse_hub(self.source) if self.source.startswith(_HUB) else None

    @property
    def path(self) -> Path | None:
        """The file or folder; None for other sources."""
        if self.is_builtin or self.source.startswith(_HUB):
            return None
        return expanded(self.source)

    @property
    def short_name(self) -> str:
        """Its name without folders, and the values of its rows."""
        name = self.source
        if self.path:
            name = self.path.resolve().name
        elif self.hub:
            folder = expanded(self.hub.dataset)
            name = folder.resolve().name if folder.is_dir() else self.hub.dataset
        return ":".join([name, *self.only.values()])

    def anchored(self, base: Path) -> Self:
        """Return the source with a relative path resolved against `base`."""
        if self.path:
            return self.model_copy(update={"source": str(base / self.path)})
        if self.hub and is_folder(folder := base / expanded(self.hub.dataset)):
            query = self.source.partition("?")[1:]
            return self.model_copy(update={"source": f"{_HUB}{folder}{''.join(query)}"})
        return self

    def documents(self, context: SourceContext) -> Iterator[SourceDocument]:
        """Read the documents."""
        if self.is_builtin:
            yield from documentation().documents(context)
        elif hub := self.hub:
            column = hub.column or self.column
            table = hub.open(context.copies, texts=[column])
            columns = table.read([column, *self.only], optional=("id", "license"))
            for number, row in enumerate(columns):
                where = f"hf:{hub.dataset}, split {hub.split}, row {number}"
                if not has_values(row, self.only, where=where):
                    continue
                yield document_of(row, column=column, place=f"{hub.split}:{number}", where=where)
        elif self.has_pairs:
            if self.only:
                raise DataError("texts of pairs have no columns; omit 'only'")
            yield from _texts_of_pairs(expanded(self.source))
        else:
            path = expanded(self.source)
            yield from read_text_files(path, column=self.column, only=self.only)

    def origin(self, context: SourceContext) -> dict[str, Any]:
        """Return what determines the documents, without reading them all."""
        if self.is_builtin:
            license_ = {"license": self.license} if self.license else {}
            return documentation().origin(context) | license_
        shared = {"license": self.license, **({"only": self.only} if self.only else {})}
        if hub := self.hub:
            rows = hub.fingerprint(context.copies)
            return {"source": "hub", "column": hub.column or self.column, **rows, **shared}
        assert self.path  # noqa: S101 - there is no fourth sort of source
        if self.has_pairs:
            sha256 = read_json_object(self.path / _PAIRS)["content_hash"]
            return {"source": "pairs", "name": self.short_name, "content_hash": sha256, **shared}
        files = find_text_files(self.path)
        return {
            "source": "files",
            "name": self.path.resolve().name,
            "column": self.column,
            "files": files_fingerprint(files.root, files.files),
            "num_ignored": files.num_ignored,
            **shared,
        }

    @property
    def has_pairs(self) -> bool:
        """True if this is a folder of pairs, whose texts are documents."""
        return bool(self.path) and is_complete(self.path) and (self.path / _PAIRS).is_file()

    def folder(self, context: SourceContext) -> Path | None:
        """Return its folder; None for a file, the hub or the built-in documentation."""
        if hub := self.hub:
            return find_copy(hub.dataset, context.copies)
        return self.path if self.path and self.path.is_dir() else None


if TYPE_CHECKING:
    AnySource = TextSource
else:
    AnySource = Annotated[
        accepting(SourceConfig, (BUILTIN,), group="sources", key="source", base=TextSource),
        BeforeValidator(lambda raw: {"source": raw} if isinstance(raw, str) else raw),
    ]
"""Settings of a source of ours or of a plugin; a plain string is shorthand for `source`."""


def parse_hub(source: str) -> HubSplit:
    """Parse `hf:ID?name=CONFIG&split=SPLIT&revision=REVISION&column=COLUMN&streaming=false`."""
    dataset, _, query = source.removeprefix(_HUB).partition("?")
    known = ("name", "split", "revision", "column", "streaming")
    values: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        if key not in known:
            raise ValueError(f"'{source}': unknown key '{key}'{nearest(key, known)}")
        if key in values or not value:
            raise ValueError(f"'{source}': give '{key}' one value")
        values[key] = unquote(value)
    if not dataset:
        raise ValueError(f"'{source}': the form is hf:OWNER/NAME")
    streaming = values.get("streaming", "true")
    if streaming not in _TRUTH:
        raise ValueError(f"'{source}': streaming must be true or false, not '{streaming}'")
    return HubSplit(
        dataset=dataset,
        config=values.get("name"),
        split=values.get("split", "train"),
        revision=values.get("revision"),
        column=values.get("column"),
        streaming=_TRUTH[streaming],
    )


def asked_once() -> Resolve:
    """Return a function that asks the hub once for each dataset and revision, for one command."""
    # Sources may be several configurations or splits of one dataset.
    return cache(resolve_revision)


def at_commit(source: TextSource, copies: Path | None, resolve: Resolve) -> TextSource:
    """Return a source with the commit of a hub dataset; others are returned as they are."""
    # What is recorded and what is read are then one commit, also if the branch moves in between.
    hub = source.hub if isinstance(source, SourceConfig) else None
    if hub is None or not (revision := hub.at_commit(copies, resolve).revision):
        return source
    name, _, query = source.source.partition("?")
    keys = [part for part in query.split("&") if part and not part.startswith("revision=")]
    named = f"{name}?{'&'.join([*keys, f'revision={revision}'])}"
    return source.model_copy(update={"source": named})


def read_documents(source: TextSource, context: SourceContext = _ALONE) -> Iterator[SourceDocument]:
    """Read a source's documents one at a time, always in the same order."""
    with reading(source.short_name, DataError, remedy="repair the source"):
        for document in source.documents(context):
            if problem := _problem(document):
                raise DataError(problem, about=source.short_name)
            if source.license and not document.license:
                document = replace(document, license=source.license)  # noqa: PLW2901
            yield document


def _problem(document: SourceDocument) -> str:
    """Return why a document cannot be part of a corpus; empty if it can."""
    if not isinstance(document, SourceDocument) or not isinstance(document.id, str):
        return f"documents yields {document!r:.80}; it must yield SourceDocument, with a text as id"
    what = f"document {document.id!r:.80}"
    if not isinstance(document.text, str):
        return f"{what}: its text is of type {type(document.text).__name__}"
    for part, text in (("id", document.id), ("text", document.text)):
        if fault := text_fault(text):
            return f"{what}: its {part} {fault}"
    if document.split not in _SPLITS:
        return f"{what}: its split is {document.split!r:.80}; it must be 'train', 'heldout' or None"
    return ""


def source_origin(source: TextSource, context: SourceContext = _ALONE) -> dict[str, Any]:
    """Return what determines a source's documents: what it says, and the code of a plugin."""
    origin = source.origin(context)
    if source.plugin is None:
        return origin
    # Compared with that of a record, where a tuple is a list.
    origin = json_value(canonical_json(origin))
    return {"source": "plugin", "origin": origin, "license": source.license, **code_of(source)}


def files_skipped(origins: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the number of files that each folder among sources skips, by their origins."""
    for origin in origins:
        if number := origin.get("num_ignored"):
            yield f"{origin['name']}: {number:,} files skipped (hidden, or not a text suffix)"
