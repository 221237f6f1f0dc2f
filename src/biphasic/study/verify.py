"""`biphasic study verify`: check the hashes of all files that a study uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biphasic.analysis.report import report_damage
from biphasic.data.building.build import RECORD
from biphasic.data.building.built import verify_build
from biphasic.data.pairs import Pairs
from biphasic.errors import BiphasicError
from biphasic.locks import Say
from biphasic.records import StudyRecord
from biphasic.registration import read_registrations
from biphasic.shown import Shown
from biphasic.store import CHECKPOINT, MANIFEST, RESULT, STATE, TASK, ArtifactType, Store
from biphasic.study.clean import corpus_hash, study_record_of
from biphasic.study.inputs.corpus import phase_pairs
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan
from biphasic.study.resolve import resolve
from biphasic.study.study import Study


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

    def lines(self) -> Iterator[str]:
        """Return the numbers."""
        counts = ", ".join(f"{n:,} {kind}" for kind, n in self.checked.items())
        yield f"{self.name}: verified {counts}, report"
        for kind, number in self.missing.items():
            yield f"{number:,} {kind} missing; 'biphasic study run' creates them"
        if not self.damage:
            yield "all intact"

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
    hashes = set[str]()
    if record is not None:
        text = record.provenance.get("data", {}).get("training corpus", {})
        hashes.add(str(text.get("content hash")))
    if plan is not None:
        hashes.add(plan.fingerprint.corpus_hash)
    phases = (phase for recipe in study.recipes.values() for phase in recipe.phases)
    named = {phase.corpus for phase in phases} | {study.config.corpus.folder}
    folders = {*filter(None, named)}
    for record_file in sorted((study.store / "data").glob(f"*/{RECORD}")):
        with verification.noting():
            if corpus_hash(record_file.parent) in hashes:
                folders.add(record_file.parent)
    for path in sorted(folders):
        verification.checked["corpora"] += 1
        with verification.noting():
            verify_build(path)
    for path in phase_pairs(study.recipes.values()):
        verification.checked["pairs"] += 1
        with verification.noting():
            Pairs(path)
