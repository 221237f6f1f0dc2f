"""Minimal pairs: two sentences, of which a language model should prefer the acceptable one.

From left to right, a sentence's score is its log-likelihood. With masks it is the
pseudo-log-likelihood: each token is hidden in a copy of its own and predicted from the others.
Special tokens frame a sentence as in pretraining and are never predicted.

References: Warstadt et al. 2020 (BLiMP), arXiv:1912.00582, section 4; Salazar et al. 2020,
arXiv:1910.14659, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from biphasic.errors import ConfigError, DataError
from biphasic.facts import metric_facts
from biphasic.files import read_json, read_json_object
from biphasic.records import LedgerEntry, StateRecord, objectives_of, parse_record
from biphasic.seeds import permutation, stream
from biphasic.tasks.baselines import Baseline, chance
from biphasic.tasks.kinds.examples import FIELDS, Example, RecordFiles, Text, not_empty
from biphasic.tasks.kinds.kind import Facts, Learner, SplitScores, TaskKind
from biphasic.tasks.protocol import FinetuneProtocol, Reading
from biphasic.tasks.records import ExampleTask, FileSettings, TaskContent

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from biphasic.data.packing import TokenIds
    from biphasic.model.head import LanguageModelHead
    from biphasic.tasks.encoding import Encoder

_PER_PARADIGM = "pairs_per_paradigm"  # setting of kinds whose examples are sampled in groups
OBJECTIVE = "biphasic_objective"  # in config.json of exports and merges, which have no record
_READINGS: tuple[Literal["mlm"], Literal["mntp"], Literal["clm"]] = ("mlm", "mntp", "clm")

# Sentences whose masked copies are in memory together, and logits of one product: 64 MiB.
_SENTENCES = 1024
_LOGITS = 1 << 24


@dataclass(frozen=True, slots=True, config=FIELDS)
class MinimalPair(Example):
    """An acceptable sentence and one that is not; `group` is its paradigm, "" for none.

    Equal sentences are a tie and not an error: BLiMP, which names the columns, has such pairs.
    """

    settings: ClassVar[tuple[str, ...]] = (_PER_PARADIGM,)
    inputs: ClassVar[tuple[str, ...]] = ("good", "bad")
    good: Annotated[Text, Field(validation_alias="sentence_good")]
    bad: Annotated[Text, Field(validation_alias="sentence_bad")]
    group: Annotated[Text, Field(validation_alias="UID")] = ""
    _not_empty = field_validator("good", "bad")(not_empty)


class _PairFiles(RecordFiles):
    def read_files(
        self, file: FileSettings, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        content, counts = super().read_files(file, files, where=where)
        if file.pairs_per_paradigm is None:
            return content, counts
        splits = {
            split: list(_sample(list(rows), file.pairs_per_paradigm, seed=file.seed))
            for split, rows in content.splits.items()
        }
        return replace(content, splits=splits), {split: len(r) for split, r in splits.items()}


class PairLearner(Learner):
    """Minimal pairs as token sequences; nothing is trained."""

    def encode(self, task: ExampleTask) -> None:
        if self.protocol.reading is None:
            raise ConfigError("reading: set clm, mlm or mntp")
        self.reading = self.protocol.reading
        self.pairs = {}
        places: dict[bytes, int] = {}
        self.sentences: list[TokenIds] = []  # different ones: equal ones are read once and tie
        for split in self.scored:
            framed = self._sentences(split)
            for sentence in framed:
                if places.setdefault(sentence.tobytes(), len(places)) == len(self.sentences):
                    self.sentences.append(sentence)
            indices = [places[sentence.tobytes()] for sentence in framed]
            self.pairs[split] = np.array(indices, dtype=np.int64).reshape(-1, 2)

    def _sentences(self, split: str) -> list[TokenIds]:
        """Return the sentences of a split between BOS and EOS, a pair's acceptable one first."""
        texts = [
            text for example in self.task.splits[split] for text in (example.good, example.bad)
        ]
        framed = self.framed(texts, split)
        for text, sentence in zip(texts, framed, strict=True):
            if len(sentence) == 2:  # BOS and EOS; its probability would be 1
                raise DataError(
                    f"{self.info.name}, {split}: the tokenizer finds no token in {text[:80]!r}; "
                    "remove this pair"
                )
        return framed

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score each split; a pair's score is the difference of its log-probabilities, in nats."""
        totals = self.log_probabilities(encoder)
        return {
            split: self.score(self.task, split, totals[pairs], self.reading)
            for split, pairs in self.pairs.items()
        }

    def log_probabilities(self, encoder: Encoder) -> NDArray[np.float64]:
        """Return the log-probability of each sentence in nats, float64 [num_sentences]."""
        from biphasic.model.head import language_model_head

        head = language_model_head(encoder.model)
        totals = np.zeros(len(self.sentences))
        # Nearly equal lengths share batches, so rows hold little padding.
        order = np.argsort([-len(sentence) for sentence in self.sentences], kind="stable")
        for start in range(0, len(order), _SENTENCES):
            predictions = self._predictions(order[start : start + _SENTENCES])
            predicted = _predicted(encoder, head, predictions)
            totals += np.bincount(predictions.owners, weights=predicted, minlength=len(totals))
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
        # MNTP predicts a masked token from the state before it, as its training did.
        positions = places if self.reading == "mlm" else places - 1
        return _Prediction(copies, owners, np.arange(len(copies)), positions, labels)

    def _masked(self, sentence: TokenIds) -> NDArray[np.int64]:
        """Return a copy for each token in which it is hidden, int64 [num_tokens, length]."""
        count = len(sentence) - 2
        is_hidden = np.arange(len(sentence)) == np.arange(1, count + 1)[:, None]
        return np.where(is_hidden, self.tokenizer.mask_id, sentence)

    @classmethod
    def score(cls, task: ExampleTask, split: str, predicted: Any, reading: str = "") -> SplitScores:
        """Score pairs by the log-probabilities of both sentences, [num_pairs, 2]."""
        good, bad = predicted.T
        # A tie is a coin flip: models that tie often must not gain by the order of the two.
        correct = np.where(good == bad, 0.5, good > bad)
        paradigms = tuple(example.group for example in task.splits[split])
        groups = np.array(paradigms)
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
            ids=task.ids(split),
            scores=good - bad,
            columns={
                "correct": correct,
                "good": good,
                "bad": bad,
                "paradigm": paradigms,
                "reading": (reading,) * len(correct),
            },
            by_type=by_group,
        )

    @classmethod
    def protocol_for(cls, protocol: FinetuneProtocol, model: Path) -> FinetuneProtocol:
        if protocol.reading is None:
            reading: Reading = "clm" if protocol.is_causal else usual_reading(model)
            protocol = protocol.model_copy(update={"reading": reading})
        # A probability by CLM must not see what it predicts.
        attention = "causal" if protocol.reading == "clm" else "bidirectional"
        return protocol.model_copy(update={"attention": attention})

    @classmethod
    def load(cls, model: Path, protocol: FinetuneProtocol) -> PreTrainedModel:
        """Load a model with its language-model head."""
        from biphasic.model.loading.build import load_pretrained

        if protocol.batching == "padded":
            raise ConfigError("batching: minimal pairs are read in packed rows only")
        return load_pretrained(model)


class MinimalPairs(TaskKind):
    """Pairs of sentences; right if the acceptable one has the higher probability."""

    name = "mp"
    examples = _PairFiles(MinimalPair)
    learner = PairLearner
    facts = Facts(
        "minimal pairs",
        (metric_facts("accuracy"),),
        is_trained=False,
        unit="pairs",
        texts_per_item=2,
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {"floor:chance": chance}


def usual_reading(model: Path) -> Reading:
    """Return the last objective of a model, or what its family is made for."""
    if reading := last_reading(model):
        return reading
    from biphasic.model.loading.configurations import is_decoder, is_open
    from biphasic.model.loading.reading import read_config

    config = read_config(model)
    if is_open(config):
        raise ConfigError(
            f"{model.name}: a decoder made bidirectional, which does not say by which objective; "
            "set reading to mlm or mntp in the protocol"
        )
    return "clm" if is_decoder(config) else "mlm"


def last_reading(model: Path) -> Reading | None:
    """Return the last objective of a state, or of what an export or a merge was made from."""
    path = model / "state.json"
    if path.is_file():
        state = parse_record(StateRecord, read_json(path), where=str(path))
        if reading := reading_of(state.ledger, state.recipe):
            return reading
    stated = read_json_object(model / "config.json").get(OBJECTIVE)
    return stated if stated in _READINGS else None


def reading_of(ledger: Sequence[LedgerEntry], recipe: Mapping[str, Any]) -> Reading | None:
    """Return the last objective of a training that gives sentences a probability, if any."""
    # If objectives alternated or were mixed, it is the one with masks.
    if not ledger:
        return None
    trained_by = {ledger[-1].objective, *objectives_of(recipe, ledger[-1])}
    return next((reading for reading in _READINGS if reading in trained_by), None)


def _sample(
    rows: Sequence[Mapping[str, Any]], most: int, *, seed: int
) -> Iterator[Mapping[str, Any]]:
    """Yield at most some rows of each paradigm; the draw of one does not depend on others."""
    paradigms: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        paradigms.setdefault(row.get("UID", ""), []).append(index)
    pairs = [
        indices[place]
        for name, indices in paradigms.items()
        for place in permutation(stream(f"pairs-{name}", seed), len(indices))[:most]
    ]
    yield from (rows[index] for index in np.sort(pairs))


@plain_dataclass(frozen=True, slots=True)
class _Prediction:
    """Sequences and the tokens to predict in them."""

    sequences: list[TokenIds]
    owners: NDArray[np.int64]  # sentence of each predicted token, [num_predicted]
    readers: NDArray[np.int64]  # sequence in which it is predicted
    positions: NDArray[np.int64]  # position in the sequence whose state predicts it
    labels: NDArray[np.int64]


def _predicted(
    encoder: Encoder, head: LanguageModelHead, asked: _Prediction
) -> NDArray[np.float64]:
    """Return the log-probability of each predicted token, float64 [num_predicted]."""
    import torch
    from torch.nn.functional import cross_entropy

    result = np.empty(len(asked.labels))
    borders = np.searchsorted(asked.readers, np.arange(len(asked.sequences) + 1))
    for indices, hidden, spans in encoder.batches(asked.sequences):
        first, last = borders[indices].tolist(), borders[indices + 1].tolist()
        picked = np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
        starts = np.repeat(spans[:, 0], np.subtract(last, first))
        states = hidden[torch.from_numpy(starts + asked.positions[picked]).to(hidden.device)]
        labels = torch.from_numpy(asked.labels[picked]).to(hidden.device)
        group = max(_LOGITS // head.weight.shape[0], 1)
        groups = zip(states.split(group), labels.split(group), strict=True)
        losses = [
            cross_entropy(head.logits(part), targets, reduction="none") for part, targets in groups
        ]
        # In fp64: sums over sentences that differ by a word must not become equal by rounding.
        result[picked] = -torch.cat(losses).double().cpu().numpy()
    return result
