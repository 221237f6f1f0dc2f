"""Reads lines of files, decompressed, in bounded memory."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

from biphasic.errors import DataError

LONGEST_LINE = 1 << 28  # in bytes; far longer than any document
# Errors raised while damaged data are decompressed.
PACKING_ERRORS = (zlib.error, zstandard.ZstdError, EOFError)
# Four compressed bytes can hold 128 KiB, so this decompresses to at most 16 MiB.
_READ_BYTES = 1 << 9
# Text compresses at most a hundredfold. Small files may compress more.
_MOST_RATIO = 1000
_LARGE = 1 << 24
_DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),  # 31: a gzip header and the largest window
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def read_lines(file: Path) -> Iterator[bytes]:
    r"""Yield a file's lines, including `\n`, decompressed if its suffix is `.gz` or `.zst`."""
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
    # zstandard's own reader is not used: it accepts a truncated file as complete.
    decompressor = None
    num_unpacked = 0
    rest = stream.read(_READ_BYTES)
    if not rest:
        raise EOFError("it is empty")
    while compressed := rest or stream.read(_READ_BYTES):
        decompressor = decompressor or open_decompressor()
        try:
            unpacked = decompressor.decompress(compressed)
        except zstandard.ZstdError as error:
            if "too much memory" not in str(error):
                raise
            raise DataError(
                f"{file}: compressed with a window of more than 128 MiB; compress it again with "
                "--long=27 or less"
            ) from None
        num_unpacked += len(unpacked)
        if num_unpacked > max(_LARGE, _MOST_RATIO * stream.tell()):
            raise DataError(
                f"{file}: decompresses to more than {_MOST_RATIO:,} times its size, unlike text; "
                "decompress it manually to check its content"
            )
        yield unpacked
        rest = b""
        if decompressor.eof:
            rest, decompressor = decompressor.unused_data, None
    if decompressor is not None:
        raise EOFError("it ends too early")


def _split(chunks: Iterator[bytes], file: Path) -> Iterator[bytes]:
    """Split a stream of bytes after its line ends; the parts of a long line are joined once."""
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
