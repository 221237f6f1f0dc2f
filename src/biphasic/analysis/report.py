"""A study's report on disk: written when its inputs have changed, and verified."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

from biphasic.analysis.study_file import read_study
from biphasic.errors import DataError, is_system_fault
from biphasic.files import digest, file_sha256, read_json, write_json
from biphasic.numerics import KNOWN, PARTS, running_code
from biphasic.records import STUDY
from biphasic.registration import REGISTRATIONS
from biphasic.store import REPORT, RESULT, STATE, Store, file_entries

_NOTE = "made-from.json"  # has the hash of a report's inputs, and those of its files; written last
_AGAIN = "run the study again to rewrite its report"
_LIBRARIES = ("biphasic", "jinja2", "matplotlib", "numpy", "scipy")


def write_report(study_folder: Path, store: Path) -> Path:
    """Write `report/` into a study's folder, unless it is up to date; return its page."""
    # Each file is replaced atomically, the page after the files it describes. Last comes a note of
    # the inputs and the files, with their hashes; without it, the report is incomplete.
    page = study_folder / "report" / "report.html"
    # Before the records are read: one that changes meanwhile makes the report out of date.
    made_from = _inputs_digest(study_folder, store)
    if not _is_current(study_folder, made_from):
        _write(page, study_folder, store)
        tables = page.parent.glob("*.csv")
        files = (study_folder / STUDY, page, *tables, *page.parent.glob("figures/*.[sp][vn]g"))
        entries = file_entries(study_folder, files)
        write_json(page.with_name(_NOTE), {"sha256": made_from, "files": entries})
    return page


def is_current(study_folder: Path, store: Path) -> bool:
    """Return whether a study's report is intact, and its inputs are as they were."""
    return _is_current(study_folder, _inputs_digest(study_folder, store))


def report_damage(folder: Path, *, hashes: bool) -> list[str]:
    """Return the problems of a study's report, with their remedy; none if there is no report."""
    # Without `hashes`, only missing files and wrong sizes are detected.
    note = folder / REPORT.seal
    if not REPORT.is_sealed(folder):
        is_begun = (folder / "report").is_dir()
        return [f"{note}: missing: the report was not finished; {_AGAIN}"] if is_begun else []
    try:
        problems = [*REPORT.open(folder, remedy=_AGAIN).problems(hashes=hashes)]
    except DataError as error:
        return [str(error)]
    return [f"{problem}; {_AGAIN}" for problem in problems]


def _write(page: Path, study_folder: Path, store: Path) -> None:
    # An up-to-date report needs not this, which loads matplotlib, scipy and jinja2.
    from biphasic.analysis.page.render import write_page  # noqa: PLC0415

    write_page(page, study_folder, store, note=page.with_name(_NOTE))


def _is_current(study_folder: Path, made_from: str) -> bool:
    try:
        is_same = read_json(study_folder / "report" / _NOTE)["sha256"] == made_from
    except (DataError, KeyError, TypeError):
        return False
    return is_same and not report_damage(study_folder, hashes=True)


def _inputs_digest(study_folder: Path, store: Path) -> str:
    """Hash what a report depends on beside `study.json`: records, this package and libraries."""
    study = read_study(study_folder)
    folders = [Store(store).folder(STATE, name) for name in sorted(study.states)]
    folders += [Store(store).folder(RESULT, run.id) for run in (*study.runs, *study.baselines)]
    folders += sorted((study_folder / REGISTRATIONS).glob("*/"))
    return digest(
        {
            "records": [_stamps(folder) for folder in folders],
            **_running(),
            "code": [file_sha256(KNOWN), *map(running_code, PARTS)],
        }
    )


@cache  # a process runs what it imported, even if files are edited later
def _running() -> dict[str, dict[str, str]]:
    """Return the hash of each file of this package, and the versions of libraries."""
    package = Path(__file__).parent
    sources = (path for path in package.rglob("*.*") if path.parent.name != "__pycache__")
    return {
        "package": {str(file.relative_to(package)): file_sha256(file) for file in sources},
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


def _stamps(folder: Path) -> dict[str, tuple[int, int] | None] | None:
    """Return size and date of each file; to read them all would take as long as a report."""
    # What is missing is None; the report lists it.
    try:
        with os.scandir(folder) as files:
            return {file.name: _stamp(file) for file in files}
    except OSError as error:
        if is_system_fault(error):
            raise
        return None


def _stamp(file: os.DirEntry[str]) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError as error:
        if is_system_fault(error):
            raise
        return None
    return stat.st_size, stat.st_mtime_ns
