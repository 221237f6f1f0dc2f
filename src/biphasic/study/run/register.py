"""Registers a study: fixes its questions and plan under a hash, before its first score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.analysis.page.markdown import registration_page
from biphasic.analysis.questions.power import detectable_differences, pilot_spreads
from biphasic.analysis.study_file import read_study
from biphasic.analysis.text import count
from biphasic.errors import ConfigError, DataError, LockHeldError
from biphasic.locks import refuse_while_cleaning
from biphasic.numerics import PARTS, running_code
from biphasic.records import RegistrationRecord
from biphasic.registration import (
    REGISTRATIONS,
    changed_parts,
    fixed_part,
    read_registrations,
    registration_id,
    write_registration,
)
from biphasic.shown import Shown
from biphasic.store import RESULT, Store, sealed_in
from biphasic.study import lines_of
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan
from biphasic.study.resolve import resolve
from biphasic.study.run.record import settings_digest, study_record
from biphasic.study.study import Study
from biphasic.version import __version__


def register_study(
    study: Study, *, console: Console, spread: float | None = None, pilot: Path | None = None
) -> tuple[RegistrationRecord, ...]:
    """Register a study, or amend its registration if it has changed; return all registrations."""
    if not study.config.questions:
        raise ConfigError("questions: none, so there is nothing to register; see docs/studies.md")
    try:
        with study.locked():
            return _register(study, console=console, spread=spread, pilot=pilot)
    except LockHeldError:
        known = read_registrations(study.folder)
        if (spread, pilot) == (None, None) and known and _runs_as_registered(study, known[-1]):
            return known
        raise


def _runs_as_registered(study: Study, last: RegistrationRecord) -> bool:
    """Return whether the process that has the study runs it as it was registered."""
    try:
        running = read_study(study.folder)
    except DataError:  # it has just begun
        return False
    if running.provenance.get("settings_sha256") != settings_digest(study.config):
        return False
    return not _changes(last, fixed_part(running), _code())


def _code() -> dict[str, str]:
    return {"biphasic": __version__, **{part: running_code(part) for part in PARTS}}


def _changes(
    last: RegistrationRecord, fixed: Mapping[str, Any], code: Mapping[str, str]
) -> tuple[str, ...]:
    return (*changed_parts(last.fixed, fixed), *(("code",) if last.code != code else ()))


def _register(
    study: Study, *, console: Console, spread: float | None, pilot: Path | None
) -> tuple[RegistrationRecord, ...]:
    refuse_while_cleaning(study.store)
    study.save()
    known = read_registrations(study.folder)
    resolved = resolve(study, missing="build", console=console)
    written = study_record(resolved)
    fixed, code = fixed_part(written), _code()
    changed = _changes(known[-1], fixed, code) if known else ()
    spread_on, source = _spreads(spread, pilot)
    if known and not changed:
        if source not in ("", known[-1].spread_from):
            raise ConfigError(
                f"{known[-1].id[:12]}: this study is registered as it is, with its detectable "
                "differences; omit --spread and --pilot"
            )
        return known
    num_scores = len(_existing_scores(resolved.plan, known))
    if num_scores and not known:
        raise ConfigError(
            f"{study.store}: has {count(num_scores, 'score')} of this study's arms already, so "
            "it cannot be registered before the first one; change the arms or their seeds"
        )
    amends = known[-1].id if known else None
    record = RegistrationRecord(
        format="biphasic.registration/1",
        id=registration_id(fixed, code, amends),
        registered=datetime.now(UTC).isoformat(timespec="seconds"),
        amends=amends,
        changed=changed,
        num_scores=num_scores,
        fixed=fixed,
        code=code,
        detectable=tuple(detectable_differences(written, spread_on)) if spread_on else (),
        spread_from=source,
    )
    write_registration(study.folder, record, number=len(known) + 1)
    return (*known, record)


def could_register(plan: Plan) -> bool:
    """Return whether a study with questions has neither a registration nor a score."""
    if not plan.study.config.questions or sealed_in(plan.study.folder / REGISTRATIONS):
        return False
    return next(Finished.of(plan).planned_results(), None) is None


def _existing_scores(plan: Plan, known: Sequence[RegistrationRecord]) -> list[str]:
    """Return the stored results, of any study, of states planned now or registered before."""
    states = {point.state for point in plan.points}
    states |= {arm["state"] for one in known for arm in one.fixed["arms"].values()}
    planned, store = set(plan.run_ids()), Store(plan.store)
    return [
        name
        for name in sorted(store.walk(RESULT))
        if name in planned or store.result(name).state in states
    ]


def _spreads(spread: float | None, pilot: Path | None) -> tuple[Callable[[str], float] | None, str]:
    """Return the assumed spread of each task, and where it is from."""
    if pilot is not None:
        return pilot_spreads(pilot), f"the spreads over runs of the pilot '{pilot.name}'"
    if spread is not None:
        return lambda _: spread, f"a standard deviation over runs of {spread:g} points"
    return None, ""


@dataclass(frozen=True, repr=False)
class Registered(Shown):
    """What `register` returns: the registration of a study, with its amendments.

    Attributes:
        title: Of the study.
        records: The first registration and its amendments, the newest last.
    """

    title: str
    records: tuple[RegistrationRecord, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the detectable difference of each comparison, and its power with a margin."""
        return [
            {
                "question": one.question,
                "comparison": one.comparison + 1,
                "task": one.task,
                "points": one.points,
                **one.model_dump(include={"power_of_forecast", "power_of_level"}),
            }
            for one in self.records[-1].detectable
        ]

    def to_markdown(self) -> str:
        """Return the page of the registration, to commit."""
        return registration_page(self.title, self.records)

    def lines(self) -> list[str]:
        """Return the hash, what an amendment changed, and what the study can detect."""
        return lines_of("registered", last=self.records[-1], rows=self.table())
