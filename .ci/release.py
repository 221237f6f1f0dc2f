"""Build sdist and wheel twice into dist/, check that both are equal, and list hashes and licences.

Usage: .venv/bin/python .ci/release.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).parents[1]
DIST = TOP / "dist"


def build(folder: Path) -> dict[str, str]:
    """Build sdist and wheel into a folder, and return their hashes by name."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def check_metadata(sdist: Path) -> None:
    """Parse the metadata as an index would; raises if a field is invalid."""
    with tarfile.open(sdist) as tar:
        file = tar.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        if file is None:
            raise SystemExit(f"error: {sdist}: PKG-INFO is no file")
        Metadata.from_email(file.read(), validate=True)


def licences(root: str) -> dict[str, str]:
    """Return the licences of a package's dependencies and theirs, without extras, by name."""
    found: dict[str, str] = {}
    waiting = [root]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        about = package.metadata
        classified = [text for text in about.get_all("Classifier") or () if "License ::" in text]
        stated = about.get("License-Expression") or ", ".join(
            text.split(" :: ")[-1] for text in classified
        )
        stated = stated or (about.get("License") or "").strip().partition("\n")[0]
        found[name] = f"{package.version} | {stated or 'see its files'}"
        for line in package.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    del found[canonicalize_name(root)]
    return found


def main() -> None:
    """Build and check a release."""
    shutil.rmtree(DIST, ignore_errors=True)
    hashes = build(DIST)
    with tempfile.TemporaryDirectory() as again:
        if build(Path(again)) != hashes:
            raise SystemExit("error: two builds of the same source differ")
    check_metadata(next(DIST.glob("*.tar.gz")))
    shutil.copy(TOP / "requirements.lock", DIST)
    lines = [f"{digest}  {name}\n" for name, digest in hashes.items()]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    rows = [f"| {name} | {text} |\n" for name, text in sorted(licences("biphasic").items())]
    table = ["| Dependency | Version here | Licence |\n|---|---|---|\n", *rows]
    (DIST / "LICENCES.md").write_text("".join(table), encoding="utf-8")


if __name__ == "__main__":
    main()
