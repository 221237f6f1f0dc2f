"""Training facts of the model card: phases, costs, text, losses, scores; all from records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from biphasic.data.corpus import TEXTS
from biphasic.errors import DataError
from biphasic.export.cards.results import TaskScore
from biphasic.files import read_json
from biphasic.records import ZERO_SHOT, LedgerEntry, StateRecord

_CORPUS = "corpus.json"
# Shown elsewhere in the table, or irrelevant to readers.
_PHASE_COLUMNS = {"objective", "steps", "corpus"}
_SETTINGS = {
    "precision": "compute precision",
    "max_seqlen": "maximum tokens per row",
    "rows_per_step": "rows per step",
}
_GROUPS = {"learning_rate": "learning rate", "optimizer": "AdamW", "seeds": "seeds"}


@dataclass(frozen=True)
class TextSource:
    """A part of a corpus.

    Attributes:
        name: Such as `hf:OWNER/NAME` or a folder's name.
        tokens: Number of tokens, without special tokens.
        licenses: Number of documents by license; empty if the source states none.
    """

    name: str
    documents: int
    tokens: int
    licenses: Mapping[str, int]


@dataclass(frozen=True)
class CorpusFacts:
    """A corpus that a state was trained on.

    Attributes:
        content_hash: Hash of its ordered content.
        documents: Number of documents; None if the corpus was not found.
        tokens: Number of tokens; None if the corpus was not found.
        sources: Its parts; empty if unknown.
    """

    content_hash: str
    documents: int | None
    tokens: int | None
    sources: tuple[TextSource, ...]


def training_facts(
    state: StateRecord, scores: Sequence[TaskScore], *, store: Path
) -> dict[str, Any]:
    """Return the template variables for training, text, losses and scores."""
    recipe = state.recipe
    ledger = {entry.phase: entry for entry in state.ledger}
    phases = [_phase_row(entry, _phase(recipe, entry.phase)) for entry in ledger.values()]
    if len(phases) > 1:
        phases.append(_total_row([*ledger.values()]))
    base = base_model(recipe)
    return {
        "base_model": recipe["model"]["pretrained"] if base else None,
        "base": base,
        "revision": str(recipe["model"].get("revision") or "") if base else "",
        "phases": phases,
        "settings": _shared_settings(recipe),
        "corpora": corpora_of(state, store=store),
        "source_rows": _source_rows,
        "count": count,
        "amount": amount,
        "heldout": [
            (objective_name(n), f"{loss:.3f}") for n, loss in sorted(state.heldout.items())
        ],
        "score_rows": [_score_row(score) for score in scores],
        "software": _software(state.environment),
    }


def _software(environment: Mapping[str, Any]) -> str:
    libraries = environment.get("libraries")
    if not isinstance(libraries, dict):
        return ""
    versions = {"biphasic": environment.get("biphasic"), **libraries}
    return listing([f"{name} {version}" for name, version in versions.items() if version])


def base_model(recipe: Mapping[str, Any]) -> str | None:
    """Return the initial model of training; None if weights were random.

    Hub ids are returned unchanged, folders by name only.
    """
    model = recipe.get("model")
    if not isinstance(model, Mapping) or "pretrained" not in model:
        return None
    name = str(model["pretrained"])
    return Path(name).name if Path(name).is_absolute() else name


def objectives_of(recipe: Mapping[str, Any], entry: LedgerEntry) -> set[str]:
    """Return the objectives of a phase, all if they alternate or are mixed."""
    return _names(_phase(recipe, entry.phase)) or {entry.objective}


def _names(objective: Mapping[str, Any]) -> set[str]:
    parts = objective.get("objectives") or ()
    names = {objective["objective"]} if "objective" in objective and not parts else set()
    return names.union(*map(_names, parts))


def _phase(recipe: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    phases = recipe.get("phases") or ()
    return phases[number] if number < len(phases) else {}


def _phase_row(entry: LedgerEntry, phase: Mapping[str, Any]) -> tuple[str, ...]:
    settings = {key: value for key, value in phase.items() if key not in _PHASE_COLUMNS}
    planned = phase.get("steps")
    # A state in the middle of a phase has completed only part of it.
    steps = f"{entry.steps:,}" + (f" of {planned:,}" if planned not in {None, entry.steps} else "")
    return (
        str(entry.phase + 1),
        objective_name(entry.objective),
        _settings(settings) or "–",
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
    """Return settings that have an effect; omit null, empty and inherited ones."""
    silent = ({}, [], (), None, "keep")
    shown = {key: value for key, value in values.items() if value not in silent}
    shown = {
        key: value for key, value in shown.items() if (key, value) != ("learning_rate_scale", 1)
    }
    return ", ".join(f"{key} {_value(value)}" for key, value in shown.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_settings(value)})"
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shared_settings(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings shared by all phases, as words and value."""
    plain = [(words, str(recipe[name])) for name, words in _SETTINGS.items() if name in recipe]
    groups = [
        (words, _settings(recipe[name]))
        for name, words in _GROUPS.items()
        if isinstance(recipe.get(name), Mapping)
    ]
    return plain + groups


def _source_rows(facts: CorpusFacts) -> list[tuple[str, ...]]:
    return [
        (
            source.name,
            listing([f"{name} ({number:,})" for name, number in source.licenses.items()])
            or "to fill in",
            f"{source.documents:,}",
            amount(source.tokens),
        )
        for source in facts.sources
    ]


def _score_row(score: TaskScore) -> tuple[str, ...]:
    task = score.task if score.trained_on is None else f"{score.task} (after {score.trained_on})"
    is_zero_shot = score.kind == ZERO_SHOT
    rates = "none (zero-shot)" if is_zero_shot else listing(list(map(rate, score.learning_rates)))
    if score.num_diverged:
        rates += f"; {score.num_diverged} diverged"
    seeds = "–" if is_zero_shot else str(score.estimate.num_seeds)
    return (task, metric_name(score.metric), seeds, rates, score_cell(score.estimate))


def corpora_of(state: StateRecord, *, store: Path) -> tuple[CorpusFacts, ...]:
    """Return facts about the corpora that a state's phases read, in order.

    Corpora outside the store are found by the recipe's paths.
    """
    hashes: dict[str, Path | None] = {}
    if "corpus_hash" in state.ground:
        hashes[str(state.ground["corpus_hash"])] = None
    for folder, content_hash in (state.ground.get("corpora") or {}).items():
        hashes.setdefault(str(content_hash), Path(folder))
    paths = (*store.glob(f"data/*/train/{_CORPUS}"), *store.glob(f"{TEXTS}/*.json"))
    known = {facts.content_hash: facts for facts in map(_read, paths) if facts}
    return tuple(
        known.get(content_hash) or _at(folder, content_hash)
        for content_hash, folder in hashes.items()
    )


def _at(folder: Path | None, content_hash: str) -> CorpusFacts:
    for path in (folder / "train" / _CORPUS, folder / _CORPUS) if folder else ():
        facts = _read(path) if path.is_file() else None
        if facts is not None and facts.content_hash == content_hash:
            return facts
    return CorpusFacts(content_hash, None, None, ())


def _read(path: Path) -> CorpusFacts | None:
    """Read a corpus's description; None if it is damaged, as the card can do without it."""
    try:
        details = read_json(path)
        return CorpusFacts(
            content_hash=details["content_hash"],
            documents=details["num_documents"],
            tokens=details["num_tokens"],
            sources=tuple(_sources(details["provenance"])),
        )
    except (DataError, KeyError, TypeError, AttributeError):
        return None


def _sources(provenance: Mapping[str, Any]) -> Iterator[TextSource]:
    for part in provenance.get("merged", ()):
        yield from _sources(part["provenance"])
    for name, counts in provenance.get("by_source", {}).items():
        # Cards are public, so local paths are omitted.
        shown = Path(name).name if Path(name).is_absolute() else name
        yield TextSource(shown, counts["documents"], counts["tokens"], counts["licenses"])
