"""Minimal pairs: which of two sentences a language model gives the higher probability.

From left to right, a sentence's score is its log-likelihood. With masks it is the
pseudo-log-likelihood: each token is hidden in a copy of its own and predicted from the others.
Special tokens frame a sentence as in pretraining and are never predicted.

References: Warstadt et al. 2020 (BLiMP), arXiv:1912.00582, section 4; Salazar et al. 2020,
arXiv:1910.14659, section 2; Kauf and Ivanova 2023, arXiv:2305.10588, section 3 (`PLL-word-l2r`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError
from biphasic.model.head import LanguageModelHead, language_model_head
from biphasic.objectives.words import spellings_of, word_starts
from biphasic.tasks.encoded.encoding import Encoder, encode_texts
from biphasic.tasks.encoded.metrics import SplitScores
from biphasic.tasks.protocol import FinetuneProtocol, Reading
from biphasic.tasks.records import SPLITS, ExampleTask, TaskInfo

# Sentences whose masked copies are in memory together, and logits of one product: 64 MiB.
_SENTENCES = 1024
_LOGITS = 1 << 24


@dataclass(frozen=True, slots=True)
class _Prediction:
    """Sequences and the tokens to predict in them.

    Attributes:
        sequences: What the model reads.
        owners: Sentence of each predicted token, int64 [num_predicted].
        readers: Sequence in which it is predicted.
        positions: Position in the sequence whose state predicts it.
        labels: The tokens.
    """

    sequences: list[TokenIds]
    owners: NDArray[np.int64]
    readers: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class EncodedPairs:
    """Minimal pairs as token sequences.

    Attributes:
        sentences: The different sentences, framed: equal ones are read once and always tie.
        pairs: By split, the acceptable and the other sentence, int64 [num_pairs, 2].
        ids: By split, the ids of pairs.
        groups: By split, the paradigms of pairs; "" for none.
        reading: How the model predicts.
        tokenizer: Knows the mask token, and where words start.
        hides_rest: Whether the tokens after the predicted one are hidden as well, up to the end of
            its word.
    """

    info: TaskInfo
    num_truncated: dict[str, int]
    sentences: list[TokenIds]
    pairs: dict[str, NDArray[np.int64]]
    ids: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]
    reading: Reading
    tokenizer: TextTokenizer
    hides_rest: bool
    num_outputs: int = 0
    num_train: int = 0

    @property
    def pad_id(self) -> int:
        """Token that fills rows."""
        return self.tokenizer.pad_id

    @property
    def trained_sequences(self) -> list[TokenIds]:
        """None: nothing is trained."""
        return []

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Refuse: nothing is trained."""
        raise NotImplementedError

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score each split; a pair's score is the difference of its log-probabilities, in nats."""
        del head
        totals = self.log_probabilities(encoder)
        return {split: self._split(split, totals[pairs]) for split, pairs in self.pairs.items()}

    def log_probabilities(self, encoder: Encoder) -> NDArray[np.float64]:
        """Return the log-probability of each sentence in nats, float64 [num_sentences]."""
        head = language_model_head(encoder.model)
        totals = np.zeros(len(self.sentences))
        # Nearly equal lengths share batches, so rows hold little padding.
        order = np.argsort([-len(sentence) for sentence in self.sentences], kind="stable")
        for start in range(0, len(order), _SENTENCES):
            asked = self._predictions(order[start : start + _SENTENCES])
            predicted = _predicted(encoder, head, asked)
            totals += np.bincount(asked.owners, weights=predicted, minlength=len(totals))
        return totals

    def _predictions(self, chosen: NDArray[np.int64]) -> _Prediction:
        sentences = [self.sentences[index] for index in chosen]
        counts = np.array([len(sentence) - 2 for sentence in sentences])
        places = np.concatenate([np.arange(1, count + 1) for count in counts])
        labels = np.concatenate([sentence[1:-1] for sentence in sentences])
        owners = np.repeat(chosen, counts)
        if self.reading == "clm":
            # What follows a token does not change its probability.
            readers = np.repeat(np.arange(len(chosen)), counts)
            sequences = [sentence[:-2] for sentence in sentences]
            return _Prediction(sequences, owners, readers, places - 1, labels)
        copies = [copy for sentence in sentences for copy in self._masked(sentence)]
        positions = places if self.reading == "mlm" else places - 1
        return _Prediction(copies, owners, np.arange(len(copies)), positions, labels)

    def _masked(self, sentence: TokenIds) -> NDArray[np.int64]:
        """Return a copy for each token in which it is hidden, int64 [num_tokens, length]."""
        count = len(sentence) - 2
        places, tokens = np.arange(len(sentence)), np.arange(1, count + 1)
        is_hidden = places == tokens[:, None]
        if self.hides_rest:
            begins = word_starts(sentence[1:-1], self._spellings)
            words = np.concatenate([[-1], np.cumsum(begins), [-2]])
            same = words[tokens, None] == words
            is_hidden = same & (places >= tokens[:, None])
        return np.where(is_hidden, self.tokenizer.mask_id, sentence)

    @cached_property
    def _spellings(self):
        return spellings_of(self.tokenizer)

    def _split(self, split: str, totals: NDArray[np.float64]) -> SplitScores:
        good, bad = totals.T
        correct = np.where(good == bad, 0.5, good > bad)
        groups = np.array(self.groups[split])
        by_group = {
            str(group): {
                "accuracy": float(correct[groups == group].mean()),
                "pairs": int((groups == group).sum()),
            }
            for group in np.unique(groups)
            if group
        }
        return SplitScores(
            metrics={"accuracy": float(correct.mean()), "ties": float((good == bad).mean())},
            ids=self.ids[split],
            scores=good - bad,
            columns={
                "correct": correct,
                "good": good,
                "bad": bad,
                "paradigm": self.groups[split],
                "reading": (self.reading,) * len(correct),
            },
            by_type=by_group,
        )


def _predicted(
    encoder: Encoder, head: LanguageModelHead, asked: _Prediction
) -> NDArray[np.float64]:
    """Return the log-probability of each predicted token, float64 [num_predicted]."""
    result = np.empty(len(asked.labels))
    borders = np.searchsorted(asked.readers, np.arange(len(asked.sequences) + 1))
    for indices, hidden, spans in encoder.batches(asked.sequences):
        first, last = borders[indices].tolist(), borders[indices + 1].tolist()
        picked = np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
        starts = np.repeat(spans[:, 0], np.subtract(last, first))
        states = hidden[torch.from_numpy(starts + asked.positions[picked]).to(hidden.device)]
        labels = torch.from_numpy(asked.labels[picked]).to(hidden.device)
        result[picked] = _label_log_probabilities(head, states, labels).double().cpu().numpy()
    return result


def _label_log_probabilities(head: LanguageModelHead, states: Tensor, labels: Tensor) -> Tensor:
    group = max(_LOGITS // head.weight.shape[0], 1)
    parts = []
    for part, wanted in zip(states.split(group), labels.split(group), strict=True):
        inputs = head.transformed(part.to(head.weight.dtype))
        logits = F.linear(inputs, head.weight, head.bias).float()
        if head.softcap is not None:
            logits = head.softcap * (logits / head.softcap).tanh()
        parts.append(-F.cross_entropy(logits, wanted, reduction="none"))
    return torch.cat(parts)


def encode_pairs(
    task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedPairs:
    """Tokenise minimal pairs once."""
    if protocol.reading is None:
        raise ConfigError("reading: set clm, mlm or mntp")
    splits = {split: task.splits[split] for split in SPLITS[1:] if split in task.splits}
    places: dict[bytes, int] = {}
    sentences: list[TokenIds] = []
    pairs, num_truncated = {}, {}
    for split, examples in splits.items():
        texts = [text for example in examples for text in (example.good, example.bad)]
        framed, num_truncated[split] = encode_texts(
            texts, tokenizer, max_seqlen=protocol.max_seqlen
        )
        for text, sentence in zip(texts, framed, strict=True):
            if len(sentence) == 2:  # BOS and EOS; its probability would be 1
                raise DataError(
                    f"{task.info.name}, {split}: the tokenizer finds no token in {text[:80]!r}; "
                    "remove this pair"
                )
        indices = [_place(sentence, places, sentences) for sentence in framed]
        pairs[split] = np.array(indices, dtype=np.int64).reshape(-1, 2)
    return EncodedPairs(
        info=task.info,
        num_truncated=num_truncated,
        sentences=sentences,
        pairs=pairs,
        ids={split: tuple(e.id for e in examples) for split, examples in splits.items()},
        groups={split: tuple(e.group for e in examples) for split, examples in splits.items()},
        reading=protocol.reading,
        tokenizer=tokenizer,
        hides_rest=protocol.hidden_tokens == "rest_of_word",
    )


def _place(sentence: TokenIds, places: dict[bytes, int], sentences: list[TokenIds]) -> int:
    """Return the index of a sentence, which is appended if it is new."""
    index = places.setdefault(sentence.tobytes(), len(sentences))
    if index == len(sentences):
        sentences.append(sentence)
    return index
