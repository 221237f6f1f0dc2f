"""Packs records of finished studies, without weights; the site builds reports from them.

Usage: .venv/bin/python evidence/records.py runs/quickstart evidence/quickstart/records.tar.xz

Several studies of one root can be packed together: `runs/one runs/other records.tar.xz`. Archives
have what reports read: results, scores of test examples, and losses.
"""

from __future__ import annotations

import io
import json
import lzma
import sys
import tarfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO

import pyarrow.compute as pc
import pyarrow.parquet as pq

from biphasic.analysis.report import write_report
from biphasic.records import LossLine
from biphasic.registration import REGISTRATIONS

_KEPT = ("manifest.json", "metrics.jsonl", "state.json")
"""Files of a state that reports read."""

_UNREAD = ("score", "good", "bad")
"""Columns of test examples that reports do not read, where a metric has its own."""


def pack_records(studies: Sequence[Path], archive: Path) -> None:
    """Write an archive of the records of studies; the same records give the same files.

    Args:
        studies: Folders of studies, beside one `store/`.
        archive: The `.tar.xz` file to write.
    """
    # Preset 9 looks back 64 MB: all runs of a task have the same examples.
    with lzma.open(archive, "wb", preset=9) as packed:
        write_records(studies, packed)


def write_records(studies: Sequence[Path], stream: IO[bytes]) -> None:
    """Write what `pack_records` compresses."""
    texts = {study.name: (study / "study.json").read_text(encoding="utf-8") for study in studies}
    files = {f"{name}/study.json": text.encode() for name, text in texts.items()}
    root = studies[0].parent
    for name in texts:
        for file in sorted((root / name / REGISTRATIONS).glob("*/*.json")):
            files[file.relative_to(root).as_posix()] = file.read_bytes()
    for kind in ("finetunes", "states"):
        for folder in sorted((root / "store" / kind).iterdir()):
            if any(folder.name in text for text in texts.values()):
                files |= _records(folder, f"store/{kind}/{folder.name}")
    with tarfile.open(None, "w", stream) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            if Path(name).name == "result.json":  # the date tells whether it was registered before
                entry.mtime = int((root / name).stat().st_mtime)
            tar.addfile(entry, io.BytesIO(content))


def _records(folder: Path, name: str) -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}
    if "state.json" in files:
        files = {name: content for name, content in files.items() if name in _KEPT}
        files["metrics.jsonl"] = _losses(files["metrics.jsonl"])
    if "scores.parquet" in files:
        files["scores.parquet"] = _test_scores(files["scores.parquet"])
    manifest = json.loads(files["manifest.json"])
    sealed = {file: text for file, text in files.items() if file in manifest["files"]}
    manifest["files"] = {
        file: {"bytes": len(text), "sha256": sha256(text).hexdigest()}
        for file, text in sealed.items()
    }
    files["manifest.json"] = json.dumps(manifest, indent=1).encode()
    return {f"{name}/{file}": content for file, content in files.items()}


def _losses(text: bytes) -> bytes:
    """Return the lines of a log with what reports read of them; held-out lines stay as they are."""
    lines = map(json.loads, text.splitlines())
    kept = (
        line if "heldout" in line else {key: line[key] for key in sorted(LossLine.model_fields)}
        for line in lines
    )
    return "".join(json.dumps(line) + "\n" for line in kept).encode()


def _test_scores(content: bytes) -> bytes:
    """Return what reports read of scores, uncompressed: the archive compresses all runs at once."""
    file = pq.ParquetFile(io.BytesIO(content))
    if file.metadata.row_group(0).column(0).compression == "UNCOMPRESSED":
        return content  # packed before, perhaps by another version of Arrow
    table = file.read()
    table = table.filter(pc.equal(table["split"], "test"))
    unread = [name for name in _UNREAD if name in table.column_names]
    if set(table.column_names) > {"split", "id", *unread}:
        table = table.drop_columns(unread)
    small = io.BytesIO()
    pq.write_table(table, small, compression="none", use_dictionary=False)
    return small.getvalue()


def write_reports(archives: Iterable[Path], root: Path) -> None:
    """Unpack records of studies into one root, and write the report of each study there."""
    for archive in archives:
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
    for record in root.glob("*/study.json"):
        write_report(record.parent, root / "store")


if __name__ == "__main__":
    *studies, archive = map(Path, sys.argv[1:])
    pack_records(studies, archive)
