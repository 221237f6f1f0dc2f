"""Entities that a tagging model finds in a text or in given words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from biphasic.tasks.encoded.encoding import frame
from biphasic.tasks.encoded.metrics import NO_PREDICTION
from biphasic.tasks.encoded.tagging import align_words, best_tags, word_logits
from biphasic.tasks.rows.words import Words

if TYPE_CHECKING:
    from biphasic.tasks.finetuned import FinetunedModel


def predict_entities(
    finetuned: FinetunedModel, examples: Sequence[Words]
) -> tuple[list[dict[str, Any]], int]:
    """Find entities in words; also return the number of truncated examples."""
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
