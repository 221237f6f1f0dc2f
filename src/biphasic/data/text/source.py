"""The interface of text sources of a corpus, and the reading of text from files and folders."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import PositiveFloat

from biphasic.config import Config, closest
from biphasic.errors import ConfigError, DataError, reading
from biphasic.files import digest, expanded, file_sha256
from biphasic.plugins import Plugin, short_name
from biphasic.rows import refuse_wide, rows

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_WHOLE_BYTES = 1 << 30
_WHOLE_BYTES = 64 << 20  # maximum size of a source that is hashed whole; takes some 0.1 s
_BLOCK_BYTES = 4096
# Blocks of larger sources that are hashed, beside the first and the last of each file.
_NUM_BLOCKS = 4096


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """One document of a source."""

    id: str  # its own `id`, or its position: `folder/file.jsonl:17`
    text: str
    split: Literal["train", "heldout"] | None = None  # None if the hash of the text decides
    license: str = ""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The files of a path."""

    root: Path  # the folder that ids are relative to
    files: tuple[Path, ...]  # files in the order of their relative paths
    num_ignored: int  # files without a text suffix, and hidden ones


def find_text_files(path: Path) -> TextFiles:
    """List the text files of a path: itself, or all below it."""
    supported = f"supported are {', '.join(_READERS)}"
    if path.is_file():
        if _reader_of(path) is None:
            raise DataError(f"{path}: not a text file by its suffix; {supported}")
        _check_names(path, [])
        return TextFiles(root=path.parent, files=(path,), num_ignored=0)
    if not path.is_dir():
        if path.exists():  # a pipe, as of a shell's `<(...)`
            raise DataError(f"{path}: can be read only once; write it to a file")
        raise DataError(f"{path}: no such file or folder")
    files = list_files(path)
    known = [file for file in files if _reader_of(file) and not is_hidden(file, path)]
    if not known:
        raise DataError(f"{path}: no text files in this folder; {supported}")
    known.sort(key=lambda file: file.relative_to(path).as_posix())
    _check_names(path, known)
    return TextFiles(root=path, files=tuple(known), num_ignored=len(files) - len(known))


def _check_names(path: Path, files: Iterable[Path]) -> None:
    """Check that names can be recorded: old archives have some in other encodings than UTF-8."""
    for name in (path.resolve().name, *(file.relative_to(path).as_posix() for file in files)):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{name!r}: this name of a file or folder is not UTF-8; rename it"
            ) from None


def list_files(folder: Path) -> list[Path]:
    """List all files below a folder, in no particular order."""

    def refuse(error: OSError) -> None:
        if not is_hidden(Path(error.filename), folder):
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None

    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        for below in (Path(place, name) for name in folders):
            if below.is_symlink() and not is_hidden(below, folder):
                raise DataError(f"{below}: a linked folder; list it as a separate source")
        for file in (Path(place, name) for name in names):
            if os.path.isfile(file):  # noqa: PTH113 - `is_file` raises where access is denied
                files.append(file)
            elif _reader_of(file) and not is_hidden(file, folder):
                raise DataError(f"{file}: not readable (a broken link?); repair or remove it")
    return files


def is_hidden(file: Path, root: Path) -> bool:
    """Return whether a path below `root` is hidden, or inside something hidden."""
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def read_text_files(
    path: Path, *, column: str = "text", only: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SourceDocument]:
    """Read every document of a file or folder, one at a time.

    Plain text and Markdown files are one document each, named by their relative path. Other files
    hold one document per row, with its text in `column`; `id` (text or an integer) and `license`
    are read if present. A null text is an empty document. Rows without the values of `only` are not
    read.
    """
    listing = find_text_files(path)
    for file in listing.files:
        read = _reader_of(file)
        assert read is not None  # noqa: S101 - `find_text_files` lists no others
        with reading(file, DataError):
            yield from read(file, file.relative_to(listing.root).as_posix(), column, only)


def files_fingerprint(root: Path, files: Iterable[Path]) -> dict[str, Any]:
    """Return count, total bytes and a hash of the relative names, sizes and contents of files.

    Up to 64 MiB are hashed whole; of more, the beginning and the end of every file, and blocks
    between them.
    """
    sizes = {file: file.stat().st_size for file in files if file.is_file()}
    total = sum(sizes.values())
    listed = []
    for file, size in sizes.items():
        blocks = None if total <= _WHOLE_BYTES else 2 + _NUM_BLOCKS * size // total
        with reading(file, DataError):
            content = file_sha256(file) if blocks is None else _blocks_sha256(file, size, blocks)
        listed.append((file.relative_to(root).as_posix(), size, content))
    return {"count": len(listed), "bytes": total, "content": digest(sorted(listed))}


def _path_fingerprint(path: Path) -> dict[str, Any]:
    """Return the fingerprint of a file, or of the files below a folder that are not hidden."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    is_file = path.is_file()
    files = [path] if is_file else [f for f in list_files(path) if not is_hidden(f, path)]
    stats = ((file, file.stat()) for file in sorted(files))
    stated = tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats)
    return _fingerprint_of(path.parent if is_file else path, stated)


@lru_cache(maxsize=32)  # identities ask in every step; a file that was changed is read again
def _fingerprint_of(root: Path, stated: tuple[tuple[Path, int, int], ...]) -> dict[str, Any]:
    return files_fingerprint(root, (file for file, *_ in stated))


def with_contents(determinants: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Return determinants with the content of what a setting names by its path, not the path."""
    values = {name: getattr(settings, name, None) for name in determinants}
    paths = {name: value for name, value in values.items() if isinstance(value, Path)}
    return {**determinants, **{name: _path_fingerprint(path) for name, path in paths.items()}}


def _blocks_sha256(file: Path, size: int, count: int) -> str:
    """Hash `count` evenly spaced blocks of a file, the first and the last among them."""
    hashed, last = hashlib.sha256(), max(size - _BLOCK_BYTES, 0)
    with file.open("rb", buffering=0) as stream:
        for start in sorted({last * number // (count - 1) for number in range(count)}):
            stream.seek(start)
            hashed.update(stream.read(_BLOCK_BYTES))
    return hashed.hexdigest()


def document_of(row: Mapping[str, Any], *, column: str, place: str, where: str) -> SourceDocument:
    """Convert a row to a document; without an id of its own it gets `place`."""
    if column not in row:
        raise DataError(_missing_column(column, row, where=where))
    text = row[column]
    if text is None:
        text = ""
    if not isinstance(text, str):
        kind = type(text).__name__
        raise DataError(f"{where}: '{column}' is not text but a value of type {kind}")
    own_id, license_ = row.get("id"), row.get("license")
    if isinstance(own_id, int) and not isinstance(own_id, bool):
        own_id = str(own_id)
    return SourceDocument(
        id=own_id if isinstance(own_id, str) and own_id else place,
        text=text,
        license=license_ if isinstance(license_, str) else "",
    )


def has_values(row: Mapping[str, Any], only: Mapping[str, str], *, where: str) -> bool:
    """Return whether a row has some values, such as a language."""
    for column in only:
        if column not in row:
            raise DataError(_missing_column(column, row, where=where))
    return all(_is_value(row[column], value) for column, value in only.items())


def _is_value(cell: Any, value: str) -> bool:
    # A column of whole numbers with empty cells is often read as one of floats.
    if isinstance(cell, float) and cell.is_integer() and str(int(cell)) == value:
        return True
    return as_setting(cell) == value


def as_setting(value: Any) -> str:
    """Return a value of a table as settings write it: true and false as in JSON and YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _missing_column(column: str, columns: Iterable[str], *, where: str) -> str:
    """Return a message for a missing column, with a suggestion."""
    names = sorted(columns)
    listed = f"; there are {', '.join(names)}" if names else "; there are none"
    return f"{where}: no column '{column}'{closest(column, names)}{listed}"


def _read_whole(
    file: Path, name: str, column: str, only: Mapping[str, str]
) -> Iterator[SourceDocument]:
    del column  # the whole file is the text
    if only:
        raise DataError(f"{file}: one document, without columns; omit 'only'")
    if file.stat().st_size > _MOST_WHOLE_BYTES:
        raise DataError(f"{file}: a document of more than 1 GiB; split it, or use JSON lines")
    content = file.read_bytes()
    refuse_wide(content, where=file)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 (byte {error.start}); convert it first") from None
    yield SourceDocument(id=name, text=text)


def _read_rows(
    file: Path, name: str, column: str, only: Mapping[str, str]
) -> Iterator[SourceDocument]:
    choose = partial(_text_columns, column, only, file)
    path = str(file)  # written once: formatting a path takes longer than reading a short line
    for row in rows(file, skips_blank=True, choose=choose):
        place, where = f"{name}:{row.number}", f"{path}:{row.number}"
        if not only or has_values(row.value, only, where=where):
            yield document_of(row.value, column=column, place=place, where=where)


def _text_columns(column: str, only: Mapping[str, str], file: Path, schema: pa.Schema) -> list[str]:
    for needed in (column, *only):
        if needed not in schema.names:
            raise DataError(_missing_column(needed, schema.names, where=str(file)))
    extra = [name for name in ("id", "license", *only) if name in schema.names and name != column]
    import pyarrow.types as kinds  # noqa: PLC0415

    kind = schema.field(column).type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)):
        raise DataError(f"{file}: '{column}' is not text but values of type {kind}")
    return [column, *extra]


_Reader = Callable[[Path, str, str, Mapping[str, str]], Iterator[SourceDocument]]
_READERS: Mapping[str, _Reader] = {
    ".txt": _read_whole,
    ".md": _read_whole,
    ".jsonl": _read_rows,
    ".jsonl.gz": _read_rows,
    ".jsonl.zst": _read_rows,
    ".parquet": _read_rows,
}


def is_one_document(file: Path) -> bool:
    """Return whether a file is read whole, without columns."""
    return _reader_of(file) is _read_whole


def _reader_of(file: Path) -> _Reader | None:
    name = file.name.lower()
    return next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)


__all__ = ["SourceContext", "SourceDocument", "TextSource"]


@dataclass(frozen=True)
class SourceContext:
    """Settings of a corpus that all of its sources may use.

    Attributes:
        libraries: For the built-in documentation: libraries to read; None for all.
        copies: Folder of local copies of hub datasets, as `owner/name/`.
    """

    libraries: Collection[str] | None = None
    copies: Path | None = None


class TextSource(Config):
    """A text source of a corpus; those of ours and plugins alike."""

    plugin: ClassVar[Plugin | None] = None  # set by biphasic; None for our own
    source: str
    """Its name, or what names a plugin."""
    share: PositiveFloat | None = None
    """Share of the corpus's tokens, in any unit; set it for all sources or none."""
    license: str = ""
    """License of documents that do not state their own; only recorded."""

    @property
    def short_name(self) -> str:
        """Its name in counts and in ids of documents: that of a plugin has no file and no hash."""
        return short_name(self.source)

    @abstractmethod
    def documents(self, context: SourceContext) -> Iterator[SourceDocument]:
        """Yield the documents, one at a time, in the same order in each call and each process.

        A corpus reads a source more than once, and may stop before its end. Each document has an id
        of its own. Its `split` may be `train` or `heldout`; by default, the text's hash decides.

        Raises:
            DataError: A document cannot be read.
        """

    def origin(self, context: SourceContext) -> dict[str, Any]:
        """Return what determines the documents, beside the code, without absolute paths.

        By default, the settings, with a hash of the files that a setting of type `Path` names. Add
        what else documents depend on, such as the revision of a download.

        Raises:
            DataError: A path names nothing.
        """
        return with_contents(self.model_dump(mode="json", include={*self._own_names()}), self)

    def folder(self, context: SourceContext) -> Path | None:
        """Return the folder that it reads, where no corpus may be built; most have none."""
        return None

    def anchored(self, base: Path) -> Self:
        """Return the source with relative paths in its settings resolved against `base`."""
        if ".py:" not in self.source and (base / self.short_name).exists():
            raise ConfigError(
                f"'{self.short_name}' is an installed plugin and also a file or folder; uninstall "
                f"the plugin, or name the path as ./{self.short_name}"
            )
        own = {name: getattr(self, name) for name in self._own_names()}
        paths = {k: base / expanded(path) for k, path in own.items() if isinstance(path, Path)}
        return self.model_copy(update=paths)

    def _own_names(self) -> list[str]:
        return [name for name in type(self).model_fields if name not in TextSource.model_fields]
