"""What studies need of a store: `study clean` deletes the rest, `study verify` checks hashes.

Nothing is deleted while another process works in the store. Each item is renamed before it is
deleted, so an interruption never leaves a damaged item that looks finished.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from biphasic.analysis.report import report_damage
from biphasic.analysis.study_file import read_study
from biphasic.data.building.build import RECORD
from biphasic.data.building.built import verify_build
from biphasic.data.pairs import Pairs
from biphasic.errors import BiphasicError, CheckpointError, DataError
from biphasic.files import PARTIAL, digest
from biphasic.locks import LOCK, Say, find_owner, lock_cleaning, refuse_locked, refuse_running_work
from biphasic.records import STUDY, StudyRecord
from biphasic.registration import read_registrations
from biphasic.shown import Shown
from biphasic.store import (
    BUILTIN,
    CHECKPOINT,
    CORPUS,
    JOB,
    MANIFEST,
    OVERLAP,
    RESULT,
    STATE,
    STORE,
    TASK,
    ArtifactType,
    Key,
    Store,
    is_complete,
)
from biphasic.study import RESOLVED, lines_of
from biphasic.study.find import study_folders
from biphasic.study.inputs.corpus import phase_pairs
from biphasic.study.inputs.tasks import overlap_path
from biphasic.study.pins import (
    BY_NAME,
    EVENT_FILES,
    Pin,
    drop_dangling,
    has_state,
    pin_path,
    read_pins,
)
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan
from biphasic.study.resolve import content_hash, resolve
from biphasic.study.run.record import settings_digest
from biphasic.study.study import Study
from biphasic.training.recipe import PretrainedModel

_MOST = 12
EVENTS = ArtifactType("event files", EVENT_FILES)
_WORTH_NAMING = frozenset({"states", "checkpoints", "corpora", "tasks"})


@dataclass(frozen=True)
class Item:
    """A file or folder that could be deleted."""

    kind: str  # Heading under which it is listed.
    path: Path
    num_bytes: int
    about: str = ""  # Human-readable description; empty if unknown.


@dataclass(frozen=True, repr=False)
class Cleaning(Shown):
    """Items to delete, or deleted."""

    root: Path
    studies: tuple[str, ...]  # Names of the studies of the root.
    items: tuple[Item, ...]  # Items that no study needs.
    kept: tuple[Item, ...]  # Items kept only because a call outside of studies protects them.
    pins: tuple[Pin, ...]  # Pins to delete with their items.
    unsure: tuple[str, ...]  # Why corpora and tasks are excluded; empty if they are included.
    is_deleted: bool = False  # Whether the items were deleted.

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each item."""
        return [
            {"kind": one.kind, "path": str(one.path), "bytes": one.num_bytes, "about": one.about}
            for one in self.items
        ]

    def lines(self) -> list[str]:
        """Return the items by kind."""
        return lines_of("cleaning", cleaning=self, most=_MOST, worth_naming=_WORTH_NAMING)


def clean(
    root: Path, *, delete: bool = False, also_pretrained: bool = False, say: Say | None = None
) -> Cleaning:
    """Find items that no study of a root needs, and optionally delete them."""
    root = root.resolve()
    store = root / STORE
    if store.is_symlink():
        raise DataError(
            f"{store}: is a link, and studies elsewhere may use its target; clean the root that "
            "it points to"
        )
    if not store.is_dir():
        raise DataError(f"{store}: no such folder, so there is nothing to clean; give a --root")
    _refuse_studies(root, say)
    if not delete:
        refuse_running_work(store, say=say)
        return _look(root, also_pretrained=also_pretrained)
    with lock_cleaning(store, say=say) as delete_path:
        _refuse_studies(root, say)  # that have begun since
        cleaning = _look(root, also_pretrained=also_pretrained)
        for item in cleaning.items:
            delete_path(item.path)
        for pin in cleaning.pins:
            delete_path(pin_path(store, pin.id))
        drop_dangling(store)
    return replace(cleaning, is_deleted=True)


def _refuse_studies(root: Path, say: Say | None) -> None:
    # All folders: a starting study has a lock before it has settings.
    for folder in sorted(root.iterdir()):
        if find_owner(folder / LOCK) is not None:
            cancel = f"wait for it, or 'biphasic study cancel {folder.name}'"
            refuse_locked(folder / LOCK, f"{folder}: this study is running", cancel, say=say)


def _look(root: Path, *, also_pretrained: bool) -> Cleaning:
    at, folders, unsure = Store(root / STORE), study_folders(root), list[str]()
    needed = {key for folder in folders for key in needed_by(folder, unsure)}
    needed |= at.with_ancestors(key for key in needed if key[0] is STATE)
    of_no_study = _useless_items(at, folders, needed, unsure, also_foreign=True)
    pins = read_pins(at.path)
    protected = {key for pin in pins for key in pin.protected()}
    needed |= protected | at.with_ancestors(key for key in protected if key[0] is STATE)
    unreachable = _useless_items(at, folders, needed, unsure, also_foreign=False)
    kept = {item.path: item for item in of_no_study}
    for item in unreachable:
        kept.pop(item.path, None)
    return Cleaning(
        root=root,
        studies=tuple(folder.name for folder in folders),
        items=tuple(of_no_study if also_pretrained else unreachable),
        kept=() if also_pretrained else tuple(kept.values()),
        pins=pins if also_pretrained else (),
        unsure=tuple(unsure),
    )


def needed_by(folder: Path, unsure: list[str]) -> set[Key]:
    """Return what a study needs of the store, without the ancestors of its states.

    While the data of a study cannot be derived from its settings, which `unsure` then names, all
    corpora and tasks are kept.
    """
    if not (folder / RESOLVED).is_file():
        raise DataError(
            f"{folder}: has no saved settings; run its study file again (finished work is reused), "
            "or delete the folder"
        )
    study = Study.saved(folder)
    needed = {(STATE, name) for name in _models(study)}
    needed.add((JOB, f"report-{digest(study.config.name)[:32]}"))
    record, problem = study_record_of(folder), ""
    try:
        needed.update(_planned(study))
    except BiphasicError as error:
        problem = str(error)
    settings = record and record.provenance.get("settings_sha256")
    if problem and settings != settings_digest(study.config):
        raise DataError(
            f"{folder}: cannot plan this study ({problem}); run it again, or delete the folder"
        )
    if problem:
        unsure.append(f"{study.config.name}: {problem}")
    if record is not None:
        needed |= {(STATE, name) for name in record.states}
        needed |= {(RESULT, run.id) for run in (*record.runs, *record.baselines)}
    return needed


def _models(study: Study) -> Iterator[str]:
    """Yield the states of the store that arms begin with, or are."""
    for arm in study.config.arms:
        model = arm.encoder or study.recipes[arm.name].model
        if isinstance(model, PretrainedModel):
            folder = Path(model.pretrained).resolve()  # names lead to states
            if folder.parent == study.store / STATE.place:
                yield folder.name


def _planned(study: Study) -> Iterator[Key]:
    """Yield what a study's plan has; raise an error if the plan is uncertain."""
    plan = resolve(study, missing="placeholder").plan
    if plan.assumed:
        raise DataError("; ".join(plan.assumed))
    for segment in plan.segments:
        yield from ((STATE, name) for name in (segment.id, segment.parent) if name)
    for group in plan.groups:
        yield JOB, group.id
        yield from ((RESULT, name) for name in group.possible_ids())
    yield from ((RESULT, one.id) for one in plan.baselines)
    text = plan.fingerprint
    yield from ((CORPUS, name) for name in (text.corpus_hash, *text.corpora.values()))
    for task in plan.tasks:
        yield OVERLAP, overlap_path(plan.store, text, task).name
        for folder in (task.folder, task.training.folder):
            if folder.is_relative_to(study.store / TASK.place):
                yield TASK, folder.relative_to(study.store / TASK.place).parts[0]


def study_record_of(folder: Path) -> StudyRecord | None:
    """Read a study's record; None if there is none yet."""
    return read_study(folder) if (folder / STUDY).is_file() else None


def corpus_hash(folder: Path) -> str | None:
    """Return the hash of the training text in a folder of `data/`; None if unfinished."""
    if not (folder / RECORD).is_file() or not is_complete(folder / "train"):
        return None
    return content_hash(folder)


def _useless_items(
    at: Store, folders: Iterable[Path], needed: set[Key], unsure: list[str], *, also_foreign: bool
) -> list[Item]:
    """Return unreachable items of a store, and leftovers in the folders of its studies."""
    # Results come before their states: a result without its state would look like a result of an
    # external model, which is kept unless `also_foreign`.
    items = [*_unreachable_work(at, needed, also_foreign=also_foreign)]
    items += _unreachable_inputs(at, needed, is_unsure=bool(unsure))
    deleted = {item.path for item in items}
    return [*items, *_leftovers([at.path, *folders], deleted)]


def _unreachable_work(at: Store, needed: set[Key], *, also_foreign: bool) -> Iterator[Item]:
    for path in _entries(at, RESULT):
        is_left = not also_foreign and _is_of_other_model(at, path)
        if (RESULT, path.name) not in needed and not is_left:
            yield _item("fine-tunings", path)
    for path in _entries(at, CHECKPOINT):
        state, _, _ = path.name.partition("-from-")
        if (STATE, state) not in needed:
            yield _item("checkpoints", path, "of an unreachable state")
        elif at.has(STATE, state):
            yield _item("checkpoints", path, "of a finished state")
    for path in _entries(at, STATE):
        if path.name != BY_NAME and (STATE, path.name) not in needed:
            yield _item("states", path, _describe_state(at, path))


def _unreachable_inputs(at: Store, needed: set[Key], *, is_unsure: bool) -> Iterator[Item]:
    """Yield corpora and tasks, counts, event files and job files."""

    def is_corpus_needed(path: Path) -> bool:
        is_named = is_unsure or (CORPUS, path.name) in needed
        return is_named or (CORPUS, str(corpus_hash(path))) in needed

    def is_job_needed(name: str) -> bool:
        if (STATE, name) in needed:
            return not at.has(STATE, name)
        if name.startswith("data-"):
            return is_corpus_needed(at.folder(CORPUS, name.removeprefix("data-")))
        return (JOB, name) in needed  # planning rewrites others

    for path in _entries(at, CORPUS):
        if not is_corpus_needed(path):
            yield _item("corpora", path)
    for kind, heading in ((TASK, "tasks"), (OVERLAP, "counts of test examples")):
        for path in () if is_unsure else _entries(at, kind):
            if (kind, path.name) not in needed:
                about = "built-in" if path.name.startswith(BUILTIN) else ""
                yield _item(heading, path, about)
    states = {name for kind, name in needed if kind is STATE}
    for path in _entries(at, EVENTS):
        if not has_state(path, states):
            yield _item("event files", path)
    for path in _entries(at, JOB):
        if not is_job_needed(path.name.removesuffix(".json")):
            yield _item("job files", path)


def _entries(at: Store, kind: ArtifactType) -> Iterator[Path]:
    """Yield what a store has of a kind, in order, except links and leftovers."""
    folder = at.path / kind.place
    if folder.is_symlink():
        raise DataError(
            f"{folder}: is a link, and others may use its target, so nothing was deleted; replace "
            "it by a folder, or clean the root that it points to"
        )
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if not path.is_symlink() and not path.name.startswith(PARTIAL):
                yield path


def _item(kind: str, path: Path, about: str = "") -> Item:
    """Return an item with its bytes; links count as themselves."""
    if path.is_symlink() or not path.is_dir():
        return Item(kind, path, path.lstat().st_size, about)
    files = (f"{folder}/{name}" for folder, _, names in os.walk(path) for name in names)
    return Item(kind, path, sum(os.lstat(file).st_size for file in files), about)


def _describe_state(at: Store, path: Path) -> str:
    if not at.has(STATE, path.name):
        return "incomplete"
    try:
        state = at.state(path.name)
    except CheckpointError:
        return "damaged"
    phases = (f"{entry.objective} {entry.steps:,}" for entry in state.ledger)
    return f"step {state.step:,}: {', '.join(phases)}"


def _is_of_other_model(at: Store, path: Path) -> bool:
    """Return whether a result is of an external model, which no study uses."""
    try:
        state = at.result(path.name).state
    except CheckpointError:
        return False
    return not at.folder(STATE, state).exists()


def _leftovers(places: Iterable[Path], deleted: set[Path]) -> Iterator[Item]:
    """Yield leftovers of interrupted writers, two folders deep, outside of deleted folders."""
    for place in places:
        for path in sorted({*place.glob(f"{PARTIAL}*"), *place.glob(f"*/{PARTIAL}*"),
                            *place.glob(f"*/*/{PARTIAL}*")}):  # fmt: skip
            is_linked = any(p.is_symlink() for p in (path, path.parent, path.parent.parent))
            if not is_linked and not deleted & set(path.parents):
                yield _item("leftovers", path, "of an interrupted writer")


@dataclass(repr=False)
class Verification(Shown):
    """Files of a study that were compared with their hashes."""

    name: str  # Of the study.
    checked: Counter[str] = field(default_factory=Counter[str])  # Number of verified items by kind.
    # Number of missing items by kind: not made yet, or deleted.
    missing: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])  # One line each, with its remedy.

    @property
    def damage(self) -> tuple[str, ...]:
        """A line for each damaged file, with its remedy; empty if all are intact."""
        return tuple(self.problems)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each kind of files."""
        checked, missing = self.checked, self.missing
        return [
            {"kind": kind, "verified": checked[kind], "missing": missing[kind]}
            for kind in dict.fromkeys((*checked, *missing))
        ]

    def lines(self) -> list[str]:
        """Return the numbers."""
        return lines_of("verification", found=self)

    def check(self, kind: ArtifactType, folders: Iterable[Path], *, is_named: bool = True) -> None:
        """Verify folders, which `is_named` by their identities; count missing ones."""
        for folder in folders:
            if not folder.exists():
                self.missing[f"{kind.name}s"] += 1
                continue
            self.checked[f"{kind.name}s"] += 1
            with self.noting():
                kind.open(
                    folder,
                    identity=folder.name if is_named else None,
                    remedy="delete the folder {0} and run the study again",
                ).verify()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Record an error of the block as damage."""
        try:
            yield
        except BiphasicError as error:
            self.problems.append(str(error))


def verify_study(folder: Path, *, say: Say) -> Verification:
    """Verify all files that a study uses: text, pairs, tasks, states, fine-tunings, report."""
    study, verification, record = Study.saved(folder), Verification(folder.name), None
    store = study.store
    with verification.noting():
        record = study_record_of(folder)
    with verification.noting():
        read_registrations(folder)
    plan, plan_problem = None, ""
    try:
        plan = resolve(study, missing="placeholder").plan
    except BiphasicError as error:
        plan_problem = str(error)
    states, results = _names(record, plan)
    say("reading text")
    _check_text(study, record, plan, verification)
    say("reading tasks")
    verification.check(TASK, _tasks(plan, store), is_named=False)
    say(f"reading {len(states):,} states and {len(results):,} fine-tunings")
    at = Store(store)
    verification.check(STATE, (at.folder(STATE, name) for name in states))
    checkpoints = (path for name in states for path in store.glob(f"progress/{name}-from-*/step-*"))
    verification.check(CHECKPOINT, sorted(checkpoints), is_named=False)
    verification.check(RESULT, (at.folder(RESULT, name) for name in results))
    verification.problems += report_damage(folder, hashes=True)
    if plan_problem and not verification.damage:
        verification.problems.append(plan_problem)
    return verification


def _names(record: StudyRecord | None, plan: Plan | None) -> tuple[list[str], list[str]]:
    """Return the states and fine-tunings that a study's record and its plan name."""
    states, results = set[str](), set[str]()
    if record is not None:
        states.update(record.states)
        results.update(run.id for run in (*record.runs, *record.baselines))
    if plan is not None and not plan.assumed:
        finished, planned = Finished.of(plan), {segment.id for segment in plan.segments}
        missing = {segment.id for segment in finished.missing_segments()}
        states = (states - planned) | (planned & finished.states) | missing
        results.update(plan.run_ids())
    return sorted(states), sorted(results)


def _tasks(plan: Plan | None, store: Path) -> list[Path]:
    """Return the folders of a study's tasks, or of all tasks if there is no plan."""
    if plan is None:
        return sorted(path.parent for path in (store / "tasks").rglob(MANIFEST))
    folders = {folder for t in plan.tasks for folder in (t.folder, t.training.folder)}
    return sorted(folder for folder in folders if (folder / MANIFEST).is_file())


def _check_text(
    study: Study, record: StudyRecord | None, plan: Plan | None, verification: Verification
) -> None:
    hashes, trained, found = set[str](), "", set[str | None]()
    if record is not None:
        text = record.provenance.get("data", {}).get("training corpus", {})
        trained = str(text.get("content hash", ""))
        hashes.add(trained)
    if plan is not None:
        hashes |= {plan.fingerprint.corpus_hash, *plan.fingerprint.corpora.values()}
    phases = (phase.corpus for recipe in study.recipes.values() for phase in recipe.phases)
    named = (study.config.corpus.folder, *phases)
    folders = {folder for folder in named if isinstance(folder, Path)}
    for record_file in sorted((study.store / "data").glob(f"*/{RECORD}")):
        with verification.noting():
            found.add(own := corpus_hash(record_file.parent))
            if own in hashes:
                folders.add(record_file.parent)
    is_here = study.config.corpus.folder is not None or trained in found
    if trained and not (is_here or verification.damage):
        verification.missing["corpora"] += 1
    for path in sorted(folders):
        verification.checked["corpora"] += 1
        with verification.noting():
            verify_build(path)
    for path in phase_pairs(study.recipes.values()):
        verification.checked["pairs"] += 1
        with verification.noting():
            Pairs(path)
