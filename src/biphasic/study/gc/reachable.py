"""Items reachable from the studies of a root, by their plans and records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from biphasic.analysis.study_file import read_study
from biphasic.data.building.build import RECORD
from biphasic.errors import BiphasicError, DataError
from biphasic.records import STUDY, StudyRecord
from biphasic.store import STATES, is_complete
from biphasic.study import RESOLVED
from biphasic.study.gc.pins import Pin
from biphasic.study.inputs.overlaps import overlap_path
from biphasic.study.plan.preview import content_hash, preview_study
from biphasic.study.run.record import settings_digest
from biphasic.study.study import Study
from biphasic.training.recipe import PretrainedModel
from biphasic.training.state import find_state


@dataclass
class Reachable:
    """Reachable names in a store."""

    states: set[str] = field(default_factory=set[str])  # Identities of states, finished or not.
    results: set[str] = field(default_factory=set[str])  # Identities of fine-tunings.
    groups: set[str] = field(default_factory=set[str])  # Identities of jobs of fine-tunings.
    corpora: set[str] = field(default_factory=set[str])  # Content hashes of training text.
    data: set[str] = field(default_factory=set[str])  # Folders of `data/`.
    tasks: set[str] = field(default_factory=set[str])  # Folders of `tasks/`.
    overlaps: set[Path] = field(default_factory=set[Path])  # Files of `overlaps/`.
    studies: set[str] = field(default_factory=set[str])
    # Studies whose data cannot be derived from their settings; while there are any, all corpora and
    # tasks are kept.
    unsure: list[str] = field(default_factory=list[str])


def add_pins(reachable: Reachable, pins: Iterable[Pin], store: Path) -> None:
    """Add pinned results, with their ancestors and training text."""
    pinned: set[str] = set()
    for pin in pins:
        pinned.update(pin.states)
        reachable.results.update(pin.results)
        reachable.data.update(pin.data)
    reachable.states |= pinned
    add_ancestors(reachable, store)
    for identity in pinned:
        if state := find_state(store, identity):
            reachable.corpora.add(str(state.ground.get("corpus_hash")))


def add_ancestors(reachable: Reachable, store: Path) -> None:
    """Add the states that the known ones continue from."""
    left = list(reachable.states)
    while left:
        if state := find_state(store, left.pop()):
            for before in (state.parent, state.ground.get("pretrained")):
                if before and before not in reachable.states:
                    reachable.states.add(before)
                    left.append(before)


def corpus_hash(folder: Path) -> str | None:
    """Return the hash of the training text in a folder of `data/`; None if unfinished."""
    if not (folder / RECORD).is_file() or not is_complete(folder / "train"):
        return None
    return content_hash(folder)


def add_study(reachable: Reachable, folder: Path) -> None:
    """Add the names that a study needs, without the ancestors of its states."""
    if not (folder / RESOLVED).is_file():
        raise DataError(
            f"{folder}: has no saved settings; run its study file "
            "again (finished work is reused), or delete the folder"
        )
    study = Study.saved(folder)
    reachable.studies.add(study.config.name)
    reachable.states.update(_models(study))
    record = study_record_of(folder)
    problem = _add_plan(reachable, study)
    settings = record and record.provenance.get("settings_sha256")
    is_of_settings = settings == settings_digest(study.config)
    if problem and not is_of_settings:
        raise DataError(
            f"{folder}: cannot plan this study ({problem}); run it again, or delete the folder"
        )
    if problem:
        reachable.unsure.append(f"{study.config.name}: {problem}")
    if record is not None:
        reachable.states.update(record.states)
        reachable.results.update(run.id for run in (*record.runs, *record.baselines))


def _models(study: Study) -> Iterator[str]:
    """Yield the states of the store that arms begin with, or are."""
    for arm in study.config.arms:
        model = arm.encoder or study.recipes[arm.name].model
        if isinstance(model, PretrainedModel):
            folder = Path(model.pretrained).resolve()  # names lead to states
            if folder.parent == study.store / STATES:
                yield folder.name


def study_record_of(folder: Path) -> StudyRecord | None:
    """Read a study's record; None if there is none yet."""
    return read_study(folder) if (folder / STUDY).is_file() else None


def _add_plan(reachable: Reachable, study: Study) -> str:
    """Add the names in a study's plan; return why the plan is uncertain, or an empty string."""
    try:
        plan = preview_study(study)
    except BiphasicError as error:
        return str(error)
    if plan.assumed:
        return "; ".join(plan.assumed)
    for segment in plan.segments:
        reachable.states.update(filter(None, (segment.id, segment.parent)))
    reachable.groups.update(group.id for group in plan.groups)
    reachable.results.update(name for group in plan.groups for name in group.possible_ids())
    reachable.results.update(one.id for one in plan.baselines)
    fingerprint, tasks = plan.fingerprint, study.store / "tasks"
    reachable.corpora.update((fingerprint.corpus_hash, *fingerprint.corpora.values()))
    reachable.overlaps.update(overlap_path(plan.store, fingerprint, task) for task in plan.tasks)
    for folder in (f for task in plan.tasks for f in (task.folder, task.training.folder)):
        if folder.is_relative_to(tasks):
            reachable.tasks.add(folder.relative_to(tasks).parts[0])
    return ""
