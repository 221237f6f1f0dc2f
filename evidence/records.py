"""Packs records of finished studies, without weights; the site builds reports from them.

Usage: .venv/bin/python evidence/records.py runs/quickstart evidence/quickstart/records.tar.gz

Several studies of one root can be packed together: `runs/one runs/other records.tar.gz`.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from biphasic.analysis.report import write_report
from biphasic.registration import REGISTRATIONS

_KEPT = ("manifest.json", "metrics.jsonl", "state.json")
"""Files of a state that reports read."""


def pack_records(studies: Sequence[Path], archive: Path) -> None:
    """Write an archive of the records of studies; the same records give the same bytes.

    Args:
        studies: Folders of studies, beside one `store/`.
        archive: The `.tar.gz` file to write.
    """
    with gzip.GzipFile(archive, "wb", mtime=0) as packed:
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
        manifest = json.loads(files["manifest.json"])
        manifest["files"] = {name: manifest["files"][name] for name in files if name in _KEPT[1:]}
        files["manifest.json"] = json.dumps(manifest, indent=1).encode()
    return {f"{name}/{file}": content for file, content in files.items()}


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
