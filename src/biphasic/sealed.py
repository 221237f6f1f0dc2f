"""Reads what a folder's manifest, or the note in its model card, vouches for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from biphasic.errors import BiphasicError, CheckpointError, DataError, reading
from biphasic.files import (
    MANIFEST,
    file_sha256,
    identity_problem,
    is_complete,
    is_file,
    json_value,
    listed_files,
    read_json_object,
    wrong_files,
)
from biphasic.records import RecordT, ResultRecord, parse_record

CARD = "README.md"
_NOTE = re.compile(r"^<!-- biphasic (\{.*\}) -->$", re.MULTILINE)
_EDITED = f"restore it, or delete the line '<!-- biphasic' from {CARD} if you changed it on purpose"


class SealedFolder:
    """A complete folder, whose files count only with the hash in its manifest."""

    def __init__(
        self,
        folder: Path,
        *,
        identity: str | None,
        remedy: str,
        error: type[BiphasicError] = DataError,
    ) -> None:
        """Read the manifest; raise `error` if there is none, or it is of another `identity`."""
        self.folder, self._remedy, self._error = folder, remedy, error
        if not is_complete(folder):
            raise self._damage(f"incomplete (no {MANIFEST})")
        try:
            manifest = read_json_object(folder / MANIFEST)
            self._files = listed_files(manifest)
        except (DataError, ValueError):
            raise self._damage("damaged", MANIFEST) from None
        if identity is not None and (problem := identity_problem(manifest, identity)):
            raise self._damage(problem)

    def problems(self) -> Iterator[str]:
        """Yield files that are missing or of another size."""
        record = self.folder / MANIFEST
        return wrong_files(self.folder, self._files, record=record, hashes=False)

    def check(self, name: str) -> None:
        """Verify the hash of one file."""
        if not is_file(self.folder / name):
            raise self._damage("missing", name)
        self._compare(name, file_sha256(self.folder / name))

    def record(self, kind: type[RecordT], name: str) -> RecordT:
        """Read a record once, for its hash and its content."""
        if not is_file(self.folder / name):
            raise self._damage("missing", name)
        content = (self.folder / name).read_bytes()
        self._compare(name, hashlib.sha256(content).hexdigest())
        try:
            raw = json_value(content.decode("utf-8"))
        except (ValueError, RecursionError) as invalid:
            raise self._damage(f"damaged JSON ({invalid})", name) from None
        where = self._name(name)
        return parse_record(kind, raw, where=where, remedy=self._remedy, error=self._error)

    def _compare(self, name: str, sha256: str) -> None:
        if self._files.get(name, (0, ""))[1] != sha256:
            raise self._damage("changed since it was written (SHA-256 differs)", name)

    def _damage(self, problem: str, name: str = "") -> BiphasicError:
        return self._error(f"{problem}; {self._remedy}", about=self._name(name))

    def _name(self, name: str) -> str:
        return f"{self.folder.name[:12]}/{name}" if name else str(self.folder)


def read_sealed(kind: type[RecordT], folder: Path, name: str, *, identity: str | None) -> RecordT:
    """Read a record of a store; a CheckpointError if the folder is not intact, or another one's."""
    remedy = f"delete the folder {folder} and run again"
    sealed = SealedFolder(folder, identity=identity, remedy=remedy, error=CheckpointError)
    return sealed.record(kind, name)


def read_result_record(folder: Path) -> ResultRecord:
    """Read the record of a fine-tuning in a store."""
    return read_sealed(ResultRecord, folder, "result.json", identity=folder.name)


def card_note(folder: Path) -> dict[str, Any] | None:
    """Return the record of inputs and files in a folder's card; None without a readable one."""
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    with suppress(json.JSONDecodeError):
        if match := _NOTE.search(text):
            return json.loads(match[1])
    return None


def check_card(folder: Path, *, remedy: str = _EDITED, may_lack: bool = True) -> None:
    """Check the files of an export against the hashes in its card, if it has any."""
    note = card_note(folder)
    if note is None:
        return
    with reading(folder / CARD, DataError, remedy=remedy, failure="damaged note of its files"):
        files = listed_files(note)
    if may_lack:  # of a model on the hub, only some files are fetched
        files = {name: entry for name, entry in files.items() if (folder / name).exists()}
    if problem := next(wrong_files(folder, files, record=folder / CARD, hashes=True), None):
        raise DataError(f"{problem}; {remedy}")
