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
from scipy.special import expit

from biphasic.tasks.encoding import Encoder, encode_texts, frame
from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
from biphasic.tasks.formats.rows import Row
from biphasic.tasks.formats.templates import PAIR_TEMPLATE, fill
from biphasic.tasks.kinds.metrics import NO_PREDICTION
from biphasic.tasks.kinds.multi_label import predicted_labels
from biphasic.tasks.kinds.qa import Span, best_spans
from biphasic.tasks.kinds.tagging import align_words, best_tags, word_logits
from biphasic.tasks.kinds.windows import question_windows
from biphasic.tasks.records import Question

_WORD_CATEGORIES = ("L", "M", "N", "Pc", "Cf")
_PAIR = ("text_a", "text_b")
Predictions = tuple[list[dict[str, Any]], int]
"""One prediction per example, its values by column, and the number of truncated examples."""


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


@dataclass(frozen=True)
class Classes:
    """Sequence classification: a label and the probability of each label."""

    finetuned: FinetunedModel

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Label, and probabilities by label."""
        return {"label": pa.string(), "probabilities": _shares(self.finetuned)}

    def predict(self, encoder: Encoder, examples: Sequence[str]) -> Predictions:
        """Predict the labels of texts."""
        logits, num_cut = _pooled_outputs(self.finetuned, encoder, examples)
        labels = self.finetuned.record.labels
        rows = [
            {"label": labels[best], "probabilities": dict(zip(labels, shares, strict=True))}
            for best, shares in zip(
                logits.argmax(axis=1).tolist(), _softmax(logits).tolist(), strict=True
            )
        ]
        return rows, num_cut


@dataclass(frozen=True)
class LabelSets:
    """Multi-label classification: the labels that apply and the probability of each label."""

    finetuned: FinetunedModel

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Labels, and probabilities by label, which do not add up to one."""
        return {"labels": pa.list_(pa.string()), "probabilities": _shares(self.finetuned)}

    def predict(self, encoder: Encoder, examples: Sequence[str]) -> Predictions:
        """Predict the label sets of texts."""
        logits, num_cut = _pooled_outputs(self.finetuned, encoder, examples)
        names = self.finetuned.record.labels
        rows = [
            {
                "labels": [name for name, holds in zip(names, row, strict=True) if holds],
                "probabilities": dict(zip(names, shares, strict=True)),
            }
            for row, shares in zip(
                predicted_labels(logits).tolist(),
                expit(logits.astype(np.float64)).tolist(),
                strict=True,
            )
        ]
        return rows, num_cut


@dataclass(frozen=True)
class Values:
    """Sequence regression: a number."""

    finetuned: FinetunedModel

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """The number."""
        return {"score": pa.float64()}

    def predict(self, encoder: Encoder, examples: Sequence[str]) -> Predictions:
        """Predict the numbers of texts."""
        outputs, num_cut = _pooled_outputs(self.finetuned, encoder, examples)
        record = self.finetuned.record
        values = outputs[:, 0].astype(np.float64) * record.deviation + record.mean
        return [{"score": value} for value in values.tolist()], num_cut


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


@dataclass(frozen=True)
class Entities:
    """Token classification: entities, and also tags if the words were given."""

    finetuned: FinetunedModel

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Entities with borders in characters (in words if these were given), and tags."""
        entity = pa.struct(
            [
                ("type", pa.string()),
                ("start", pa.int64()),
                ("end", pa.int64()),
                ("text", pa.string()),
                ("score", pa.float64()),
            ]
        )
        return {"entities": pa.list_(entity), "tags": pa.list_(pa.string())}

    def predict(self, encoder: Encoder, examples: Sequence[Words]) -> Predictions:
        """Predict the entities of texts."""
        max_seqlen, tokenizer = self.finetuned.protocol.max_seqlen, self.finetuned.tokenizer
        sequences, positions, num_cut = [], [], 0
        for example in examples:
            ids, places = align_words(example.words, tokenizer, max_seqlen=max_seqlen)
            sequences.append(frame(ids, tokenizer, max_seqlen=max_seqlen))
            positions.append(places)
            num_cut += len(ids) + 2 > max_seqlen
        rows: list[dict[str, Any]] = [{}] * len(examples)
        for index, logits in word_logits(encoder, self.finetuned.head, sequences, positions):
            tags = best_tags(logits, positions[index])
            rows[index] = self._row(examples[index], tags, _softmax(logits))
        return rows, num_cut

    def _row(
        self, example: Words, tags: NDArray[np.int64], shares: NDArray[np.float64]
    ) -> dict[str, Any]:
        labels = self.finetuned.record.labels
        names = ["O" if tag == NO_PREDICTION else labels[tag] for tag in tags.tolist()]
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


@dataclass(frozen=True)
class Answers:
    """Question answering: the answer and its position, or none if the model abstains."""

    finetuned: FinetunedModel

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Answer, borders, and scores: sums of logits."""
        return {
            "answer": pa.string(),
            "start": pa.int64(),
            "end": pa.int64(),
            "score": pa.float64(),
            "no_answer_score": pa.float64(),
        }

    def predict(self, encoder: Encoder, examples: Sequence[Question]) -> Predictions:
        """Predict the answers to questions."""
        finetuned = self.finetuned
        part = question_windows(examples, finetuned.tokenizer, protocol=finetuned.protocol)
        spans = best_spans(
            encoder,
            finetuned.head,
            part.windows,
            num_questions=len(examples),
            max_answer_tokens=finetuned.record.max_answer_tokens,
        )
        rows = [
            self._row(span, example.context) for span, example in zip(spans, examples, strict=True)
        ]
        return rows, part.num_cut

    def _row(self, span: Span, context: str) -> dict[str, Any]:
        may_abstain = self.finetuned.record.may_abstain
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


Predictor = Classes | LabelSets | Values | Entities | Answers


def predictor_of(finetuned: FinetunedModel) -> Predictor:
    """Return the predictor of a model of any kind except retrieval."""
    kinds = {"sc": Classes, "ml": LabelSets, "sr": Values, "tc": Entities, "qa": Answers}
    return kinds[finetuned.record.kind](finetuned)


def _shares(finetuned: FinetunedModel) -> pa.DataType:
    return pa.struct([(label, pa.float64()) for label in finetuned.record.labels])


def _pooled_outputs(
    finetuned: FinetunedModel, encoder: Encoder, texts: Sequence[str]
) -> tuple[NDArray[np.float32], int]:
    """Return the head's outputs for texts, [num_texts, num_outputs], and how many were cut."""
    sequences, num_cut = encode_texts(
        texts, finetuned.tokenizer, max_seqlen=finetuned.protocol.max_seqlen
    )
    return finetuned.head(encoder.pooled(sequences)).cpu().numpy(), num_cut


def _softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return probabilities, in double precision so their sum is one."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
