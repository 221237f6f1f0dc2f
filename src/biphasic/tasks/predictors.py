"""Predictions on examples, by kind of task, with the computation that scored the model."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, softmax

from biphasic.tasks.encoding import encode_texts, frame
from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
from biphasic.tasks.formats.rows import Row
from biphasic.tasks.formats.templates import PAIR_TEMPLATE, fill
from biphasic.tasks.kinds.metrics import NO_PREDICTION
from biphasic.tasks.kinds.qa import Span, best_spans
from biphasic.tasks.kinds.tagging import align_words, best_tags, word_logits
from biphasic.tasks.kinds.text import predicted_labels
from biphasic.tasks.kinds.windows import question_windows
from biphasic.tasks.records import Question

_WORD_CATEGORIES = ("L", "M", "N", "Pc", "Cf")
_PAIR = ("text_a", "text_b")
Predictions = tuple[list[dict[str, Any]], int]
"""One prediction per example, its values by column, and the number of truncated examples."""


@dataclass(frozen=True, slots=True)
class Words:
    """A text cut into words.

    Attributes:
        starts: Start of each word in the text, in characters.
        text: The text; None if the words were given.
    """

    words: tuple[str, ...]
    starts: tuple[int, ...]
    text: str | None


def example_of(row: Row, record: HeadRecord) -> Any:
    """Return the example that a row holds.

    Raises:
        DataError: The row cannot be used.
    """
    if record.kind == "qa":
        return Question(str(row.number), row.text("question"), row.text("context"), ())
    if record.kind == "tc":
        return _words(row)
    if record.template is not None:
        return fill(record.template, row)
    return fill(PAIR_TEMPLATE, row) if record.fields == _PAIR else row.text("text")


def _words(row: Row) -> Words:
    """Return the words of `tokens`, or those of `text`."""
    if "tokens" not in row.value:
        return split_words(row.text("text"))
    words = row.items("tokens", str)
    if not words:
        raise row.error("the sentence has no tokens")
    for position, word in enumerate(words):
        if not word.strip():
            raise row.error(f"token {position} is empty ({word!r})")
    return Words(tuple(words), tuple(range(len(words))), None)


def split_words(text: str) -> Words:
    """Split a text into words: runs of letters, marks and digits; each other sign is a word."""
    words: list[str] = []
    starts: list[int] = []
    place = 0
    for is_word, run in groupby(text, _is_of_word):
        signs = "".join(run)
        parts = [signs] if is_word else list(signs)
        for part in parts:
            if not part.isspace():
                words.append(part)
                starts.append(place)
            place += len(part)
    return Words(tuple(words), tuple(starts), text)


def _is_of_word(sign: str) -> bool:
    return unicodedata.category(sign).startswith(_WORD_CATEGORIES)


def prediction_columns(record: HeadRecord) -> dict[str, pa.DataType]:
    """Return the types of a prediction's values, by column.

    - `sc`: label, and probabilities by label.
    - `ml`: labels, and probabilities by label, which do not add up to one.
    - `sr`: the number.
    - `tc`: entities with borders in characters (in words if these were given), and tags.
    - `qa`: answer, borders, and scores: sums of logits.
    """
    probabilities = pa.struct([(label, pa.float64()) for label in record.labels])
    borders = {"start": pa.int64(), "end": pa.int64()}
    entity = {"type": pa.string(), **borders, "text": pa.string(), "score": pa.float64()}
    columns: dict[str, dict[str, pa.DataType]] = {
        "sc": {"label": pa.string(), "probabilities": probabilities},
        "ml": {"labels": pa.list_(pa.string()), "probabilities": probabilities},
        "sr": {"score": pa.float64()},
        "tc": {
            "entities": pa.list_(pa.struct(list(entity.items()))),
            "tags": pa.list_(pa.string()),
        },
        "qa": {
            "answer": pa.string(),
            **borders,
            "score": pa.float64(),
            "no_answer_score": pa.float64(),
        },
    }
    return columns[record.kind]


def predict_examples(finetuned: FinetunedModel, examples: Sequence[Any]) -> Predictions:
    """Predict with a model of any kind except retrieval."""
    kinds = {"sc": _labels, "ml": _label_sets, "sr": _values, "tc": _entities, "qa": _answers}
    return kinds[finetuned.record.kind](finetuned, examples)


def _labels(finetuned: FinetunedModel, texts: Sequence[str]) -> Predictions:
    logits, num_cut = _pooled_outputs(finetuned, texts)
    labels = finetuned.record.labels
    best = logits.argmax(axis=1).tolist()
    rows = [
        {"label": labels[number], "probabilities": dict(zip(labels, shares, strict=True))}
        for number, shares in zip(best, softmax(logits, axis=1).tolist(), strict=True)
    ]
    return rows, num_cut


def _label_sets(finetuned: FinetunedModel, texts: Sequence[str]) -> Predictions:
    logits, num_cut = _pooled_outputs(finetuned, texts)
    names = finetuned.record.labels
    rows = [
        {
            "labels": [name for name, holds in zip(names, row, strict=True) if holds],
            "probabilities": dict(zip(names, shares, strict=True)),
        }
        for row, shares in zip(
            predicted_labels(logits).tolist(), expit(logits).tolist(), strict=True
        )
    ]
    return rows, num_cut


def _values(finetuned: FinetunedModel, texts: Sequence[str]) -> Predictions:
    outputs, num_cut = _pooled_outputs(finetuned, texts)
    record = finetuned.record
    values = outputs[:, 0] * record.deviation + record.mean
    return [{"score": value} for value in values.tolist()], num_cut


def _pooled_outputs(
    finetuned: FinetunedModel, texts: Sequence[str]
) -> tuple[NDArray[np.float64], int]:
    """Return the head's outputs for texts, [num_texts, num_outputs], and how many were cut.

    They are in double precision, so that the sum of probabilities is one.
    """
    sequences, num_cut = encode_texts(
        texts, finetuned.tokenizer, max_seqlen=finetuned.protocol.max_seqlen
    )
    return finetuned.head(finetuned.encoder.pooled(sequences)).cpu().double().numpy(), num_cut


def _entities(finetuned: FinetunedModel, examples: Sequence[Words]) -> Predictions:
    max_seqlen, tokenizer = finetuned.protocol.max_seqlen, finetuned.tokenizer
    sequences, positions, num_cut = [], [], 0
    for example in examples:
        ids, places = align_words(example.words, tokenizer, max_seqlen=max_seqlen)
        sequences.append(frame(ids, tokenizer, max_seqlen=max_seqlen))
        positions.append(places)
        num_cut += len(ids) + 2 > max_seqlen
    rows: list[dict[str, Any]] = [{}] * len(examples)
    for index, logits in word_logits(finetuned.encoder, finetuned.head, sequences, positions):
        tags = best_tags(logits, positions[index])
        shares = softmax(logits.astype(np.float64), axis=1)
        rows[index] = _entity_row(examples[index], tags, shares, labels=finetuned.record.labels)
    return rows, num_cut


def _entity_row(
    example: Words,
    tags: NDArray[np.int64],
    shares: NDArray[np.float64],
    *,
    labels: Sequence[str],
) -> dict[str, Any]:
    names = ["O" if tag == NO_PREDICTION else labels[tag] for tag in map(int, tags)]
    entities = []
    for first, last in entity_borders(names):
        chosen = range(first, last + 1)
        entities.append(
            {
                "type": names[first][2:],
                **_place(example, first, last),
                "score": float(np.mean([shares[word, tags[word]] for word in chosen])),
            }
        )
    return {"entities": entities, "tags": names if example.text is None else None}


def _place(example: Words, first: int, last: int) -> dict[str, Any]:
    """Return start, end and text of an entity from one word to another."""
    start = example.starts[first]
    if example.text is None:
        return {"start": start, "end": last + 1, "text": " ".join(example.words[first : last + 1])}
    end = example.starts[last] + len(example.words[last])
    return {"start": start, "end": end, "text": example.text[start:end]}


def entity_borders(tags: Sequence[str]) -> list[tuple[int, int]]:
    """Return first and last word of each entity, with the strict rule used in scoring.

    An entity starts with `B-`; an `I-` that does not continue an entity of its type is ignored.
    """
    borders: list[tuple[int, int]] = []
    for place, tag in enumerate(tags):
        goes_on = bool(borders) and borders[-1][1] == place - 1
        if tag.startswith("B-"):
            borders.append((place, place))
        elif tag.startswith("I-") and goes_on and tags[borders[-1][0]][2:] == tag[2:]:
            borders[-1] = (borders[-1][0], place)
    return borders


def _answers(finetuned: FinetunedModel, questions: Sequence[Question]) -> Predictions:
    part = question_windows(questions, finetuned.tokenizer, protocol=finetuned.protocol)
    spans = best_spans(
        finetuned.encoder,
        finetuned.head,
        part.windows,
        num_questions=len(questions),
        max_answer_tokens=finetuned.record.max_answer_tokens,
    )
    rows = [
        _answer_row(span, question.context, may_abstain=finetuned.record.may_abstain)
        for span, question in zip(spans, questions, strict=True)
    ]
    return rows, part.num_cut


def _answer_row(span: Span, context: str, *, may_abstain: bool) -> dict[str, Any]:
    answer = span.text(context, may_abstain=may_abstain)
    # Without a context token there is nothing to score.
    row = {
        "answer": answer,
        "start": None,
        "end": None,
        "score": span.score if np.isfinite(span.score) else None,
        "no_answer_score": span.no_answer if may_abstain else None,
    }
    if not answer:
        return row
    start = context.index(answer, span.start)
    return {**row, "start": start, "end": start + len(answer)}
