"""Text sources of a corpus: the built-in documentation, files, or hub datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import PositiveFloat, model_validator

from biphasic.config import Config, nearest
from biphasic.data.text.files import (
    SourceDocument,
    document_of,
    files_fingerprint,
    find_text_files,
    read_text_files,
)
from biphasic.data.text.hub import find_copy, hub_fingerprint, open_hub
from biphasic.data.text.pydocs import load_documents, pydocs_origin
from biphasic.files import expanded, is_folder

BUILTIN = "builtin:pydocs"
_HUB = "hf:"
_TRUTH = {"true": True, "false": False}
# The built-in test split is excluded: it belongs to the tasks made from the same texts.
_BUILTIN_SPLITS: Mapping[str, Literal["train", "heldout"]] = {
    "train": "train",
    "validation": "heldout",
}


@dataclass(frozen=True, slots=True)
class HubSource:
    """A hub dataset, written as `hf:ID?name=CONFIG&split=SPLIT...`."""

    dataset: str  # hub id, or path of a local folder in the hub's layout
    config: str | None
    split: str
    revision: str | None
    column: str | None
    streaming: bool


class SourceConfig(Config):
    """One text source; a plain string is shorthand for its `source`."""

    source: str
    """`builtin:pydocs`; a file or folder; or `hf:ID?name=CONFIG&split=SPLIT&revision=...`."""
    column: str = "text"
    """Column of a table, or key of a JSON line, that holds the text."""
    share: PositiveFloat | None = None
    """Share of the corpus's tokens, in any unit; set it for all sources or none."""
    license: str = ""
    """License of documents that do not state their own; only recorded."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, raw: Any) -> Any:
        return {"source": raw} if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _consistent(self) -> SourceConfig:
        if self.source.startswith("builtin:") and not self.is_builtin:
            raise ValueError(f"unknown source '{self.source}' (did you mean '{BUILTIN}'?)")
        if not self.source.strip():
            raise ValueError("source is empty")
        # Compare values, because a fully written configuration must load again.
        if self.is_builtin and self.column != SourceConfig.model_fields["column"].default:
            raise ValueError(f"'{self.source}' has no columns; omit 'column'")
        if (hub := self.hub) and hub.column and "column" in self.model_fields_set:
            raise ValueError(f"'{self.source}': column given twice; remove one")
        return self

    @property
    def is_builtin(self) -> bool:
        """Whether this is the documentation of installed libraries."""
        return self.source == BUILTIN

    @property
    def hub(self) -> HubSource | None:
        """The dataset; None for other sources."""
        return parse_hub(self.source) if self.source.startswith(_HUB) else None

    @property
    def path(self) -> Path | None:
        """The file or folder; None for other sources."""
        if self.is_builtin or self.source.startswith(_HUB):
            return None
        return expanded(self.source)

    def anchored(self, base: Path) -> SourceConfig:
        """Return the source with a relative path resolved against `base`."""
        if self.path:
            return self.model_copy(update={"source": str(base / self.path)})
        if self.hub and is_folder(folder := base / expanded(self.hub.dataset)):
            query = self.source.partition("?")[1:]
            return self.model_copy(update={"source": f"{_HUB}{folder}{''.join(query)}"})
        return self


def parse_hub(source: str) -> HubSource:
    """Parse `hf:ID?name=CONFIG&split=SPLIT&revision=REVISION&column=COLUMN&streaming=false`."""
    dataset, _, query = source.removeprefix(_HUB).partition("?")
    known = ("name", "split", "revision", "column", "streaming")
    given: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        if key not in known:
            raise ValueError(f"'{source}': unknown key '{key}'{nearest(key, known)}")
        if key in given or not value:
            raise ValueError(f"'{source}': give '{key}' one value")
        given[key] = unquote(value)
    if not dataset:
        raise ValueError(f"'{source}': the form is hf:OWNER/NAME")
    streaming = given.get("streaming", "true")
    if streaming not in _TRUTH:
        raise ValueError(f"'{source}': streaming must be true or false, not '{streaming}'")
    return HubSource(
        dataset=dataset,
        config=given.get("name"),
        split=given.get("split", "train"),
        revision=given.get("revision"),
        column=given.get("column"),
        streaming=_TRUTH[streaming],
    )


def read_documents(
    source: SourceConfig, *, libraries: Collection[str] | None = None, copies: Path | None = None
) -> Iterator[SourceDocument]:
    """Read a source's documents one at a time, always in the same order."""
    if source.is_builtin:
        for document in load_documents(libraries):
            if split := _BUILTIN_SPLITS.get(document.split):
                yield SourceDocument(document.id, document.text, split, source.license)
        return
    if source.hub:
        documents = _read_hub(source.hub, column=source.hub.column or source.column, copies=copies)
    else:
        documents = read_text_files(expanded(source.source), column=source.column)
    for document in documents:
        yield replace(document, license=document.license or source.license)


def source_origin(
    source: SourceConfig, *, libraries: Collection[str] | None = None, copies: Path | None = None
) -> dict[str, Any]:
    """Return what determines a source's documents, without reading them or any absolute paths."""
    if source.is_builtin:
        return {
            "source": BUILTIN,
            **pydocs_origin(libraries),
            **({"license": source.license} if source.license else {}),
        }
    shared = {"license": source.license}
    if hub := source.hub:
        names = {"config": hub.config, "split": hub.split, "revision": hub.revision}
        fingerprint = hub_fingerprint(hub.dataset, **names, copies=copies)
        return {"source": "hub", "column": hub.column or source.column, **fingerprint, **shared}
    assert source.path  # noqa: S101 - there is no fourth sort of source
    files = find_text_files(source.path)
    return {
        "source": "files",
        "name": source.path.resolve().name,
        "column": source.column,
        "files": files_fingerprint(files.root, files.files),
        "num_ignored": files.num_ignored,
        **shared,
    }


def source_folder(source: SourceConfig, *, copies: Path | None = None) -> Path | None:
    """Return the folder of a source; None for a file, the hub or the built-in documentation."""
    if hub := source.hub:
        return find_copy(hub.dataset, copies)
    return source.path if source.path and source.path.is_dir() else None


def _read_hub(hub: HubSource, *, column: str, copies: Path | None) -> Iterator[SourceDocument]:
    table = open_hub(
        hub.dataset,
        config=hub.config,
        split=hub.split,
        revision=hub.revision,
        streaming=hub.streaming,
        copies=copies,
    )
    for number, row in enumerate(table.read([column], optional=("id", "license"))):
        where = f"hf:{hub.dataset}, split {hub.split}, row {number}"
        yield document_of(row, column=column, place=f"{hub.split}:{number}", where=where)
