"""Lines of files, unpacked on the way, in bounded memory whatever a file holds."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

from biphasic.errors import DataError

LONGEST_LINE = 1 << 28
"""In bytes: far more than any document has."""
PACKING_ERRORS = (zlib.error, zstandard.ZstdError, EOFError)
"""What damaged data raise that are being unpacked."""
# Four packed bytes can hold 128 KiB, so this unpacks to 16 MiB at most.
_READ_BYTES = 1 << 9
# Text takes a hundredth of its size at best. Small files may be as empty as they like.
_MOST_RATIO = 1000
_LARGE = 1 << 24
_DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),  # 31: a gzip header and the largest window
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def read_lines(file: Path) -> Iterator[bytes]:
    r"""Yield a file's lines, `\n` included, unpacked if its suffix is `.gz` or `.zst`.

    Raises:
        DataError: A line is too long, or the file unpacks to far more than text ever does.
        OSError: It cannot be opened.
        Exception: One of `PACKING_ERRORS`: its packed data are damaged.
    """
    open_decompressor = _DECOMPRESSORS.get(file.suffix.lower())
    with file.open("rb") as stream:
        if open_decompressor is None:
            lines = iter(partial(stream.readline, LONGEST_LINE + 1), b"")
        else:
            lines = _split(_decompress(file, stream, open_decompressor), file)
        for line in lines:
            if len(line) > LONGEST_LINE:
                raise _too_long(file)
            yield line


def _too_long(file: Path) -> DataError:
    return DataError(
        f"{file}: a line of more than {LONGEST_LINE >> 20} MiB; is this a text file, with one "
        "document a line?"
    )


def _decompress(
    file: Path, stream: io.BufferedReader, open_decompressor: Callable[[], Any]
) -> Iterator[bytes]:
    """Yield what a stream of compressed members (or frames) holds.

    Written out because zstandard's own reader takes a truncated file for a complete one.

    Raises:
        EOFError: The stream is empty, or its last member incomplete.
    """
    decompressor = None
    num_unpacked = 0
    rest = stream.read(_READ_BYTES)
    if not rest:
        raise EOFError("it is empty")
    while compressed := rest or stream.read(_READ_BYTES):
        decompressor = decompressor or open_decompressor()
        unpacked = decompressor.decompress(compressed)
        num_unpacked += len(unpacked)
        if num_unpacked > max(_LARGE, _MOST_RATIO * stream.tell()):
            raise DataError(
                f"{file}: unpacks to more than {_MOST_RATIO:,} times its size, which no text does; "
                "unpack it yourself to see what it holds"
            )
        yield unpacked
        rest = b""
        if decompressor.eof:
            rest, decompressor = decompressor.unused_data, None
    if decompressor is not None:
        raise EOFError("it ends too early")


def _split(chunks: Iterator[bytes], file: Path) -> Iterator[bytes]:
    """Cut a stream of bytes behind its line ends; the parts of a long line are joined once."""
    pending: list[bytes] = []
    num_pending = 0
    for chunk in chunks:
        *ended, last = chunk.split(b"\n")
        for part in ended:
            yield b"".join((*pending, part, b"\n"))
            pending, num_pending = [], 0
        pending.append(last)
        num_pending += len(last)
        if num_pending > LONGEST_LINE:
            raise _too_long(file)
    if num_pending:
        yield b"".join(pending)
