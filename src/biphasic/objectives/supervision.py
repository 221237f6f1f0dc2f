"""Inputs and labels that an objective makes from rows, and the word starts among their tokens.

Every token is converted to the UTF-8 bytes of its text, with a space before each word start:
byte-level BPE (`Ġ`), SentencePiece (`▁`, bytes such as `<0xE4>`) and WordPiece (`##` continues a
word). Words are then split by characters, so a character whose bytes span several tokens stays
whole.

References: Devlin et al. 2019, arXiv:1810.04805, whole-word masking of its later release (white
space, punctuation and ideographs separate words); Radford et al. 2019, "Language models are
unsupervised multitask learners", section 2.2 (byte-level BPE).
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

from biphasic.data.packing import PackedBatch
from biphasic.data.rows import RowBatch
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

PerLabel = Callable[..., "Tensor"]
"""Returns the loss of each label, fp32 [num_labels], from logits in fp32 [num_labels, vocab_size],
labels, int64 [num_labels], and if there are any values, fp32 [num_labels, any]."""
_SPACE, _WORD, _IDEOGRAPH, _MARK, _JOINER, _OTHER = range(6)
# The blocks of BERT's tokenizer, and the extensions that Unicode has added to them since, up to H.
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
# Zero-width non-joiner and joiner: within Persian words, and between parts of an emoji.
_JOINERS = (0x200C, 0x200D)
_LAST_CHARACTER = 0x10FFFF
_LONE_SPACE = b" "


@dataclass(frozen=True)
class Spellings:
    """The text of each token."""

    content: NDArray[np.uint8]  # UTF-8 bytes of all tokens, concatenated, none empty
    borders: NDArray[np.int64]  # borders of the tokens in `content`, [vocab_size + 1]


def spellings_of(tokenizer: TextTokenizer) -> Spellings:
    """Return the text of each token of a vocabulary."""
    rules = tokenizer.rules()
    spell = _speller(rules)
    # An added token is matched as it is written, without the rules of other tokens.
    literal = {added["id"] for added in rules["added_tokens"]}
    spelled = [_LONE_SPACE] * tokenizer.vocab_size
    for token, token_id in tokenizer.vocabulary().items():
        content = token.encode() if token_id in literal else spell(token)
        # Word starts are decided by a token's first byte, so each has one.
        spelled[token_id] = content or _LONE_SPACE
    lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
    return Spellings(
        content=np.frombuffer(b"".join(spelled), dtype=np.uint8),
        borders=np.concatenate([[0], np.cumsum(lengths)]),
    )


def word_starts(input_ids: NDArray[np.int64], spellings: Spellings) -> NDArray[np.bool_]:
    """Return which of consecutive tokens start a word, [num_tokens]."""
    # It continues a word if it starts inside a character or with a combining mark, where letters
    # or digits meet, after or at a joiner (emoji, Persian), and after a lone space.
    firsts = spellings.borders[input_ids]
    lengths = spellings.borders[input_ids + 1] - firsts
    begins = np.cumsum(lengths) - lengths
    # The bytes of all tokens: each token's first byte, and the offset of each byte from it.
    places = np.repeat(firsts - begins, lengths) + np.arange(int(lengths.sum()))
    text = spellings.content[places]
    kinds, bases = _kinds(text)
    here = kinds[begins]
    # The kind before a mark's own counts: a letter with an accent goes on like a letter.
    before = np.concatenate([[_OTHER], bases[begins[1:] - 1]])
    is_lone_space = (lengths == 1) & (text[begins] == _LONE_SPACE[0])
    after_lone_space = np.concatenate([[False], is_lone_space[:-1]])
    goes_on = (text[begins] & 0xC0) == 0x80  # inside a character
    goes_on |= (here == _MARK) | (here == _JOINER)
    goes_on |= (here == _WORD) & (before == _WORD)
    goes_on |= (here != _SPACE) & ((before == _JOINER) | after_lone_space)
    return ~goes_on


def _kinds(text: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the kind of each byte's character, and that of the character it combines with."""
    # UTF-8: a lead byte says how many bytes follow, and each of these holds six bits.
    is_lead = (text & 0xC0) != 0x80
    places = np.flatnonzero(is_lead)
    # The last character may be cut, so the three bytes after it are read as zeros.
    padded = np.concatenate([text, np.zeros(3, dtype=np.uint8)]).astype(np.int64)
    lead = padded[places]
    second, third, fourth = (padded[places + place] & 0x3F for place in (1, 2, 3))
    characters = np.select(
        [lead < 0x80, lead < 0xE0, lead < 0xF0],
        [lead, (lead & 0x1F) << 6 | second, (lead & 0x0F) << 12 | second << 6 | third],
        (lead & 0x07) << 18 | second << 12 | third << 6 | fourth,
    )
    # The first entry is for bytes of a character that starts earlier.
    kinds = np.empty(len(places) + 1, dtype=np.uint8)
    kinds[0] = _OTHER
    # Tokens of single bytes in any order need not be UTF-8, and may give larger numbers.
    kinds[1:] = _kind_table()[np.minimum(characters, _LAST_CHARACTER)]
    # A combining mark belongs to the last character before it that is none.
    last_base = np.maximum.accumulate(np.where(kinds != _MARK, np.arange(len(kinds)), 0))
    owners = np.cumsum(is_lead)
    return kinds[owners], kinds[last_base][owners]


@lru_cache(maxsize=1)
def _kind_table() -> NDArray[np.uint8]:
    """Return the kind of every character, by this Python's Unicode version."""
    by_category = {"L": _WORD, "N": _WORD, "M": _MARK, "Z": _SPACE}
    count = _LAST_CHARACTER + 1
    categories = (unicodedata.category(chr(code))[0] for code in range(count))
    table = np.fromiter(
        (by_category.get(category, _OTHER) for category in categories), np.uint8, count
    )
    # White space that Unicode counts among control characters.
    table[[ord(character) for character in "\t\n\v\f\r\x85"]] = _SPACE
    table[list(_JOINERS)] = _JOINER
    # Letters by their category, which would make a Chinese sentence one word.
    for first, last in _IDEOGRAPHS:
        table[first : last + 1] = _IDEOGRAPH
    return table


def _speller(rules: dict[str, Any]) -> Callable[[str], bytes]:
    """Return a function that spells the tokens of a vocabulary, from its `tokenizer.json`."""
    model = rules["model"]
    parts = [
        part
        for name in ("normalizer", "pre_tokenizer", "decoder")
        for part in _components(rules.get(name))
    ]
    # All parts are searched: GPT-2 has it as pre-tokenizer, Llama 3 within a sequence of several.
    if any(part["type"] == "ByteLevel" for part in parts):
        alphabet = _byte_level_alphabet()
        # A character outside of the alphabet stands for itself.
        return lambda token: b"".join(
            bytes([alphabet[character]]) if character in alphabet else character.encode()
            for character in token
        )
    if prefix := model.get("continuing_subword_prefix"):
        return lambda token: _continued(token, prefix)
    if marker := next(filter(None, map(_space_marker, parts)), None):
        return lambda token: _marked(token, marker)
    raise ConfigError(
        f"selection: the tokenizer ({model['type']}) does not mark word starts, so whole "
        "words and spans are unknown; use 'selection: token', or a byte-level, SentencePiece "
        "or WordPiece tokenizer"
    )


def _components(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield a part of a tokenizer's description and all of its components."""
    if part:
        yield part
        for name in ("normalizers", "pretokenizers", "decoders"):
            for component in part.get(name, ()):
                yield from _components(component)


def _space_marker(part: dict[str, Any]) -> str | None:
    """Return the replacement of a space in this part of a tokenizer, if it defines one."""
    if part["type"] == "Metaspace":
        return part["replacement"]
    # Llama 2 and Gemma replace spaces in the normalizer, without Metaspace.
    is_replacement = part["type"] == "Replace" and part["pattern"] == {"String": " "}
    return part["content"] if is_replacement else None


def _continued(token: str, prefix: str) -> bytes:
    return (token[len(prefix) :] if token.startswith(prefix) else f" {token}").encode()


def _marked(token: str, marker: str) -> bytes:
    """Return the bytes of a SentencePiece token; `<0x0A>` is a byte that no other token covers."""
    if len(token) == len("<0x0A>") and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace(marker, " ").encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character: printable bytes' own, the others' in order."""
    # GPT-2 writes other bytes as characters from U+0100 on, in the order of the bytes.
    alphabet = set(ByteLevel.alphabet())
    printable = {chr(byte): byte for byte in range(256) if chr(byte) in alphabet}
    others = sorted(set(range(256)) - set(printable.values()))
    return printable | dict(zip(sorted(alphabet - set(printable)), others, strict=True))


class StatesLoss(ABC):
    """A loss over final states, in place of the cross-entropy of the language-model head.

    Attributes:
        couples: Whether the loss of one vector depends on the others of the step. Then `summed`
            gets the vectors of all passes and processes at once, ordered by their labels, which
            number them from 0. Otherwise it gets those of each pass with their labels.
    """

    couples: bool

    @property
    @abstractmethod
    def normaliser(self) -> float:
        """Divisor of the sum of a step."""

    @abstractmethod
    def vectors(self, hidden: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return a vector in fp32 for each label of a pass.

        `hidden` are its final states, [num_rows * row_length, hidden_size]; positions of labels and
        borders of segments are int64 and int32.
        """

    @abstractmethod
    def summed(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the summed loss, a scalar in fp32, of vectors with labels."""


@dataclass(frozen=True)
class Supervision:
    """Input rows and the labels of one objective.

    Attributes:
        rows: Input of the model.
        positions: int64 [num_supervised]; predicted positions in the flattened rows, ascending.
        labels: int64 [num_supervised]; their labels.
        causal: Whether a token attends only to those before it.
        loss: A loss over hidden states in place of that of the language-model head.
        weights: fp32 [num_supervised]; factors of the labels' losses. None for 1.
        num_predicted: What the summed loss is divided by, if not the number of labels.
        per_label: A loss of logits and labels in place of the cross-entropy.
        values: fp32 [num_supervised, any]; numbers for each label that `per_label` gets as well.
    """

    rows: PackedBatch
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    causal: bool
    loss: StatesLoss | None = None
    weights: NDArray[np.float32] | None = None
    num_predicted: int | None = None
    per_label: PerLabel | None = None
    values: NDArray[np.float32] | None = None

    @property
    def normaliser(self) -> float:
        """Divisor of the summed loss: the number of labels, unless another is given."""
        if self.loss is not None:
            return self.loss.normaliser
        return len(self.labels) if self.num_predicted is None else self.num_predicted

    @property
    def head_tokens(self) -> int:
        """Tokens that the language-model head reads."""
        return len(self.labels) if self.loss is None else 0

    def split(self, rows_per_part: int | None) -> tuple[Supervision, ...]:
        """Divide the rows, in order, into parts of at most this many; None keeps them together."""
        # Parts without labels are omitted: they add nothing to the sum of losses. No sequence spans
        # two rows, so nothing else changes.
        # The object itself, so that the usual case copies nothing.
        if rows_per_part is None or self.rows.num_rows <= rows_per_part:
            return (self,)
        num_parts = -(-self.rows.num_rows // rows_per_part)
        # Parts of nearly equal size have the lowest peak of memory for their number.
        borders = [index * self.rows.num_rows // num_parts for index in range(num_parts + 1)]
        parts = (self.part(start, end) for start, end in pairwise(borders))
        return tuple(part for part in parts if len(part.labels))

    def without_labels(self) -> Supervision:
        """Return the rows without labels: they add nothing to the sum of losses."""
        return self._with(slice(0))

    def part(self, start: int, end: int) -> Supervision:
        """Return rows `start` to `end` with their labels, possibly none."""
        first, last = start * self.rows.row_length, end * self.rows.row_length
        # Positions are ascending, so the labels of some rows are a slice.
        inside = slice(*np.searchsorted(self.positions, [first, last]).tolist())
        part = replace(self._with(inside), rows=self.rows.part(start, end))
        return replace(part, positions=part.positions - first)

    def _with(self, labels: slice) -> Supervision:
        """Return the rows with some of the labels."""
        names = ("positions", "labels", "weights", "values")
        arrays = {name: getattr(self, name) for name in names}
        chosen = {name: array[labels] for name, array in arrays.items() if array is not None}
        return replace(self, **chosen)


def problems(
    parts: object, batch: RowBatch, vocabulary: Vocabulary, directions: Collection[bool]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with what an objective makes of a batch, each with the rule it breaks."""
    if not isinstance(parts, tuple) or not all(isinstance(p, Supervision) for p in parts):
        yield "rows", "supervise must return a tuple of Supervision"
        return
    first = 0
    for part in parts:
        first %= batch.packed.num_rows  # rows may be read again, such as in the other direction
        rows = batch.part(first, first + part.rows.num_rows)
        first += part.rows.num_rows
        if part.rows.input_ids.shape != rows.packed.input_ids.shape or not (
            np.array_equal(part.rows.cu_seqlens, rows.packed.cu_seqlens)
        ):
            yield "rows", "a part has other rows or borders than the batch"
            return
        if part.causal not in directions:
            yield "directions", f"a part has causal={part.causal}, which directions lacks"
        if part.loss is None:  # labels of a loss over states number vectors, not tokens
            yield from (("positions", text) for text in _wrong_labels(part, rows, vocabulary))
    if first != batch.packed.num_rows:
        yield "rows", f"the last part ends at row {first} of {batch.packed.num_rows}"


def _wrong_labels(part: Supervision, rows: RowBatch, vocabulary: Vocabulary) -> Iterator[str]:
    positions, labels, inputs = part.positions, part.labels, part.rows.input_ids
    if any(getattr(array, "dtype", None) != np.int64 for array in (positions, labels, inputs)):
        yield "positions, labels and input_ids must be int64"
        return
    if positions.shape != labels.shape or positions.ndim != 1:
        yield f"{positions.size} positions have {labels.size} labels"
    elif np.any(np.diff(positions) <= 0):
        yield "positions are not ascending"
    elif len(positions) and not 0 <= positions[0] <= positions[-1] < inputs.size:
        yield "a position is outside of the rows"
    elif not np.all(rows.is_token[positions]):
        yield "a position is outside of the rows' tokens"
    for name, ids in (("a label", labels), ("an input", inputs)):
        if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary.size:
            yield f"{name} is not in the vocabulary"
    weights, values = part.weights, part.values
    if values is not None and (values.dtype != np.float32 or len(values) != len(labels)):
        yield "values must be fp32, with a row for each label"
    if weights is None:
        return
    if weights.dtype != np.float32 or weights.shape != labels.shape or np.any(weights < 0):
        yield "weights must be fp32, not negative, and one for each label"


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer's properties that objectives need."""

    size: int  # highest id plus one
    mask_id: int
    special_ids: frozenset[int]  # tokens that no text contains
    tokenizer: TextTokenizer | None = None  # finds words; without it, only tokens can be masked

    @cached_property
    def spellings(self) -> Spellings:
        """The text of each token; computed on first use."""
        if self.tokenizer is None:
            raise ConfigError("selection: words and spans need the tokenizer, which is unknown")
        return spellings_of(self.tokenizer)
