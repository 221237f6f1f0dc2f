"""Facts of model cards, whose words are in `card.md.j2`: from records or from the files."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from biphasic.amounts import amount, points
from biphasic.analysis.estimate import Estimate, best_per_seed, estimate, grid
from biphasic.analysis.statistics.doubts import baseline_sentences
from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import flat
from biphasic.analysis.words import environment
from biphasic.data.corpus import TEXTS, plugins_of, sources_of
from biphasic.data.pairs import DETAILS, Pairs, count_cut
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import CheckpointError, DataError
from biphasic.export import ExportSettings
from biphasic.export.check import TOLERANCE, Reloaded
from biphasic.export.hf import Source, WrittenModel
from biphasic.export.output import FILL_IN
from biphasic.facts import NATS, KindFacts
from biphasic.files import digest, is_file, read_json, read_json_object, write_text
from biphasic.model.loading.configurations import is_open
from biphasic.model.loading.reading import read_config
from biphasic.records import ResultRecord, StateRecord, phase_of
from biphasic.store import CARD, RESULT, Store, is_complete
from biphasic.tasks.embedding import TrainedVectors
from biphasic.tasks.kinds.kind import Facts
from biphasic.tasks.kinds.minimal_pairs import OBJECTIVE
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import probe_title
from biphasic.tasks.records import PAIR_TEMPLATE, HeadRecord

_TEMPLATE = Path(__file__).with_name("card.md.j2")
_ENGINES = Path(__file__).with_name("engines.json")  # written by `make test-engines`
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# Hub ids of our metrics, where they differ.
_METRIC_IDS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
# The objective whose head predicts a token at its own position; others predict the next one.
_MASKED = "mlm"
AUTO_CLASSES = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}


@dataclass(frozen=True)
class Export:
    """Facts about an export for its card."""

    source: Source
    name: str
    settings: ExportSettings
    vectors: TrainedVectors  # how the folder makes vectors of texts
    written: WrittenModel  # files that were written
    reloaded: Reloaded  # result of the check against the source model
    # Largest difference between graph and exported model, relative to the largest state; None
    # without a graph.
    onnx: float | None = None

    @property
    def config(self) -> PretrainedConfig:
        """Configuration of the exported model."""
        return self.written.config

    @property
    def fills_masks(self) -> bool:
        """Return whether `pipeline("fill-mask")` works and the head was trained to fill masks."""
        if self.written.logits is None or type(self.config) not in MODEL_FOR_MASKED_LM_MAPPING:
            return False
        if objective := getattr(self.config, OBJECTIVE, None):
            return objective == _MASKED
        return self.source.state is None and not self.written.was_decoder


def write_export_card(folder: Path, export: Export) -> None:
    """Write the card of an export into its folder."""
    source, format = export.source, export.settings.format
    is_hf, has_pooling = format == "hf", format == "sentence-transformers"
    # A model that was trained to read from left to right gives other vectors in both directions.
    as_trained = TrainedVectors.of(source.state)
    facts: dict[str, Any] = {"base_model": source.name, "scores": ()}
    if source.state is not None:
        facts = _training_facts(source.state, source)
    _write_card(
        folder,
        name=export.name,
        results=[_mean_score(score) for score in facts["scores"]],
        metadata={
            "library_name": "peft"
            if source.adapter
            else "sentence-transformers"
            if has_pooling
            else "transformers",
            "pipeline_tag": "fill-mask" if export.fills_masks and is_hf else "feature-extraction",
            "tags": [
                "encoder",
                *([] if export.vectors.causal else ["bidirectional"]),
                "biphasic",
                *([] if is_hf else [format]),
                *(["custom_code"] if export.written.needs_code else []),
            ],
        },
        export=export,
        # Engines were tried with merged encoders that read in both directions.
        engines={}
        if export.vectors.causal or source.adapter
        else engines_tried(export.settings.as_, is_graph=format == "onnx"),
        state=source.state,
        vectors=as_trained if as_trained.causal == export.vectors.causal else export.vectors,
        auto_classes=_auto_classes(export),
        # Old releases run these models causally without a warning.
        has_direction=format != "onnx" and is_open(export.config) and not export.written.needs_code,
        differences=[f"{k} {share:.0e}" for k, share in export.reloaded.differences.items()],
        tolerance=TOLERANCE,
        **facts,
    )


def engines_tried(as_: str, *, is_graph: bool) -> dict[str, list[str]]:
    """Return the engines that were tried with exports of a form, by what they made of them."""
    found: dict[str, list[str]] = defaultdict(list)
    for engine in read_json(_ENGINES):
        if engine["is_graph"] == is_graph and as_ in engine["outcomes"]:
            found[engine["outcomes"][as_]["outcome"]].append(
                f"{engine['name']} {engine['version']}"
            )
    return found


def _mean_score(score: TaskScore) -> EvalResult:
    """Return the mean on test for the hub, with a note on what it averages."""
    seeds, result = score.estimate.num_seeds, score.first
    is_mean = result.facts.is_trained and seeds > 1
    return _eval_result(
        kind=result.kind,
        facts=result.facts,
        task=result.task,
        title=result.task,
        metric=result.metric,
        value=score.estimate.mean,
        split="test",
        note=(f" after fine-tuning on {result.trained_on}" if result.trained_on else "")
        + score.few
        + (f", mean over {seeds} seeds" if is_mean else ""),
    )


def _auto_classes(export: Export) -> list[str]:
    """Return the transformers classes that can fine-tune the model."""
    if export.written.needs_code or export.source.adapter:
        return []
    classes = {
        "AutoModelForMaskedLM": MODEL_FOR_MASKED_LM_MAPPING if export.fills_masks else {},
        "AutoModelForSequenceClassification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        "AutoModelForTokenClassification": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    }
    return [name for name, mapping in classes.items() if type(export.config) in mapping]


def write_fitted_card(folder: Path, record: HeadRecord, *, name: str, difference: float) -> None:
    """Write the card; `difference` is between transformers' outputs and ours, as a share."""
    splits = {"validation": record.validation, "test": record.test}
    held = {split: metrics for split, metrics in splits.items() if metrics}
    metrics = [record.metric, *sorted({n for m in held.values() for n in m} - {record.metric})]
    kind = KINDS[record.kind]
    baselines: Iterable[str] = ()
    if record.baselines and record.test:
        in_points = {name: 100 * share for name, share in record.baselines.items()}
        baselines = baseline_sentences(in_points, 100 * record.test[record.metric])
    template = record.template
    if kind.facts.is_pooled and not template and len(record.fields) > 1:
        template = PAIR_TEMPLATE
    has_pooling = record.form == "sentence-transformers"
    _write_card(
        folder,
        name=name,
        results=[
            _eval_result(
                kind=kind.name,
                facts=kind.facts,
                task=record.task,
                title=record.title,
                metric=metric,
                value=held[split][metric],
                split=split,
            )
            for split in held
            for metric in metrics
            if metric in held[split]
        ],
        base_model=record.model,
        metadata={
            "library_name": "sentence-transformers" if has_pooling else "transformers",
            "pipeline_tag": kind.facts.pipeline,
            "tags": ["custom_code"] if record.needs_code else None,
        },
        record=record,
        kind=kind,
        is_probe=_is_probe(record.protocol),
        does=kind.facts.does.format(number=len(record.labels)),
        auto_class=AUTO_CLASSES.get(record.form),
        template=json.dumps(template, ensure_ascii=False)
        if kind.facts.is_pooled and template
        else "",
        reads_pairs=kind.facts.is_pooled and len(record.fields) > 1,
        splits=[*held],
        score_rows=[
            [
                kind.facts.metric(name).title,
                *(points(m[name]) if name in m else "" for m in held.values()),
            ]
            for name in metrics
        ],
        baselines="; ".join(baselines),
        difference=difference,
        # Old releases run these models causally without a warning.
        has_direction=read_json(folder / "config.json").get("is_causal") is False,
    )


def _write_card(
    folder: Path,
    *,
    name: str,
    results: Sequence[EvalResult],
    base_model: str | None,
    metadata: Mapping[str, Any],
    **facts: Any,
) -> None:
    """Fill the template with `facts` and write `README.md`."""
    data = ModelCardData(
        base_model=base_model if base_model and _HUB_ID.fullmatch(base_model) else None,
        model_name=flat(name) if results else None,
        eval_results=[*results] or None,
        **metadata,
    )
    words = environment(trim_blocks=False, lstrip_blocks=False)
    words.filters["settings"] = _settings
    writers = {
        "text": markdown_text,
        "code": code,
        "string": repr,
        "shell": lambda word: shlex.quote(flat(word)),
        "row": lambda *cells: f"| {' | '.join(markdown_text(str(cell)) for cell in cells)} |",
    }
    template = words.from_string(_TEMPLATE.read_text("utf-8"), globals=writers)
    card = ModelCard(template.render(card_data=data.to_yaml(), name=name, **facts))
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    # YAML libraries write no comments; the owner fills in these fields.
    blank = f"language:  {FILL_IN}, e.g. en\nlicense:  {FILL_IN}, e.g. apache-2.0"
    write_text(folder / CARD, card.content.replace("\n---\n", f"\n{blank}\n---\n", 1))


def _eval_result(
    *,
    kind: str,
    facts: KindFacts,
    task: str,
    title: str,
    metric: str,
    value: float,
    split: str,
    note: str = "",
) -> EvalResult:
    """Return a score in the hub's format: a share from 0 to 1, as `evaluate` reports metrics."""
    # Results may be of a kind that is not installed here.
    known = KINDS[kind].facts if kind in KINDS else Facts("", ())
    return EvalResult(
        task_type=known.hub_task or known.pipeline,
        task_name=facts.title,
        dataset_type=flat(task),
        dataset_name=flat(title),
        dataset_split=split,
        metric_type=_METRIC_IDS.get(metric, flat(metric)),
        metric_name=flat(f"{facts.metric(metric).title}{note}"),
        metric_value=round(value, 6),
    )


def code(text: str) -> str:
    """Return text in backticks, using more of them than its longest run."""
    text = flat(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


_CORPUS = "corpus.json"


def _training_facts(state: StateRecord, source: Source) -> dict[str, Any]:
    """Return the template variables for training, text, losses and scores."""
    store, recipe = source.folder.resolve().parent.parent, state.recipe
    scores, left_out = scores_of_state(store / RESULT.place, state, read_config(source.folder))
    ledger = {entry.phase: (entry, phase_of(recipe, entry.phase)) for entry in state.ledger}
    base = base_model(recipe)
    libraries = state.environment.get("libraries")
    is_known = isinstance(libraries, dict)
    corpora = corpora_of(state, store=store)
    versions = {"biphasic": state.environment.get("biphasic"), **libraries} if is_known else {}
    return {
        "base_model": recipe["model"]["pretrained"] if base else None,
        "base": base,
        "ledger": [*ledger.values()],
        "corpora": corpora,
        "cut": [*_cut_texts(state, source.tokenizer)],
        "units": {objective: state.loss_unit(objective) for objective in sorted(state.heldout)},
        "nats": NATS,
        "scores": scores,
        "left_out": left_out,
        "is_tuned": any(score.is_tuned for score in scores),
        "versions": [f"{name} {version}" for name, version in versions.items() if version],
        "plugins": [
            *(text for corpus in corpora for text in corpus.get("plugins", ())),
            *(text for texts in state.plugins.values() for text in texts),
        ],
    }


def base_model(recipe: Mapping[str, Any]) -> str | None:
    """Return the initial model, a hub id or a folder's name; None if weights were random."""
    model = recipe.get("model")
    if not isinstance(model, Mapping) or "pretrained" not in model:
        return None
    name = str(model["pretrained"])
    return Path(name).name if Path(name).is_absolute() else name


def _settings(values: Mapping[str, Any], omit: Sequence[str] = ()) -> str:
    """Return settings that have an effect; omit null, empty and inherited ones."""
    silent = ({}, [], (), None, "", "keep")
    return ", ".join(
        f"{key} {_value(value)}"
        for key, value in values.items()
        if key not in omit and value not in silent and (key, value) != ("learning_rate_scale", 1)
    )


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_settings(value)})"
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


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
                    [f"{name} ({n:,})" for name, n in counts["licenses"].items()],
                    f"{counts['documents']:,}",
                    amount(counts["tokens"]),
                )
                for name, counts in sources_of(details["provenance"])
            ],
            "plugins": list(plugins_of(details["provenance"])),
        }
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return None


Omission = Literal["tasks", "protocols", "diverged", "damaged"]


@dataclass(frozen=True)
class TaskScore:
    """Score of a state on one task."""

    estimate: Estimate  # mean over seeds with its 95 % interval
    results: list[ResultRecord]  # all fine-tunings, under one protocol
    baselines: str  # scores of floors and references; empty if the store has none

    @property
    def first(self) -> ResultRecord:
        """A fine-tuning, with what all have in common."""
        return self.results[0]

    @property
    def is_tuned(self) -> bool:
        """Whether the encoder was fine-tuned."""
        return self.first.facts.is_trained and not _is_probe(self.first.protocol)

    @property
    def read_by(self) -> str:
        """What reads an encoder that is not fine-tuned, such as a linear probe of layer 3."""
        protocol = self.first.protocol
        return probe_title(protocol.get("layer")) if _is_probe(protocol) else "zero-shot"

    @property
    def few(self) -> str:
        """The number of training examples, if a run reads some of them alone."""
        number = self.first.protocol.get("train_examples")
        # Tasks without training may share the protocol.
        return f", {number:,} training examples" if number and self.first.facts.is_trained else ""

    @property
    def rates(self) -> list[float]:
        """The learning rates that were tried."""
        return sorted({result.learning_rate for result in self.results})


def _is_probe(protocol: Mapping[str, Any]) -> bool:
    return protocol.get("train") == "head"


def scores_of_state(
    finetunes: Path, state: StateRecord, config: PretrainedConfig
) -> tuple[list[TaskScore], list[tuple[str, Omission]]]:
    """Summarize the fine-tunings of a state in a store, with standard intervals.

    A task fine-tuned on several sets of examples, or under several protocols, is omitted. Old
    records do not name theirs; then it has several results for one rate and seed.

    Returns:
        The scores, and the names of tasks or fine-tunings that were omitted, with the reasons.
    """
    groups: dict[tuple[str, str | None], list[ResultRecord]] = defaultdict(list)
    left_out: list[tuple[str, Omission]] = []
    for result in _results(finetunes, lambda raw: raw.get("state") == state.identity, left_out):
        groups[result.task, result.trained_on].append(result)
    floors = _floors(
        finetunes, state, config, {r.examples_sha256 for g in groups.values() for r in g}
    )
    scores = []
    for (task, _), results in sorted(groups.items(), key=lambda item: str(item[0])):
        keys = {(result.learning_rate, result.seed) for result in results}
        settings = {digest(result.protocol) for result in results if result.protocol}
        metrics = {result.metric for result in results}
        if len({result.examples_sha256 for result in results} - {None}) > 1:
            left_out.append((task, "tasks"))
            continue
        if len(keys) < len(results) or len(settings) > 1 or len(metrics) > 1:
            left_out.append((task, "protocols"))
            continue
        selected = best_per_seed(grid(results, metric=results[0].metric))
        score = estimate([run.test for run in selected], convention="standard")
        if score is None:
            left_out.append((task, "diverged"))
        else:
            of_task = sorted(floors[results[0].examples_sha256, results[0].metric].items())
            means = {name: fmean(values) for name, values in of_task}
            half = score.in_points.half_width or 0.0
            sentences = baseline_sentences(means, score.in_points.mean, half_width=half)
            scores.append(TaskScore(score, results, "; ".join(sentences)))
    return scores, left_out


def _floors(
    finetunes: Path, state: StateRecord, config: PretrainedConfig, examples: Container[str | None]
) -> Mapping[tuple[str | None, str], Mapping[str, list[float]]]:
    """Return the scores of floors and references in points, by examples and metric, and name."""
    # Random vectors have the tokenizer of the state's study, or of the state that was evaluated.
    tokenizers = (state.ground.get("tokenizer_sha256"), state.identity)
    known: dict[Any, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def is_wanted(raw: Mapping[str, Any]) -> bool:
        return bool(raw.get("baseline")) and raw.get("examples_sha256") in examples

    # A card names no damaged ones: they are not the state's.
    for result in _results(finetunes, is_wanted, left_out=[]):
        of, share = result.baseline, result.score("test", result.metric)
        is_own = of.get("tokenizer") in tokenizers and of.get("width") == config.hidden_size
        if share is not None and (is_own or "width" not in of):
            known[result.examples_sha256, result.metric][str(of["name"])].append(100 * share)
    return known


def _results(
    folder: Path,
    is_wanted: Callable[[Mapping[str, Any]], bool],
    left_out: list[tuple[str, Omission]],
) -> Iterator[ResultRecord]:
    """Yield the wanted results of a store, and note damaged ones."""
    for path in sorted(folder.glob("*/result.json")):
        try:
            raw = read_json(path)
            if not isinstance(raw, dict) or not is_wanted(raw):
                continue
            RESULT.open(path.parent, remedy="run the fine-tuning again").verify()
            yield Store(folder.parent).result(path.parent.name)
        except (CheckpointError, DataError):
            left_out.append((path.parent.name[:12], "damaged"))
