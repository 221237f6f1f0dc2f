"""Token classification: a label for each word, as BIO2 tags of entities."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self
from unicodedata import category

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from biphasic.data.text.words import gaps, joined, parts_of
from biphasic.errors import DataError
from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row, plain_name, read_lines
from biphasic.tasks.baselines import Baseline, dictionary
from biphasic.tasks.kinds.examples import FIELDS, LABELS, Example, Parsing, RecordFiles
from biphasic.tasks.kinds.kind import Facts, Learner, Predictions, SplitScores, TaskKind
from biphasic.tasks.labels_and_qrels import Labels, check_labels, found_tags
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import NO_PREDICTION, ExampleTask, FileSettings, HeadRecord

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.packing import TokenIds
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder, FinetunedModel

_LOST = -1
_DOCUMENT = "-DOCSTART-"
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(.+)")
_TAB = re.compile("\t")
# Not all Unicode white space, which tokens may contain.
_SPACES = re.compile(" +")
_WORD_CATEGORIES = ("L", "M", "N", "Pc", "Cf")


@dataclass(frozen=True, slots=True, config=FIELDS)
class TaggedSentence(Example):
    """Words and their BIO2 tags, as indices into the task's labels."""

    settings: ClassVar[tuple[str, ...]] = (LABELS,)
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".conll", ".iob2", ".bio", ".txt", ".tsv")
    ready_field: ClassVar[str | None] = "tokens"
    numbered: ClassVar[tuple[str, ...]] = ("tokens", "tags")
    words: Annotated[tuple[str, ...], Field(validation_alias="tokens")]
    tags: tuple[int, ...]

    @property
    def text(self) -> str:
        """The words, joined."""
        return joined(self.words)

    @classmethod
    def given(cls, where: Parsing) -> dict[str, Any]:
        row = where.row
        words, tags = row.items("tokens", str), [*map(plain_name, row.items("tags", str))]
        if len(words) != len(tags):
            raise row.error(f"{len(words)} tokens but {len(tags)} tags")
        words = words_of(row).words
        _check_bio(row, tags)
        numbers = {label: number for number, label in enumerate(where.labels)}
        for position, tag in enumerate(tags):
            if tag not in numbers:
                known = f"the labels are {', '.join(numbers)}"
                raise row.error(
                    f"unknown label '{tag}' at token {position}; {known}", token=position
                )
        return {"tokens": words, "tags": tuple(numbers[tag] for tag in tags)}

    @classmethod
    def reader(cls, file: FileSettings) -> Callable[[Path], Iterable[Row]]:
        token, tag = (
            column if isinstance(column, int) else None
            for column in (file.columns.get("tokens"), file.columns.get("tags"))
        )
        return partial(read_conll, token_column=token, tag_column=tag)

    @classmethod
    def check_labels(cls, labels: Sequence[str], *, where: str) -> None:
        check_labels(labels, where=where)
        for label in labels:
            if not _is_bio(label):
                raise DataError(f"{where}: '{label}' is not a BIO2 tag")
        if "O" not in labels:
            raise DataError(f"{where}: the tag 'O' is missing")

    @classmethod
    def labels_in(cls, rows: Sequence[Row], *, source: str) -> Labels:
        return found_tags(rows, source=source)

    @classmethod
    def written(cls, row: Row, labels: Labels | None) -> dict[str, Any]:
        tags = row.value.get("tags")
        if not labels or not isinstance(tags, list):
            return {}
        return {"tags": [labels.tag(row, position, tag) for position, tag in enumerate(tags)]}

    @classmethod
    def asked(cls, row: Row, record: HeadRecord) -> Words:
        return words_of(row)


class TagLearner(Learner):
    """A tag per word, from its first token; cross-entropy."""

    # Borders of entities are in characters, or in words if these were given.
    predicted: ClassVar[Mapping[str, Any]] = {
        "entities": [{"type": str, "start": int, "end": int, "text": str, "score": float}],
        "tags": [str],
    }

    def encode(self, task: ExampleTask) -> None:
        self.task = task.held_out()
        self.num_outputs, self.sentences, self.tags = len(task.labels), {}, {}
        for split, examples in task.splits.items():
            self.tags[split] = [np.array(example.tags, dtype=np.int64) for example in examples]
            self.sentences[split] = sentences = [
                _Aligned.of(example.words, self.tokenizer, max_seqlen=self.protocol.max_seqlen)
                for example in examples
            ]
            self.num_truncated[split] = sum(sentence.is_cut for sentence in sentences)
            self.num_truncated[f"{split}_lost_words"] = sum(s.num_lost for s in sentences)
        self.trained_sequences = [s.sequence for s in self.sentences.get("train", ())]
        self.num_train = len(self.trained_sequences)

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean cross-entropy over words."""
        import torch

        sentences = [self.sentences["train"][index] for index in indices]
        hidden, spans = encoder.states([sentence.sequence for sentence in sentences])
        rows = _word_rows(sentences, spans)
        tags = np.concatenate([self.tags["train"][index] for index in indices])
        places = torch.from_numpy(rows[rows != _LOST]).to(hidden.device)
        labels = torch.from_numpy(tags[rows != _LOST]).to(hidden.device)
        logits = head(hidden.index_select(0, places))
        # A batch may have only lost words, whose mean would be 0 / 0.
        total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        return total / max(1, len(labels))

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test; a sentence's score is its token F1."""
        return {split: self._evaluate(encoder, head, split) for split in self.scored}

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
        tags = np.concatenate(_chosen(self.tags[split], chosen))
        sentences = _chosen(self.sentences[split], chosen)
        lost = np.concatenate([sentence.positions for sentence in sentences]) == _LOST
        return np.where(lost, _LOST, tags)

    def score_outputs(self, split: str, outputs: NDArray[Any]) -> SplitScores:
        sentences = self.sentences[split]
        borders = np.cumsum([len(sentence.positions) for sentence in sentences])[:-1]
        logits = np.split(outputs, borders)
        both = zip(sentences, logits, strict=True)
        return self._score(split, [sentence.best_tags(of_words) for sentence, of_words in both])

    def _score(self, split: str, predicted: Sequence[NDArray[np.int64]]) -> SplitScores:
        scores = self.score(self.task, split, predicted)
        lost = np.array([sentence.num_lost for sentence in self.sentences[split]])
        return replace(scores, columns={**scores.columns, "num_lost_words": lost})

    @classmethod
    def score(cls, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score tags by number; a sentence's score is its token F1."""
        from biphasic.tasks.metrics import entity_scores, sentence_token_f1

        # For entity scores, a word without a prediction is outside every entity.
        # Lost words count: leaving them out would favour tokenizers that lose many.
        names = {NO_PREDICTION: "O", **dict(enumerate(task.labels))}
        tags = [np.array(sentence.tags, dtype=np.int64) for sentence in task.splits[split]]
        token_f1 = sentence_token_f1(tags, predicted, num_labels=len(task.labels))
        entities = entity_scores(
            *(
                [[names[tag] for tag in sentence.tolist()] for sentence in tag_lists]
                for tag_lists in (tags, predicted)
            )
        )
        metrics = {"entity_f1": entities.f1, "sentence_token_f1": float(token_f1.mean())}
        columns = {
            "sentence_token_f1": token_f1,
            "num_entities": entities.expected,
            "num_predicted": entities.predicted,
            "num_right": entities.right,
            "num_lost_words": np.zeros(len(tags), dtype=np.int64),
        }
        return SplitScores(metrics, task.ids(split), token_f1, columns, entities.by_type)

    @classmethod
    def limit(cls, protocol: FinetuneProtocol) -> None:
        return None

    @classmethod
    def predict(cls, finetuned: FinetunedModel, examples: Sequence[Words]) -> Predictions:
        from scipy.special import softmax

        windows = [_Aligned.windows(example.words, finetuned) for example in examples]
        parts = [*chain.from_iterable(windows)]
        logits = [np.empty(0, dtype=np.float32)] * len(parts)
        for index, of_words in _word_logits(finetuned.encoder, finetuned.head, parts):
            logits[index] = of_words
        rows, of_parts = [], iter(zip(parts, logits, strict=True))
        for example, of_example in zip(examples, windows, strict=True):
            both = [*islice(of_parts, len(of_example))]
            tags = np.concatenate([part.best_tags(of_words) for part, of_words in both])
            # In double precision the probabilities of a word add up to one.
            shares = softmax(np.concatenate([s for _, s in both]).astype(np.float64), axis=1)
            rows.append(_entity_row(example, tags, shares, labels=finetuned.record.labels))
        return rows, [of_example[0].is_cut for of_example in windows]


class Tagging(TaskKind):
    """A tag per word, from its first token; cross-entropy, entity F1."""

    name = "tc"
    examples = RecordFiles(TaggedSentence)
    learner = TagLearner
    facts = Facts(
        **vars(FIRST_KINDS["tc"]),
        paper_metric="sentence_token_f1",
        does="finds entities in a text",
        pipeline="token-classification",
        form="token-classification",
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {"floor:dictionary": dictionary}


def _chosen(items: Sequence[Any], indices: NDArray[np.int64] | None) -> Sequence[Any]:
    return items if indices is None else [items[index] for index in indices.tolist()]


@plain_dataclass(frozen=True, slots=True)
class _Aligned:
    """A sentence, or a window of it, as tokens, and the position of each word's first token."""

    sequence: TokenIds
    positions: NDArray[np.int64]  # -1: the word is cut off, or the tokenizer drops it
    is_cut: bool

    @classmethod
    def of(cls, words: Sequence[str], tokenizer: TextTokenizer, *, max_seqlen: int) -> Self:
        """Return a sentence, cut to fit."""
        from biphasic.tasks.encoding import frame

        ids, first, _, is_dropped = _tokens_of(words, tokenizer)
        # BOS and EOS take two places. A word counts as read if its first token is.
        is_lost = is_dropped | (first >= max_seqlen - 2)
        sequence = frame(ids, tokenizer, max_seqlen=max_seqlen)
        return cls(sequence, np.where(is_lost, _LOST, first + 1), len(ids) + 2 > max_seqlen)

    @classmethod
    def windows(cls, words: Sequence[str], finetuned: FinetunedModel) -> list[Self]:
        """Return the windows of a sentence, each with the words that have most context there."""
        tokenizer, max_seqlen = finetuned.tokenizer, finetuned.protocol.max_seqlen
        if finetuned.long_texts == "truncate":
            return [cls.of(words, tokenizer, max_seqlen=max_seqlen)]
        ids, first, last, is_dropped = _tokens_of(words, tokenizer)
        starts, sequences = zip(*finetuned.windows(ids), strict=True)
        ends = np.array(starts) + [len(sequence) - 2 for sequence in sequences]
        # A word in two windows belongs to the later one if that has more tokens before the word
        # than the earlier one has behind it: these are the smaller sides of both.
        nexts = np.array(starts[1:], dtype=np.int64)
        borders = np.searchsorted(first + last, nexts + ends[:-1] - 1, side="right")
        # One that is longer than the overlap may begin in the earlier window alone.
        borders = np.maximum(borders, np.searchsorted(first, nexts))
        parts = np.split(np.where(is_dropped, _LOST, first), borders)
        return [
            cls(sequence, np.where(part < 0, _LOST, part - start + 1), is_cut=False)  # + 1 for BOS
            for part, start, sequence in zip(parts, starts, sequences, strict=True)
        ]

    @property
    def num_lost(self) -> int:
        """Number of lost words."""
        return int((self.positions == _LOST).sum())

    def best_tags(self, logits: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the tag of each word, from its logits; `NO_PREDICTION` for lost words."""
        return np.where(self.positions == _LOST, NO_PREDICTION, logits.argmax(axis=1))


def _tokens_of(
    words: Sequence[str], tokenizer: TextTokenizer
) -> tuple[list[int], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Join words; return their tokens, each word's first and last, and which words have none."""
    # The joined text, as in pretraining; words one by one would lack the spaces between them.
    ids, offsets = tokenizer.encode_offsets(joined(words))
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    word_ends = np.cumsum(lengths + np.array([len(gap) for gap in gaps(words)], dtype=np.int64))
    word_starts = word_ends - lengths
    token_starts, token_ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    # Some tokenizers count a leading space as part of the token, and a character split into
    # several tokens repeats in the offsets of each. In every case the first token of a word is
    # the first one that ends after the word's start.
    first = np.searchsorted(token_ends, word_starts, side="right")
    last = np.searchsorted(token_starts, word_ends) - 1
    # A word that the tokenizer drops (only stripped characters) has no token of its own.
    has_token = first < len(ids)
    has_token[has_token] &= token_starts[first[has_token]] < word_ends[has_token]
    return ids, first, last, ~has_token


def _word_logits(
    encoder: Encoder, head: nn.Module, sentences: Sequence[_Aligned]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the index of each sentence and the logits of its words, [num_words, num_tags]."""
    # The longest sentences are first. The logits of lost words are meaningless.
    import torch

    for indices, hidden, spans in encoder.batches([sentence.sequence for sentence in sentences]):
        chosen = [sentences[index] for index in indices]
        # Lost words read row 0, so that every word has a row of logits, and their place in the
        # result.
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
        return {"start": start, "end": last + 1, "text": joined(example.words[first : last + 1])}
    end = example.starts[last] + len(example.words[last])
    return {"start": start, "end": end, "text": example.text[start:end]}


def entity_borders(tags: Sequence[str]) -> list[tuple[int, int]]:
    """Return first and last word of each entity, with the strict rule used in scoring."""
    borders: list[tuple[int, int]] = []
    for place, tag in enumerate(tags):
        goes_on = bool(borders) and borders[-1][1] == place - 1
        if tag.startswith("B-"):
            borders.append((place, place))
        # seqeval's strict IOB2: an I- after another type, or after O, belongs to no entity.
        elif tag.startswith("I-") and goes_on and tags[borders[-1][0]][2:] == tag[2:]:
            borders[-1] = (borders[-1][0], place)
    return borders


def _is_bio(tag: str) -> bool:
    """Return whether a tag is `O`, `B-TYPE` or `I-TYPE`."""
    return tag == "O" or (tag[:2] in {"B-", "I-"} and len(tag) > 2)


def _check_bio(row: Row, tags: Sequence[str]) -> None:
    """Check that tags are valid BIO2 (IOB2): every entity starts with `B-`."""
    previous = "O"
    for position, tag in enumerate(tags):
        if not _is_bio(tag):
            raise row.error(
                f"not valid BIO2: {tag!r} at token {position} is neither O, B-TYPE nor I-TYPE",
                token=position,
            )
        if tag.startswith("I-") and previous[2:] != tag[2:]:
            raise row.error(
                f"not valid BIO2: '{tag}' at token {position} follows '{previous}'; an entity "
                f"starts with 'B-{tag[2:]}' (convert files in IOB1)",
                token=position,
            )
        previous = tag


@plain_dataclass
class _Sentence:
    """Tokens between two empty lines."""

    number: int = 0
    id: str = ""
    tokens: list[list[str]] = field(default_factory=list)


def read_conll(path: Path, *, token_column: int | None, tag_column: int | None) -> list[Row]:
    """Read the sentences of a CoNLL or IOB2 file with their tags; an empty line ends one."""
    # By default the first column is the token, the last the tag; if the first counts the tokens of
    # a sentence (CoNLL-U, Universal NER), they are the second and third. Columns count from 1.
    sentences = [sentence for sentence in _sentences(path) if sentence.tokens]
    if not sentences:
        return []
    width = len(sentences[0].tokens[0])
    # All sentences: numbers may be tokens of a text.
    is_counted = width > 2 and all(map(_is_counted, sentences))
    token = token_column or (2 if is_counted else 1)
    tag = tag_column or (3 if is_counted else width)
    if max(token, tag) > width or token == tag:
        raise DataError(
            f"{path}:{sentences[0].number}: token in column {token} and tag in column {tag}, but "
            f"there {'is 1 column' if width == 1 else f'are {width} columns'}"
        )
    rows: list[Row] = []
    for sentence in sentences:
        words, tags = zip(
            *((line[token - 1], line[tag - 1]) for line in sentence.tokens), strict=True
        )
        value = {"id": sentence.id or str(sentence.number), "tokens": [*words], "tags": [*tags]}
        rows.append(Row(path, sentence.number, value, is_vertical=True))
    return rows


def _sentences(path: Path) -> Iterator[_Sentence]:
    lines = [(number, line.rstrip("\r\n")) for number, line in read_lines(path)]
    separator, width = _layout(text for _, text in lines)
    sentence = _Sentence()
    for number, text in lines:
        columns = separator.split(text)
        has_tag = len(columns) == width and any(map(_is_bio, columns[1:]))  # such as a hashtag's
        if not text.strip(" \t") or columns[0] == _DOCUMENT:
            yield sentence
            sentence = _Sentence()
        # Comments stand above a sentence only; a token may begin with # as well.
        elif not sentence.tokens and columns[0].startswith("#") and not has_tag:
            if match := _SENTENCE_ID.fullmatch(text):
                sentence.id = match[1].strip() or sentence.id
        elif len(columns) != width:
            raise DataError(f"{path}:{number}: {len(columns)} columns, but the first has {width}")
        else:
            sentence.number = sentence.number or number
            sentence.tokens.append(columns)
    yield sentence


def _layout(texts: Iterable[str]) -> tuple[re.Pattern[str], int]:
    """Return the column separator and number of columns of the first line that must be a token."""
    for text in texts:
        if text.strip(" \t") and not text.startswith(("#", _DOCUMENT)):
            separator = _TAB if "\t" in text else _SPACES
            return separator, len(separator.split(text))
    return _TAB, 0


def _is_counted(sentence: _Sentence) -> bool:
    return all(columns[0] == str(place) for place, columns in enumerate(sentence.tokens, start=1))


@plain_dataclass(frozen=True, slots=True)
class Words:
    """A text cut into words."""

    words: tuple[str, ...]
    starts: tuple[int, ...]  # in characters of the text
    text: str | None  # None if the words were given


def words_of(row: Row) -> Words:
    """Return the words of `tokens`, or those of `text`."""
    if "tokens" not in row.value:
        return split_words(row.text("text"))
    words = row.items("tokens", str)
    if not words:
        raise row.error("the sentence has no tokens")
    for position, word in enumerate(words):
        if not word.strip():
            raise row.error(f"token {position} is empty ({word!r})", token=position)
    return Words(tuple(words), tuple(range(len(words))), None)


def split_words(text: str) -> Words:
    """Split a text into words: runs of letters, marks and digits; each other sign is a word.

    In scripts without spaces between words, each character is a word.
    """
    words: list[str] = []
    starts: list[int] = []
    place = 0
    for is_word, run in groupby(text, lambda sign: category(sign).startswith(_WORD_CATEGORIES)):
        signs = "".join(run)
        parts = parts_of(signs) if is_word else list(signs)
        for part in parts:
            if not part.isspace():
                words.append(part)
                starts.append(place)
            place += len(part)
    return Words(tuple(words), tuple(starts), text)
