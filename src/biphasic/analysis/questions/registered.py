"""When a study's questions were registered, as far as its records show it."""

from __future__ import annotations

from datetime import UTC, datetime

from biphasic.analysis.records import StudyRecords
from biphasic.analysis.text import count, listing
from biphasic.numerics import Part, is_other_code
from biphasic.records import RegistrationRecord
from biphasic.registration import changed_parts, fixed_part


def registration_sentences(records: StudyRecords) -> list[str]:
    """Describe the registration, its amendments, and whether they preceded the first score."""
    known = records.registrations
    if not known:
        return ["These questions were not registered before the results."]
    sentences = [_sentence(one) for one in known]
    if _is_other_code(records, known[-1]):
        sentences.append("Scores were made by other code than was registered.")
    if changed := changed_parts(known[-1].fixed, fixed_part(records.study)):
        sentences.append(
            f"The study was changed after that ({listing([*changed])}), and not registered again."
        )
        return sentences
    return [*sentences, _order(records)]


def _sentence(record: RegistrationRecord) -> str:
    when = f"{record.registered.replace('T', ' ').removesuffix('+00:00')} UTC"
    scores = count(record.num_scores, "score") if record.num_scores else "no score"
    stored = f"with {scores} of its arms in the store"
    if record.amends is None:
        return f"Registered {when} as {record.id[:12]}, {stored}."
    return f"Amended {when} as {record.id[:12]}, {stored}: {listing([*record.changed])} changed."


def _order(records: StudyRecords) -> str:
    """State whether the last registration preceded the first score, by the dates of results."""
    known, written = records.registrations, sorted(_written(records))
    last = known[-1]
    what = "Amended" if last.amends else "Registered"
    registered = datetime.fromisoformat(last.registered).timestamp()
    were_seen = any(one.num_scores for one in known)  # an amendment does not undo that
    if were_seen or any(date < registered for date in written):
        return (
            f"{what} after the first score, so the answers are not those of a plan made before it."
        )
    if not written:
        return "There is no score yet."
    first = datetime.fromtimestamp(written[0], UTC).isoformat(sep=" ", timespec="seconds")
    return f"{what} before the first score, which is of {first.removesuffix('+00:00')} UTC."


def _is_other_code(records: StudyRecords, last: RegistrationRecord) -> bool:
    """Return whether a result, or a state that has one, may differ from what was registered."""
    found = [outcome for outcome in records.outcomes if outcome.result is not None]
    scored = {outcome.run.arm for outcome in found}
    states = [arm.state for arm in records.arms if arm.name in scored and arm.state is not None]
    made_by: dict[Part, set[tuple[str, ...]]] = {
        "pretraining": {state.code for state in states},
        "finetuning": {
            (one.result.code,) if one.result.code else () for one in found if one.result
        },
    }
    return any(
        is_other_code(part, codes, than=last.code[part])
        for part, of_part in made_by.items()
        for codes in of_part
    )


def _written(records: StudyRecords) -> list[float]:
    """Return the dates of the results' files, which are the only dates that results have."""
    if records.store is None:
        return []
    names = {outcome.run.id for outcome in records.outcomes if outcome.result is not None}
    return [(records.store / "finetunes" / n / "result.json").stat().st_mtime for n in names]
