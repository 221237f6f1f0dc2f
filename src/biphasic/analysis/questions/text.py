"""Answers and their registration in words, and answers as a table of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import fmean

from biphasic.analysis.questions.answer import Answer
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.text import count, csv_text, listing
from biphasic.numerics import Part, is_other_code
from biphasic.records import QuestionRecord, RegistrationRecord
from biphasic.registration import changed_parts, fixed_part
from biphasic.store import result_folder

_COLUMNS = (
    "question", "answer", "comparison", "dataset", "difference", "low", "high", "p_value",
    "p_corrected", "p_of_study", "num_comparisons", "clear", "detectable", "forecast",
    "forecast_low", "forecast_high", "covered", "interval_score", "unit", "complete",
    "missing_examples",
)  # fmt: skip
_OF_MARGIN = ("margin", "p_level", "p_level_of_study", "level")
CLEAR = {1: "above zero", 0: "no", -1: "below zero"}


def answer_sentence(answer: Answer) -> str:
    """State an answer and the counts that decide it."""
    if answer.problem:
        return f"No data: {answer.problem}."
    if answer.num_missing or not answer.outcomes:
        missing = f"{answer.num_missing} of {count(len(answer.outcomes), 'comparison')}"
        return f"No data: {missing} {'has' if answer.num_missing == 1 else 'have'} no scores yet."
    total = count(len(answer.outcomes), "comparison")
    counts = f"{answer.num_for} of {total} clearly above zero, {answer.num_against} clearly below"
    if answer.question.within:
        counts += f", {answer.num_level} {answer.question.within}"
        if both := sum(one.is_level and bool(one.clear) for one in answer.outcomes):
            counts += f" ({both} both: not zero, but smaller than the margin)"
    provisional = " Provisional: some runs are missing or diverged." * (not answer.is_complete)
    if at_end := sum(one.is_at_end for one in answer.outcomes):
        provisional += (
            f" Provisional: in {at_end} of {total}, validation chooses the lowest or highest "
            "learning rate tried."
        )
    return f"{answer.verdict.capitalize()}: {counts}.{provisional}"


def rule_sentence(question: QuestionRecord) -> str:
    """State the rule that decides, as the study wrote it."""
    support, against = question.supported_if, question.against_if
    most = "" if against.clear_for is None else f" and at most {against.clear_for} clearly above"
    level = f"level if all are {question.within}, also beside one of these; "
    return (
        f"Rule: supported if {support.clear_for} or more are clearly above zero and at most "
        f"{support.clear_against} clearly below; counts against if {against.clear_against} or more "
        f"are clearly below{most}; {level if question.within else ''}else undecided."
    )


def forecast_sentence(answers: Iterable[Answer]) -> str:
    """Count the forecasts that came true, with their mean score; empty without an outcome."""
    outcomes = [one for answer in answers for one in answer.outcomes]
    found = [one.forecast for one in outcomes if one.forecast]
    if not found:
        return ""
    is_open = not all(one.is_complete for one in outcomes if one.asked.forecast)
    covered = sum(one.is_covered for one in found)
    expected = f"{0.9 * len(found):.1f}".removesuffix(".0")
    verb = "covers" if covered == 1 else "cover"
    score = fmean(one.interval_score for one in found)
    return (
        f"{covered} of {count(len(found), 'interval')} of 90 % {verb} the measured difference"
        f"{' so far' * is_open}; good forecasts cover about {expected}. The mean interval score is "
        f"{score:.1f} points (Gneiting and Raftery 2007; lower is better)."
    )


def questions_csv(answers: Sequence[Answer]) -> str:
    """Write every comparison of every question, with its forecast."""
    has_margin = any(answer.question.margin is not None for answer in answers)
    columns = (*_COLUMNS, *_OF_MARGIN) if has_margin else _COLUMNS
    return csv_text(columns, (row[: len(columns)] for answer in answers for row in _rows(answer)))


def _rows(answer: Answer) -> Iterable[tuple[object, ...]]:
    margin = answer.question.margin
    for one in answer.outcomes:
        test, forecast = one.test, one.asked.forecast
        low, high = (test and test.contrast.interval) or (None, None)
        expected = (None,) * 3 if forecast is None else (forecast.difference, *forecast.interval)
        outcome = one.forecast
        yield (
            answer.question.name,
            answer.verdict,
            one.label,
            one.dataset,
            test and test.contrast.mean,
            low,
            high,
            test and test.contrast.p_value,
            one.p_corrected,
            one.p_of_study,
            test.size if test else "",
            CLEAR[one.clear] if test else "",
            one.detectable,
            *expected,
            "" if outcome is None else ("yes" if outcome.is_covered else "no"),
            outcome and outcome.interval_score,
            answer.unit,
            "yes" if one.is_complete else "no",
            test.contrast.missing if test else "",
            margin,
            one.p_level,
            one.p_level_of_study,
            "" if one.test is None or margin is None else ("yes" if one.is_level else "no"),
        )


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
    scored = {run.arm for run in records.runs if run in records.results}
    states = [arm.state for arm in records.arms if arm.name in scored and arm.state is not None]
    made_by: dict[Part, set[tuple[str, ...]]] = {
        "pretraining": {state.code for state in states},
        "finetuning": {(one.code,) if one.code else () for one in records.results_of(records.runs)},
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
    names = {result.id for result in records.results_of(records.runs)}
    return [(result_folder(records.store, n) / "result.json").stat().st_mtime for n in names]
