"""Artifacts, which are sealed when they are written and verified at every read, and their store.

An artifact is a folder with a manifest, written last: the size and SHA-256 of every file. Without
it, the folder is unfinished, and nobody reads it. A root has a store with the artifacts of all its
studies. Corpora, pairs, tokenizers and exports may also lie elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.errors import BiphasicError, CheckpointError, DataError, naming
from biphasic.files import (
    expanded,
    file_sha256,
    flush,
    is_file,
    json_value,
    partial_path,
    read_json_object,
    write_json,
)

if TYPE_CHECKING:  # pydantic takes as long to import as the help of all commands
    from biphasic.records import RecordT, ResultRecord, StateRecord

DEFAULT_ROOT = "runs"  # Folder of studies and their shared store.
STORE = "store"  # Folder with the states, results and jobs of all studies of a root.
OVERLAPS = "overlaps"  # Folder of a store.
FOUND = "found"  # Folder of a store with notes of where data of the hub are.
BUILTIN = "builtin-"  # Beginning of the names of folders of built-in tasks.
MANIFEST = "manifest.json"
CARD = "README.md"
_NOTE = re.compile(r"^<!-- biphasic (\{.*\}) -->$", re.MULTILINE)
_AGAIN = "delete the folder {0} and run again"
_EDITED = f"restore it, or delete the line '<!-- biphasic' from {CARD} if you changed it on purpose"


@dataclass(frozen=True)
class ArtifactType:
    """A kind of artifact."""

    name: str  # Its name in messages.
    place: str = ""  # Folder of a store that has them; empty if they may lie anywhere.
    identity: str = ""  # Field of the manifest that repeats the folder's name, if one does.
    files: tuple[str, ...] = ()  # Files that each of them has.
    # What an artifact was made from: kinds and identities.
    parents: Callable[[Artifact], Iterable[Key]] = lambda _: ()
    remedy: str = _AGAIN  # What to do about damage; `{0}` is the folder.
    error: type[BiphasicError] = CheckpointError
    seal: str = MANIFEST  # File that lists the others.

    def open(
        self, folder: Path, *, identity: str | None = None, remedy: str | None = None
    ) -> Artifact:
        """Open an artifact, which must have this identity, if one is given."""
        return Artifact(self, folder, identity, remedy or self.remedy)

    def is_sealed(self, folder: Path) -> bool:
        """Return whether a folder has the list of its files."""
        if self.seal == CARD:
            return _note_of(folder / CARD) is not None
        return is_file(folder / self.seal)


class Artifact:
    """An open artifact, whose files count only with the hashes in its manifest."""

    def __init__(self, kind: ArtifactType, folder: Path, identity: str | None, remedy: str) -> None:
        """Read the manifest; raise the error of its kind if it is missing or damaged."""
        self.kind, self.folder, self._remedy = kind, folder, remedy.replace("{0}", str(folder))
        if not kind.is_sealed(folder):
            raise self._error(f"incomplete (no {kind.seal})")
        try:
            seal = folder / kind.seal
            self.manifest = read_json_object(seal) if kind.seal != CARD else _note_of(seal) or {}
            self.files = {
                name: (entry["bytes"], entry["sha256"])
                for name, entry in self.manifest["files"].items()
            }
        except (DataError, KeyError, TypeError, AttributeError):
            raise self._error("damaged", kind.seal) from None
        # An edited manifest could leave out a file, which then would not be verified.
        if unlisted := next((name for name in kind.files if name not in self.files), None):
            raise self._error(f"damaged (does not list {unlisted})", kind.seal)
        if identity is not None:
            held = self.manifest.get(kind.identity)
            if held is None:
                raise self._error(f"{kind.seal} names no {kind.name}")
            if held != identity:
                raise self._error(f"holds {kind.name} {str(held)[:12]}, not {identity[:12]}")

    def verify(self, *, hashes: bool = True, may_lack: bool = False) -> Artifact:
        """Check all files; without `hashes`, only that they exist and have their sizes."""
        problem = next(self.problems(hashes=hashes, may_lack=may_lack), None)
        if problem is not None:
            raise self.kind.error(f"{problem}; {self._remedy}")
        return self

    def problems(self, *, hashes: bool = True, may_lack: bool = False) -> Iterator[str]:
        """Yield the problems of its files; with `may_lack`, missing ones are none."""
        for name, (num_bytes, sha256) in self.files.items():
            file = self.folder / name
            # A manifest that somebody edited must not lead to files outside.
            if Path(name).is_absolute() or ".." in Path(name).parts:
                yield f"{self.folder / self.kind.seal}: names {name}, which is not in its folder"
            elif not is_file(file):
                if not may_lack:
                    yield f"{file}: missing"
            elif (size := file.stat().st_size) != num_bytes:
                yield f"{file}: wrong size ({size} bytes, expected {num_bytes})"
            elif hashes and file_sha256(file) != sha256:
                yield f"{file}: damaged (SHA-256 differs from {self.kind.seal})"

    def check(self, name: str) -> Path:
        """Check the hash of one file, and return its path."""
        if not is_file(self.folder / name):
            raise self._error("missing", name)
        self._compare(name, file_sha256(self.folder / name))
        return self.folder / name

    def record(self, kind: type[RecordT], name: str) -> RecordT:
        """Read a record once, for its hash and its content."""
        from biphasic.records import parse_record  # noqa: PLC0415

        if not is_file(self.folder / name):
            raise self._error("missing", name)
        with naming(self.folder / name):
            # Another process may replace the file between two reads.
            content = (self.folder / name).read_bytes()
        self._compare(name, hashlib.sha256(content).hexdigest())
        try:
            raw = json_value(content.decode("utf-8"))
        except (ValueError, RecursionError) as invalid:
            raise self._error(f"damaged JSON ({invalid})", name) from None
        where = str(self.folder / name)
        return parse_record(kind, raw, where=where, remedy=self._remedy, error=self.kind.error)

    def _compare(self, name: str, sha256: str) -> None:
        if self.files.get(name, (0, ""))[1] != sha256:
            raise self._error("changed since it was written (SHA-256 differs)", name)

    def _error(self, problem: str, name: str = "") -> BiphasicError:
        return self.kind.error(f"{problem}; {self._remedy}", about=str(self.folder / name))


def _note_of(card: Path) -> dict[str, Any] | None:
    """Return the note of inputs and files in a model card; None without a readable one."""
    # A card may be edited, or be another program's: a model folder is then simply not sealed.
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    with suppress(ValueError, RecursionError):  # a number may be too long, or lists too deep
        if match := _NOTE.search(text):
            return json.loads(match[1])
    return None


def check_export(folder: Path) -> None:
    """Check the files of an export against its card, if it has a note of them."""
    if EXPORT.is_sealed(folder):  # of a model on the hub, only some files are fetched
        # A changed file must not be used; a missing one fails when it is read.
        EXPORT.open(folder).verify(may_lack=True)


def file_entries(folder: Path, files: Iterable[Path]) -> dict[str, Any]:
    """Return the entries of files in a manifest, by name: size and SHA-256."""
    return {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": file_sha256(file),
        }
        for file in sorted(files)
    }


@contextmanager
def complete_folder(path: Path, **manifest: Any) -> Iterator[Path]:
    """Yield a temporary folder, which is sealed and renamed to `path` when the block succeeds.

    `manifest` has further fields of the manifest. If `path` is complete by then, the new content is
    dropped: paths are content identities, so both are the same. An incomplete folder is replaced,
    unless it has files with other names.
    """
    # Beside the final folder, so that both are on one file system, where a rename is atomic.
    partial = partial_path(path)
    partial.mkdir()
    try:
        yield partial
        seal_folder(partial, **manifest)
        # Another process was faster. Neither waits for the other before, as both write the same
        # bytes.
        if is_complete(path):
            return
        if path.exists():
            _refuse_foreign(path, partial)
            shutil.rmtree(path)
        try:
            publish_folder(partial, path)
        except OSError:
            if not is_complete(path):  # else another process was faster while this one flushed
                raise
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def seal_folder(folder: Path, **manifest: Any) -> None:
    """Write the manifest of a folder, which marks it as complete."""
    # A folder that is sealed again has an old manifest, which cannot hold its own hash.
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    # `publish_folder` flushes it with the other files.
    write_json(
        folder / MANIFEST, {**manifest, "files": file_entries(folder, files)}, is_flushed=False
    )


def publish_folder(partial: Path, path: Path) -> None:
    """Rename a finished folder to `path`, which survives a power loss with all it contains.

    Everything is on the disk before the name is, so a folder with this name is never cut short.
    Others may read its files as far as the umask says.
    """
    usual = stat.S_IMODE(partial.stat().st_mode) & 0o666
    for inside in (*partial.rglob("*"), partial):
        status = inside.stat()
        # safetensors writes for the owner alone. A file with more names is in another folder, too.
        if stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077 and status.st_nlink == 1:
            inside.chmod(usual)
        flush(inside)
    partial.replace(path)
    # The rename itself is an entry of the parent folder, which a power loss could undo.
    flush(path.parent)


def is_complete(folder: Path) -> bool:
    """Return whether a folder is complete, i.e. has a manifest."""
    return is_file(folder / MANIFEST)


def _refuse_foreign(folder: Path, new: Path) -> None:
    """Raise a DataError if a folder to replace has files that the new one lacks."""
    if not folder.is_dir():
        raise DataError(f"{folder}: is a file, not a folder; move it away and run again")
    others = (p.relative_to(folder) for p in sorted(folder.rglob("*")) if not p.is_dir())
    # A half-written folder of ours has only names that the new one has as well.
    foreign = [name for name in others if not (new / name).exists()]
    if foreign:
        raise DataError(
            f"{folder}: contains {foreign[0]}, which biphasic did not write; move the folder away "
            "and run again"
        )


Key = tuple[ArtifactType, str]


def _parents_of_state(state: Artifact) -> Iterator[Key]:
    from biphasic.records import StateRecord  # noqa: PLC0415

    record = state.record(StateRecord, "state.json")
    for before in (record.parent, record.ground.get("pretrained")):
        if before:
            yield STATE, before
    for text in (record.ground.get("corpus_hash"), *record.ground.get("corpora", {}).values()):
        yield CORPUS, str(text)


def _parents_of_result(result: Artifact) -> Iterator[Key]:
    from biphasic.records import ResultRecord  # noqa: PLC0415

    yield STATE, result.record(ResultRecord, "result.json").state


STATE = ArtifactType(
    "state", "states", identity="identity", files=("state.json",), parents=_parents_of_state
)
CHECKPOINT = ArtifactType("checkpoint", "progress", identity="identity")
RESULT = ArtifactType(
    "fine-tuning", "finetunes", identity="id", files=("result.json",), parents=_parents_of_result
)
TASK = ArtifactType("task", "tasks")
JOB = ArtifactType("job", "jobs")
OVERLAP = ArtifactType("count of test examples", OVERLAPS)
PLUGIN = ArtifactType("plugin", "plugins", identity="identity")
CORPUS = ArtifactType("corpus", "data", files=("corpus.json",))
TOKENIZER = ArtifactType("tokenizer", files=("tokenizer.json",))
PAIRS = ArtifactType("pairs", files=("pairs.json",))
MODEL = ArtifactType("model")  # A kept or merged one.
SHARD = ArtifactType("shard")  # Of a corpus that is being tokenised.
REPORT = ArtifactType("report", seal="report/made-from.json", error=DataError)
EXPORT = ArtifactType("export", seal=CARD, remedy=_EDITED, error=DataError)
REGISTRATION = ArtifactType(
    "registration",
    files=("registration.json",),
    remedy="restore it from a copy",
    error=DataError,
)


class Store:
    """The artifacts of a root."""

    def __init__(self, path: Path) -> None:
        """Name the store's folder, which need not exist."""
        self.path = path

    def folder(self, kind: ArtifactType, name: str) -> Path:
        """Return the folder of an artifact."""
        return self.path / kind.place / name

    def has(self, kind: ArtifactType, name: str) -> bool:
        """Return whether an artifact is complete."""
        return is_complete(self.folder(kind, name))

    def get(self, kind: ArtifactType, name: str) -> Artifact:
        """Open an artifact."""
        return kind.open(self.folder(kind, name), identity=name if kind.identity else None)

    def put(self, kind: ArtifactType, name: str, **manifest: Any) -> AbstractContextManager[Path]:
        """Return a block that writes an artifact, as `complete_folder` does."""
        own = {kind.identity: name} if kind.identity else {}
        return complete_folder(self.folder(kind, name), **own, **manifest)

    def walk(self, kind: ArtifactType) -> set[str]:
        """Return the names of all complete artifacts of a kind."""
        return {path.name for path in sealed_in(self.path / kind.place)}

    def state(self, identity: str) -> StateRecord:
        """Read the record of a state."""
        return read_state_record(self.folder(STATE, identity), identity=identity)

    def result(self, identity: str) -> ResultRecord:
        """Read the record of a fine-tuning."""
        from biphasic.records import ResultRecord  # noqa: PLC0415

        return self.get(RESULT, identity).record(ResultRecord, "result.json")

    def with_ancestors(self, known: Iterable[Key]) -> set[Key]:
        """Return artifacts with all that they were made from, as far as the store has them."""
        found, left = set[Key](), [*known]
        while left:
            key = left.pop()
            if key not in found:
                found.add(key)
                kind, name = key
                # A state may start from a model elsewhere, and its ancestors may have been deleted.
                if kind.place and self.has(kind, name):
                    left += kind.parents(self.get(kind, name))
        return found


def sealed_in(folder: Path) -> list[Path]:
    """Return the complete folders directly below a folder, by name."""
    return sorted(filter(is_complete, folder.iterdir())) if folder.is_dir() else []


def read_state_record(folder: Path, *, identity: str | None) -> StateRecord:
    """Read the record of a complete state; an identity of None means any, as of a checkpoint."""
    from biphasic.records import StateRecord  # noqa: PLC0415

    return STATE.open(folder, identity=identity).record(StateRecord, "state.json")


def state_folder(store: Path, identity: str) -> Path:
    """Return the folder of a state."""
    return Store(store).folder(STATE, identity)


def store_of(root: Path | str) -> Path:
    """Return the store of a root."""
    return expanded(root).resolve() / STORE
