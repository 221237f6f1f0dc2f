"""Facts about kinds of tasks, their metrics and losses, for reports.

Records carry the facts of a kind. Those of the first seven kinds are here instead, because their
records have none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricFacts:
    """A metric of a kind of task: a share, shown in percentage points; higher is better."""

    key: str  # Its name in records.
    title: str  # Its name in reports.
    # Whether it runs from -1 to 1, as a correlation does, and not from 0 to 1.
    is_signed: bool = False
    at_zero: str = "every seed scores 0"  # What a score of 0 in every run means.


@dataclass(frozen=True)
class KindFacts:
    """What a report says about a kind of task."""

    title: str  # Its name in words.
    metrics: tuple[MetricFacts, ...]  # Its metrics; the first is the default primary one.
    # Whether encoders are fine-tuned. Otherwise a task has one run, without a learning rate, a seed
    # or a validation score.
    is_trained: bool = True

    @property
    def metric_keys(self) -> tuple[str, ...]:
        """The names of its metrics in records."""
        return tuple(metric.key for metric in self.metrics)

    def metric(self, key: str) -> MetricFacts:
        """Return the facts of one of its metrics, or of another one by its name."""
        return next((metric for metric in self.metrics if metric.key == key), metric_facts(key))


# Prefixes of the names of baselines: what an encoder that learned nothing reaches, and what people
# could use instead of an encoder.
FLOOR, REFERENCE = "floor:", "reference:"
RANDOM_VECTORS = "floor:random-vectors"  # the mean of several draws counts


def is_baseline(name: str) -> bool:
    """Return whether this is the name of a floor or reference, and not of an arm."""
    return name.startswith((FLOOR, REFERENCE))


def baseline_label(name: str) -> str:
    """Return the name of a floor or reference in reports, such as `floor: random vectors`."""
    return name.replace(":", ": ", 1).replace("-", " ")


_METRICS = {
    metric.key: metric
    for metric in (
        MetricFacts("accuracy", "accuracy"),
        MetricFacts("entity_f1", "entity F1", at_zero="no entity was right"),
        MetricFacts("exact_match", "exact match"),
        MetricFacts("f1", "F1"),
        MetricFacts("has_answer_exact_match", "exact match where there is an answer"),
        MetricFacts("has_answer_f1", "F1 where there is an answer"),
        MetricFacts("macro_f1", "macro F1"),
        MetricFacts("matthews", "Matthews correlation", is_signed=True),
        MetricFacts("micro_f1", "micro F1"),
        MetricFacts("mrr_at_10", "MRR@10"),
        MetricFacts("ndcg@10", "nDCG@10"),
        MetricFacts("ndcg_at_10", "nDCG@10"),
        MetricFacts("no_answer_accuracy", "accuracy where there is no answer"),
        MetricFacts("pearson", "Pearson correlation", is_signed=True),
        MetricFacts("recall_at_100", "recall@100"),
        MetricFacts("sentence_token_f1", "token F1 (mean over sentences)"),
        MetricFacts("spearman", "Spearman correlation", is_signed=True),
        MetricFacts("subset_accuracy", "subset accuracy"),
    )
}


def metric_facts(key: str) -> MetricFacts:
    """Return the facts of a metric by its name; others than ours get a plain title."""
    return _METRICS.get(key) or MetricFacts(key, key.replace("_", " "))


def _kind(title: str, *metrics: str, is_trained: bool = True) -> KindFacts:
    return KindFacts(title, tuple(map(metric_facts, metrics)), is_trained)


_RETRIEVAL = ("ndcg_at_10", "mrr_at_10", "recall_at_100")
# Kinds whose records do not carry their facts.
FIRST_KINDS = {
    "sc": _kind("sequence classification", "accuracy", "macro_f1", "matthews"),
    "ml": _kind("multi-label classification", "micro_f1", "macro_f1", "subset_accuracy"),
    "sr": _kind("regression", "spearman", "pearson"),
    "tc": _kind("token classification", "entity_f1", "sentence_token_f1"),
    "qa": _kind("question answering", "f1", "exact_match"),
    "ir": _kind("retrieval", *_RETRIEVAL),
    "zs": _kind("zero-shot", *_RETRIEVAL, is_trained=False),
}


def facts_of(kind: str, recorded: KindFacts | None = None) -> KindFacts:
    """Return the facts of a kind: those in a record, or those of one of the first kinds."""
    return recorded or FIRST_KINDS.get(kind.lower()) or KindFacts(kind, ())


def facts_to_record(kind: str, facts: KindFacts) -> KindFacts | None:
    """Return what a record must say about a kind; None for the first kinds."""
    plain = KindFacts(facts.title, facts.metrics, facts.is_trained)
    return None if FIRST_KINDS.get(kind) == plain else plain


NATS = "nats per token"
LOSS_UNITS = {
    **dict.fromkeys(("clm", "mlm", "mntp", "diffusion", "mix", "alternate"), NATS),
    "contrastive": "nats per pair",
    "distill": "squared distance per text",
    "margin_mse": "squared error per margin",
}
"""Units of the losses of our own objectives; records name those of plugins."""


def only(units: Collection[str]) -> str:
    """Return the unit that losses have in common; empty if they have none."""
    return next(iter(units)) if len(units) == 1 else ""
