"""Token classification: a label for each word, as BIO2 tags of entities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row, plain_name
from biphasic.tasks.baselines import Baseline, dictionary
from biphasic.tasks.kinds.examples import LABELS, ExampleKind
from biphasic.tasks.kinds.kind import EncodedTask, Predictions, SplitScores
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import NO_PREDICTION, SPLITS, ExampleTask, TaggedSentence
from biphasic.tasks.rows.labels import Labels, check_labels, found_tags
from biphasic.tasks.rows.tagged import Words, check_bio, check_tag_set, read_conll, words_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.packing import TokenIds
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
    from biphasic.tasks.task_file import TaskFile

_LOST = -1


class EncodedTagging(EncodedTask):
    """A tagging task as token sequences with words aligned to tokens."""

    def __init__(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> None:
        self.info, self.pad_id, self.labels = task.info, tokenizer.pad_id, task.labels
        self.num_outputs, self.num_truncated = len(task.labels), {}
        self.ids, self.sentences, self.tags = {}, {}, {}
        for split, examples in task.splits.items():
            self.ids[split] = tuple(example.id for example in examples)
            self.tags[split] = [np.array(example.tags, dtype=np.int64) for example in examples]
            self.sentences[split] = sentences = [
                _Aligned.of(example.words, tokenizer, max_seqlen=protocol.max_seqlen)
                for example in examples
            ]
            self.num_truncated[split] = sum(sentence.is_cut for sentence in sentences)
            self.num_truncated[f"{split}_lost_words"] = sum(each.num_lost for each in sentences)
        self.trained_sequences = [each.sequence for each in self.sentences.get("train", ())]
        self.num_train = len(self.trained_sequences)

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean cross-entropy over words."""
        import torch

        sentences = [self.sentences["train"][index] for index in indices]
        hidden, spans = encoder.states([sentence.sequence for sentence in sentences])
        rows = _word_rows(sentences, spans)
        tags = np.concatenate([self.tags["train"][index] for index in indices])
        kept = torch.from_numpy(rows[rows != _LOST]).to(hidden.device)
        labels = torch.from_numpy(tags[rows != _LOST]).to(hidden.device)
        logits = head(hidden.index_select(0, kept))
        total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        return total / max(1, len(labels))

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test; a sentence's score is its token F1."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        sentences = self.sentences[split]
        predicted = [np.empty(0, dtype=np.int64)] * len(sentences)
        for index, logits in _word_logits(encoder, head, sentences):
            predicted[index] = sentences[index].best_tags(logits)
        return self._score(split, predicted)

    def frozen(
        self, encoder: Encoder, split: str, chosen: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Return the states of words; those of lost words are meaningless, their targets -1."""
        import torch

        sentences = _chosen(self.sentences[split], chosen)
        states = [np.empty(0, dtype=np.float32)] * len(sentences)
        for index, of_words in _word_logits(encoder, torch.nn.Identity(), sentences):
            states[index] = of_words
        layers = max(1, len(encoder.layers))
        return torch.from_numpy(np.concatenate(states)).unflatten(1, (layers, -1))

    def targets(self, split: str, chosen: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the tags of words."""
        tags = np.concatenate(_chosen(self.tags[split], chosen))
        sentences = _chosen(self.sentences[split], chosen)
        lost = np.concatenate([sentence.positions for sentence in sentences]) == _LOST
        return np.where(lost, _LOST, tags)

    def score_outputs(self, split: str, outputs: NDArray[Any]) -> SplitScores:
        """Score the logits of all words of a split."""
        sentences = self.sentences[split]
        borders = np.cumsum([len(sentence.positions) for sentence in sentences])[:-1]
        logits = np.split(outputs, borders)
        both = zip(sentences, logits, strict=True)
        return self._score(split, [sentence.best_tags(of_words) for sentence, of_words in both])

    def _score(self, split: str, predicted: Sequence[NDArray[np.int64]]) -> SplitScores:
        lost = np.array([sentence.num_lost for sentence in self.sentences[split]])
        return _score_tags(self.ids[split], predicted, self.tags[split], lost, self.labels)


def _chosen(items: Sequence[Any], indices: NDArray[np.int64] | None) -> Sequence[Any]:
    return items if indices is None else [items[index] for index in indices.tolist()]


def _score_tags(
    ids: tuple[str, ...],
    predicted: Sequence[NDArray[np.int64]],
    tags: Sequence[NDArray[np.int64]],
    num_lost: NDArray[np.int64],
    labels: Sequence[str],
) -> SplitScores:
    from biphasic.tasks.metrics import entity_scores, sentence_token_f1

    # For entity scores, a word without a prediction is outside every entity.
    names = {NO_PREDICTION: "O", **dict(enumerate(labels))}
    token_f1 = sentence_token_f1(tags, predicted, num_labels=len(labels))
    entities = entity_scores(
        *(
            [[names[tag] for tag in sentence.tolist()] for sentence in of]
            for of in (tags, predicted)
        )
    )
    metrics = {"entity_f1": entities.f1, "sentence_token_f1": float(token_f1.mean())}
    columns = {
        "sentence_token_f1": token_f1,
        "num_entities": entities.expected,
        "num_predicted": entities.predicted,
        "num_right": entities.right,
        "num_lost_words": num_lost,
    }
    return SplitScores(metrics, ids, token_f1, columns, entities.by_type)


class Tagging(ExampleKind):
    """A tag per word, from its first token; cross-entropy, entity F1."""

    name = "tc"
    facts = FIRST_KINDS["tc"]
    encoded = EncodedTagging
    settings = (LABELS,)
    columns = ("id", "tokens", "tags")
    numbered_columns = ("tokens", "tags")
    suffixes = (".jsonl", ".conll", ".iob2", ".bio", ".txt", ".tsv")
    paper_metric = "sentence_token_f1"
    ready_field = "tokens"
    # Borders of entities are in characters, or in words if these were given.
    predicted: ClassVar[Mapping[str, Any]] = {
        "entities": [{"type": str, "start": int, "end": int, "text": str, "score": float}],
        "tags": [str],
    }
    does = "finds entities in a text"
    pipeline = "token-classification"
    baselines: ClassVar[Mapping[str, Baseline]] = {"floor:dictionary": dictionary}
    is_probed = True
    form = "token-classification"

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> TaggedSentence:
        """Return words and the numbers of their tags."""
        words, tags = row.items("tokens", str), [*map(plain_name, row.items("tags", str))]
        if len(words) != len(tags):
            raise row.error(f"{len(words)} tokens but {len(tags)} tags")
        words = words_of(row).words
        check_bio(row, tags)
        numbers = {label: number for number, label in enumerate(labels)}
        for position, tag in enumerate(tags):
            if tag not in numbers:
                known = f"the labels are {', '.join(numbers)}"
                raise row.error(
                    f"unknown label '{tag}' at token {position}; {known}", token=position
                )
        return TaggedSentence(row.id(), words, tuple(numbers[tag] for tag in tags))

    def score_predictions(self, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score tags by number."""
        sentences = task.splits[split]
        tags = [np.array(sentence.tags, dtype=np.int64) for sentence in sentences]
        ids, lost = tuple(one.id for one in sentences), np.zeros(len(sentences), dtype=np.int64)
        return _score_tags(ids, predicted, tags, lost, task.labels)

    def reader(self, path: Path, file: TaskFile) -> Callable[[Path], Any]:
        """Return the reader of CoNLL's and similar files."""
        token, tag = (
            column if isinstance(column, int) else None
            for column in (file.columns.get("tokens"), file.columns.get("tags"))
        )
        return partial(read_conll, token_column=token, tag_column=tag)

    def check_labels(self, labels: Sequence[str], *, where: str) -> None:
        """Check that labels are BIO2 tags."""
        check_labels(labels, where=where)
        check_tag_set(labels, where=where)

    def found_labels(self, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the tags of every type."""
        return found_tags(rows, source=source)

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the tags by name."""
        tags = row.value.get("tags")
        if not labels or not isinstance(tags, list):
            return {}
        return {"tags": [labels.tag(row, position, tag) for position, tag in enumerate(tags)]}

    def example(self, row: Row, record: HeadRecord) -> Words:
        """Return the words of `tokens`, or those of `text`."""
        return words_of(row)

    def predict(self, finetuned: FinetunedModel, examples: Sequence[Words]) -> Predictions:
        """Find entities."""
        from scipy.special import softmax

        max_seqlen, tokenizer = finetuned.protocol.max_seqlen, finetuned.tokenizer
        aligned = [_Aligned.of(e.words, tokenizer, max_seqlen=max_seqlen) for e in examples]
        rows: list[dict[str, Any]] = [{}] * len(examples)
        for index, logits in _word_logits(finetuned.encoder, finetuned.head, aligned):
            tags = aligned[index].best_tags(logits)
            shares = softmax(logits.astype(np.float64), axis=1)
            rows[index] = _entity_row(examples[index], tags, shares, labels=finetuned.record.labels)
        return rows, sum(sentence.is_cut for sentence in aligned)


@dataclass(frozen=True, slots=True)
class _Aligned:
    """A sentence as tokens, and the position of each word's first token."""

    sequence: TokenIds
    positions: NDArray[np.int64]  # -1: the word is cut off, or the tokenizer drops it
    is_cut: bool

    @classmethod
    def of(cls, words: Sequence[str], tokenizer: TextTokenizer, *, max_seqlen: int) -> Self:
        """Join words with spaces, and find the first token of each by character offsets."""
        from biphasic.tasks.encoding import frame

        ids, offsets = tokenizer.encode_offsets(" ".join(words))
        lengths = np.array([len(word) for word in words])
        word_ends = np.cumsum(lengths + 1) - 1
        word_starts = word_ends - lengths
        token_starts, token_ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
        # Some tokenizers count a leading space as part of the token, and a character split into
        # several tokens repeats in the offsets of each. In every case the first token of a word is
        # the first one that ends after the word's start.
        first = np.searchsorted(token_ends, word_starts, side="right")
        # A word that the tokenizer drops (only stripped characters) has no token of its own.
        has_token = first < min(len(ids), max_seqlen - 2)
        has_token[has_token] &= token_starts[first[has_token]] < word_ends[has_token]
        positions = np.where(has_token, first + 1, _LOST)  # + 1 for BOS
        sequence = frame(ids, tokenizer, max_seqlen=max_seqlen)
        return cls(sequence, positions, len(ids) + 2 > max_seqlen)

    @property
    def num_lost(self) -> int:
        """Number of lost words."""
        return int((self.positions == _LOST).sum())

    def best_tags(self, logits: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the tag of each word, from its logits; `NO_PREDICTION` for lost words."""
        return np.where(self.positions == _LOST, NO_PREDICTION, logits.argmax(axis=1))


def _word_logits(
    encoder: Encoder, head: nn.Module, sentences: Sequence[_Aligned]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the index of each sentence and the logits of its words, [num_words, num_tags]."""
    # The longest sentences are first. The logits of lost words are meaningless.
    import torch

    for indices, hidden, spans in encoder.batches([each.sequence for each in sentences]):
        chosen = [sentences[index] for index in indices]
        rows = torch.from_numpy(_word_rows(chosen, spans).clip(0)).to(hidden.device)
        logits = head(hidden.index_select(0, rows)).cpu().numpy()
        borders = np.cumsum([len(sentence.positions) for sentence in chosen])[:-1]
        yield from zip(indices.tolist(), np.split(logits, borders), strict=True)


def _word_rows(sentences: Sequence[_Aligned], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the state row of each word of a batch, or -1."""
    starts = np.repeat(spans[:, 0], [len(sentence.positions) for sentence in sentences])
    flat = np.concatenate([sentence.positions for sentence in sentences])
    return np.where(flat == _LOST, _LOST, flat + starts)


def _entity_row(
    example: Words, tags: NDArray[np.int64], shares: NDArray[np.float64], *, labels: Sequence[str]
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
    """Return first and last word of each entity, with the strict rule used in scoring."""
    borders: list[tuple[int, int]] = []
    for place, tag in enumerate(tags):
        goes_on = bool(borders) and borders[-1][1] == place - 1
        if tag.startswith("B-"):
            borders.append((place, place))
        elif tag.startswith("I-") and goes_on and tags[borders[-1][0]][2:] == tag[2:]:
            borders[-1] = (borders[-1][0], place)
    return borders
