"""Training facts of the model card: phases, costs, text, losses, scores; all from records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.amounts import amount, count, rate, scientific
from biphasic.analysis.estimate import Estimate, best_per_seed, estimate, grid
from biphasic.analysis.text import listing, objective_name, score_cell
from biphasic.data.corpus import TEXTS, plugins_of, sources_of
from biphasic.data.pairs.folder import DETAILS, Pairs
from biphasic.data.pairs.rows import count_cut
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import CheckpointError, DataError
from biphasic.facts import NATS
from biphasic.files import digest, is_file, read_json, read_json_object
from biphasic.records import LedgerEntry, ResultRecord, StateRecord, phase_of
from biphasic.store import RESULT, is_complete, read_result_record

_CORPUS = "corpus.json"
# Shown elsewhere in the table, or irrelevant to readers.
_PHASE_COLUMNS = {"objective", "steps", "corpus", "pairs"}
_SETTINGS = {
    "precision": "compute precision",
    "max_seqlen": "maximum tokens per row",
    "rows_per_step": "rows per step",
    "rows": "rows",
}
_GROUPS = {"learning_rate": "learning rate", "optimizer": "optimizer", "seeds": "seeds"}


def training_facts(
    state: StateRecord, scores: Sequence[TaskScore], *, store: Path, tokenizer: TextTokenizer
) -> dict[str, Any]:
    """Return the template variables for training, text, losses and scores."""
    recipe = state.recipe
    ledger = {entry.phase: entry for entry in state.ledger}
    phases = [_phase_row(entry, phase_of(recipe, entry.phase)) for entry in ledger.values()]
    if len(phases) > 1:
        totals = [
            amount(sum(getattr(entry, name) for entry in ledger.values()))
            for name in ("documents", "tokens", "supervised_tokens")
        ]
        steps = sum(entry.steps for entry in ledger.values())
        flops = scientific(sum(entry.flops for entry in ledger.values()))
        phases.append(("all", "", "", f"{steps:,}", *totals, flops))
    base = base_model(recipe)
    libraries = state.environment.get("libraries")
    is_known = isinstance(libraries, dict)
    corpora = corpora_of(state, store=store)
    sources = [text for corpus in corpora for text in corpus.get("plugins", ())]
    versions = {"biphasic": state.environment.get("biphasic"), **libraries} if is_known else {}
    return {
        "base_model": recipe["model"]["pretrained"] if base else None,
        "base": base,
        "revision": str(recipe["model"].get("revision") or "") if base else "",
        "phases": phases,
        "settings": _shared_settings(recipe),
        "corpora": corpora,
        "cut": [*_cut_texts(state, tokenizer)],
        "count": count,
        "amount": amount,
        "reads_pairs": any("pairs" in phase_of(recipe, number) for number in ledger),
        "heldout": [
            (objective_name(n), f"{loss:.3f} {_unit(state, n)}".rstrip())
            for n, loss in sorted(state.heldout.items())
        ],
        "has_other_units": any(_unit(state, objective) for objective in state.heldout),
        "score_rows": [_score_row(score) for score in scores],
        "software": listing([f"{name} {version}" for name, version in versions.items() if version]),
        "plugins": [*sources, *(text for texts in state.plugins.values() for text in texts)],
    }


def _unit(state: StateRecord, objective: str) -> str:
    unit = state.loss_unit(objective)
    return "" if unit == NATS else unit or "in a unit that its plugin does not name"


def base_model(recipe: Mapping[str, Any]) -> str | None:
    """Return the initial model, a hub id or a folder's name; None if weights were random."""
    model = recipe.get("model")
    if not isinstance(model, Mapping) or "pretrained" not in model:
        return None
    name = str(model["pretrained"])
    return Path(name).name if Path(name).is_absolute() else name


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


def _settings(values: Mapping[str, Any]) -> str:
    """Return settings that have an effect; omit null, empty and inherited ones."""
    silent = ({}, [], (), None, "", "keep")
    return ", ".join(
        f"{key} {_value(value)}"
        for key, value in values.items()
        if value not in silent and (key, value) != ("learning_rate_scale", 1)
    )


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


def _score_row(score: TaskScore) -> tuple[str, ...]:
    results, one = score.results, score.results[0]
    task = one.task if one.trained_on is None else f"{one.task} (after {one.trained_on})"
    title = one.facts.metric(one.metric).title
    if not one.facts.is_trained:
        return task, title, "–", "none (zero-shot)", score_cell(score.estimate)
    rates = listing([rate(each) for each in sorted({result.learning_rate for result in results})])
    if num_diverged := sum(result.status == "diverged" for result in results):
        rates += f"; {num_diverged} diverged"
    return task, title, str(score.estimate.num_seeds), rates, score_cell(score.estimate)


def corpora_of(state: StateRecord, *, store: Path) -> list[dict[str, Any]]:
    """Return facts about the corpora that a state's phases read, in order, where found."""
    hashes: dict[str, Path | None] = {}
    if "corpus_hash" in state.ground:
        hashes[str(state.ground["corpus_hash"])] = None
    for folder, content_hash in (state.ground.get("corpora") or {}).items():
        hashes.setdefault(str(content_hash), Path(folder))
    paths = (*store.glob(f"data/*/train/{_CORPUS}"), *store.glob(f"{TEXTS}/*.json"))
    known = {facts["content_hash"]: facts for facts in map(_corpus, paths) if facts}
    return [
        known.get(content_hash) or _corpus_at(folder, content_hash)
        for content_hash, folder in hashes.items()
    ]


def _corpus_at(folder: Path | None, content_hash: str) -> dict[str, Any]:
    for path in (folder / "train" / _CORPUS, folder / _CORPUS) if folder else ():
        facts = _corpus(path) if path.is_file() else None
        if facts is not None and facts["content_hash"] == content_hash:
            return facts
    if folder and is_file(path := folder / DETAILS):
        details = read_json_object(path)
        if details.get("content_hash") == content_hash:
            return {"content_hash": content_hash, "pairs": details, "tokens": None}
    return {"content_hash": content_hash, "documents": None, "tokens": None}


def _cut_texts(state: StateRecord, tokenizer: TextTokenizer) -> Iterator[tuple[int, int, int]]:
    """Yield for each phase with pairs: texts that it cut, all its texts, and its row length."""
    for entry in state.ledger:
        phase = phase_of(state.recipe, entry.phase)
        folder = Path(phase["pairs"]) if "pairs" in phase else None
        if folder is None or not is_complete(folder):
            continue
        pairs = Pairs(folder)
        if pairs.content_hash == state.ground.get("corpora", {}).get(str(folder)):
            prompts = (phase.get("query_prompt", ""), phase.get("document_prompt", ""))
            longest = phase.get("max_seqlen") or state.recipe["max_seqlen"]
            yield (*count_cut(pairs, tokenizer, prompts=prompts, max_seqlen=longest), longest)


def _corpus(path: Path) -> dict[str, Any] | None:
    """Read a corpus's description; None if it is damaged, as the card can do without it."""
    try:
        details = read_json(path)
        return {
            "content_hash": details["content_hash"],
            "documents": details["num_documents"],
            "tokens": details["num_tokens"],
            "sources": [
                (
                    # Cards are public, so local paths are omitted.
                    Path(name).name if Path(name).is_absolute() else name,
                    listing([f"{one} ({n:,})" for one, n in counts["licenses"].items()])
                    or "to fill in",
                    f"{counts['documents']:,}",
                    amount(counts["tokens"]),
                )
                for name, counts in sources_of(details["provenance"])
            ],
            "plugins": list(plugins_of(details["provenance"])),
        }
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return None


@dataclass(frozen=True)
class TaskScore:
    """Score of a state on one task."""

    estimate: Estimate  # mean over seeds with its 95 % interval
    results: list[ResultRecord]  # all fine-tunings, under one protocol


def scores_of_state(
    finetunes: Path, identity: str
) -> tuple[tuple[TaskScore, ...], tuple[str, ...]]:
    """Summarize the fine-tunings of a state in a store, with standard intervals.

    A task fine-tuned on several sets of examples, or under several protocols, is omitted. Old
    records do not name theirs; then it has several results for one rate and seed.

    Returns:
        The scores, and what was omitted, one sentence each.
    """
    groups: dict[tuple[str, str | None], list[ResultRecord]] = defaultdict(list)
    left_out: list[str] = []
    for result in _results(finetunes, identity, left_out):
        groups[result.task, result.trained_on].append(result)
    scores = []
    for (task, _), results in sorted(groups.items(), key=lambda item: str(item[0])):
        keys = {(result.learning_rate, result.seed) for result in results}
        settings = {digest(result.protocol) for result in results if result.protocol}
        metrics = {result.metric for result in results}
        if len({result.examples_sha256 for result in results} - {None}) > 1:
            left_out.append(f"{task}: several tasks have this name; see the reports")
            continue
        if len(keys) < len(results) or len(settings) > 1 or len(metrics) > 1:
            left_out.append(f"{task}: fine-tuned under several protocols; see the reports")
            continue
        selected = best_per_seed(grid(results, metric=results[0].metric))
        score = estimate([run.test for run in selected], convention="standard")
        if score is None:
            left_out.append(f"{task}: every fine-tuning diverged")
        else:
            scores.append(TaskScore(score, results))
    return tuple(scores), tuple(left_out)


def _results(folder: Path, identity: str, left_out: list[str]) -> Iterator[ResultRecord]:
    for path in sorted(folder.glob("*/result.json")):
        try:
            raw = read_json(path)
            if not isinstance(raw, dict) or raw.get("state") != identity:
                continue
            RESULT.open(path.parent, remedy="run the fine-tuning again").verify()
            yield read_result_record(path.parent)
        except (CheckpointError, DataError):
            left_out.append(f"fine-tuning {path.parent.name[:12]}: its record is damaged")
