"""The model card's account of training: phases, costs, text, losses, scores; all from records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from biphasic.analysis.text import (
    amount,
    count,
    listing,
    metric_name,
    objective_name,
    rate,
    scientific,
    score_cell,
)
from biphasic.export.markdown import escape, section, table
from biphasic.export.provenance import CorpusFacts
from biphasic.export.results import StateScores, TaskScore
from biphasic.export.source import TrainedState
from biphasic.records import ZERO_SHOT, LedgerEntry

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# Told elsewhere in the table, or of no account to a reader.
_PHASE_COLUMNS = {"objective", "steps", "corpus"}
_SETTINGS = {
    "precision": "precision of the computation",
    "max_seqlen": "tokens of a row, at most",
    "rows_per_step": "rows of a step",
}


def training_section(state: TrainedState) -> str:
    """Return phases with what each cost, and the settings that all share."""
    ledger = {entry.phase: entry for entry in state.record.ledger}
    recipe = state.recipe
    if not ledger:
        return section(
            "Training",
            f"{_beginning(recipe)} Nothing was trained after it: this is state "
            f"`{state.record.identity}`, step {state.record.step}.",
        )
    rows = [_phase_row(entry, _phase(recipe, entry.phase)) for entry in ledger.values()]
    if len(rows) > 1:
        rows.append(_total_row(list(ledger.values())))
    header = (
        "Phase",
        "Objective",
        "Settings",
        "Steps",
        "Documents",
        "Tokens",
        "Predicted",
        "FLOPs",
    )
    return section(
        "Training",
        f"{_beginning(recipe)} State `{state.record.identity}`, step {state.record.step:,}.",
        table(header, rows, numbers=5),
        "Tokens are those read, special ones included and padding excluded; predicted are those "
        "that the loss is of. FLOPs are of matrix products, forward and backward.",
        _shared_settings(recipe),
    )


def data_section(corpora: Sequence[CorpusFacts]) -> str:
    """Return where the text came from."""
    return section("Data", *[_corpus(facts) for facts in corpora])


def heldout_section(state: TrainedState) -> str:
    """Return losses on held-out text."""
    losses = state.record.heldout
    if not losses:
        return ""
    rows = [(objective_name(name), f"{loss:.3f}") for name, loss in sorted(losses.items())]
    return section(
        "Held-out losses",
        "Mean per predicted token, in nats, on text of the same sources that was not trained on.",
        table(("Objective", "Loss"), rows, numbers=1),
    )


def scores_section(found: StateScores) -> str:
    """Return scores with intervals, and what was left out."""
    if not found.scores and not found.left_out:
        return ""
    header = ("Task", "Metric", "Seeds", "Rates tried", "Score on test")
    left_out = "\n".join(f"- {escape(text)}" for text in found.left_out)
    return section(
        "Scores",
        "After fine-tuning: for each seed the learning rate with the best validation score; mean "
        "of the test scores in percent, with its 95 % interval by Student's t. It speaks of the "
        "seeds of fine-tuning; pretraining ran once."
        if found.scores
        else "",
        table(header, map(_score_row, found.scores), numbers=1) if found.scores else "",
        f"Left out:\n\n{left_out}" if left_out else "",
    )


def base_model(recipe: Mapping[str, Any]) -> str | None:
    """Return the finished model that training began with; None where weights were random.

    A hub id as it is, of a folder its name alone.
    """
    model = recipe.get("model")
    if not isinstance(model, Mapping) or "pretrained" not in model:
        return None
    name = str(model["pretrained"])
    return Path(name).name if Path(name).is_absolute() else name


def is_hub_id(recipe: Mapping[str, Any]) -> bool:
    """Tell whether training began with a model of the hub."""
    model = recipe.get("model")
    name = str(model.get("pretrained", "")) if isinstance(model, Mapping) else ""
    return _HUB_ID.fullmatch(name) is not None


def objectives_of(recipe: Mapping[str, Any], entry: LedgerEntry) -> set[str]:
    """Return the objectives of a phase: those that take turns or are mixed, or the only one."""
    return _names(_phase(recipe, entry.phase)) or {entry.objective}


def _names(objective: Mapping[str, Any]) -> set[str]:
    parts = objective.get("objectives") or ()
    own = {objective["objective"]} if "objective" in objective and not parts else set()
    return own.union(*map(_names, parts))


def _beginning(recipe: Mapping[str, Any]) -> str:
    base = base_model(recipe)
    if base is None:
        return "Trained from random weights."
    revision = recipe["model"].get("revision")
    return f"Goes on from `{base}`{f' at revision `{revision}`' if revision else ''}."


def _phase(recipe: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    phases = recipe.get("phases") or ()
    return phases[number] if number < len(phases) else {}


def _phase_row(entry: LedgerEntry, phase: Mapping[str, Any]) -> tuple[str, ...]:
    told = {key: value for key, value in phase.items() if key not in _PHASE_COLUMNS}
    planned = phase.get("steps")
    # A state in the middle of a phase has not done all of it.
    steps = f"{entry.steps:,}" + (f" of {planned:,}" if planned not in {None, entry.steps} else "")
    return (
        str(entry.phase + 1),
        escape(objective_name(entry.objective)),
        escape(_settings(told)) or "–",
        steps,
        amount(entry.documents),
        amount(entry.tokens),
        amount(entry.supervised_tokens),
        scientific(entry.flops),
    )


def _total_row(entries: Sequence[LedgerEntry]) -> tuple[str, ...]:
    totals = [
        amount(sum(getattr(entry, name) for entry in entries))
        for name in ("documents", "tokens", "supervised_tokens")
    ]
    flops = scientific(sum(entry.flops for entry in entries))
    return ("all", "", "", f"{sum(entry.steps for entry in entries):,}", *totals, flops)


def _settings(values: Mapping[str, Any]) -> str:
    """Return settings that say something: what is null, empty or 'as before' does not."""
    silent = ({}, [], (), None, "keep")
    told = {key: value for key, value in values.items() if value not in silent}
    told = {key: value for key, value in told.items() if (key, value) != ("learning_rate_scale", 1)}
    return ", ".join(f"{key} {_value(value)}" for key, value in told.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_settings(value)})"
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shared_settings(recipe: Mapping[str, Any]) -> str:
    lines = [f"- {words}: {recipe[name]}" for name, words in _SETTINGS.items() if name in recipe]
    for name, words in (
        ("learning_rate", "learning rate"),
        ("optimizer", "AdamW"),
        ("seeds", "seeds"),
    ):
        if isinstance(recipe.get(name), Mapping):
            lines.append(f"- {words}: {escape(_settings(recipe[name]))}")
    return "\n".join(lines)


def _corpus(facts: CorpusFacts) -> str:
    named = f"Corpus `{facts.content_hash}`"
    if facts.documents is None or facts.tokens is None:
        return f"{named}: where its text came from is not recorded here. (To fill in.)"
    whole = f"{named}: {count(facts.documents, 'document')}, {amount(facts.tokens)} tokens."
    if not facts.sources:
        return f"{whole} Where its text came from is not recorded here. (To fill in.)"
    rows = [
        (
            escape(source.name),
            escape(_licenses(source.licenses)) or "to fill in",
            f"{source.documents:,}",
            amount(source.tokens),
        )
        for source in facts.sources
    ]
    return f"{whole}\n\n{table(('Source', 'Licences', 'Documents', 'Tokens'), rows, numbers=2)}"


def _licenses(counts: Mapping[str, int]) -> str:
    return listing([f"{name} ({number:,})" for name, number in counts.items()])


def _score_row(score: TaskScore) -> tuple[str, ...]:
    task = score.task if score.trained_on is None else f"{score.task} (after {score.trained_on})"
    is_zero_shot = score.kind == ZERO_SHOT
    rates = "none (zero-shot)" if is_zero_shot else listing(list(map(rate, score.learning_rates)))
    if score.num_diverged:
        rates += f"; {score.num_diverged} diverged"
    seeds = "–" if is_zero_shot else str(score.estimate.num_seeds)
    return (
        escape(task),
        metric_name(score.metric),
        seeds,
        rates,
        score_cell(score.estimate),
    )
