"""Language models on texts: words for masks, and the better sentence of a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from biphasic.amounts import points
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError, ModelError
from biphasic.model.compute.device import on_compute_device
from biphasic.model.contract import check_contract, model_limits
from biphasic.model.head import language_model_head
from biphasic.model.loading.build import load_pretrained
from biphasic.records import LedgerEntry
from biphasic.rows import text_fault
from biphasic.shown import Shown
from biphasic.tasks.encoding import Encoder
from biphasic.tasks.inputs import AnyInput
from biphasic.tasks.kinds.kind import SplitScores
from biphasic.tasks.kinds.minimal_pairs import MinimalPair, MinimalPairs, PairLearner, reading_of
from biphasic.tasks.protocol import FinetuneProtocol, Reading
from biphasic.tasks.records import ExampleTask, TaskInfo
from biphasic.training.recipe import Recipe
from biphasic.training.step.optimizer import set_precision


@dataclass(frozen=True)
class LanguageModel:
    """A loaded model with its language-model head, and how it gives texts a probability."""

    folder: Path
    tokenizer: TextTokenizer
    encoder: Encoder
    protocol: FinetuneProtocol

    @torch.inference_mode()
    def candidates(self, text: str, *, most: int) -> list[list[tuple[str, float]]]:
        """Return the most probable tokens for each mask of a text, and their probabilities."""
        if self.protocol.reading == "clm":
            raise ModelError(
                f"{self.folder}: it was last trained to predict the next token, not masked ones; "
                "adapt it first, or give reading='mlm'"
            )
        if not 1 <= most <= self.tokenizer.vocab_size:
            raise ConfigError(f"top: {most}; give 1 to {self.tokenizer.vocab_size}")
        if fault := text_fault(text):
            raise DataError(f"text: {fault}")
        mask = self.tokenizer.decode([self.tokenizer.mask_id])
        parts = text.split(mask)
        if len(parts) < 2:
            raise DataError(f"no mask in {text[:80]!r}; write {mask} for a hidden token")
        # The hidden token has the space before it, as in training.
        first, *others = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
        encoded = [self.tokenizer.encode(first), *self.tokenizer.within_text.encode_many(others)]
        ids = [self.tokenizer.bos_id]
        places = []
        for part in encoded:
            ids += [*part, self.tokenizer.mask_id]
            places.append(len(ids) - 1)
        ids[-1] = self.tokenizer.eos_id
        if len(ids) > self.protocol.max_seqlen:
            raise DataError(
                f"{len(ids)} tokens; the model reads at most {self.protocol.max_seqlen}"
            )
        shift = int(self.protocol.reading == "mntp")
        states, _ = self.encoder.states([np.array(ids, dtype=np.int64)], row_multiple=1)
        states = states[[place - shift for place in places[:-1]]]
        chances = language_model_head(self.encoder.model).logits(states).softmax(-1)
        best = chances[:, : self.tokenizer.vocab_size].topk(most)
        return [
            [(self.tokenizer.decode([token]), chance) for token, chance in zip(*row, strict=True)]
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    @torch.inference_mode()
    def pair_scores(self, pairs: Sequence[MinimalPair]) -> SplitScores:
        """Score minimal pairs as `evaluate` does."""
        info = TaskInfo("pairs", MinimalPairs.name, "Minimal pairs", "accuracy", sha256="")
        task = ExampleTask(info, {"test": tuple(pairs)})
        encoded = PairLearner(task, self.tokenizer, protocol=self.protocol)
        return encoded.evaluate(self.encoder, nn.Identity())["test"]


def training_judge(
    pairs: Sequence[MinimalPair], tokenizer: TextTokenizer, recipe: Recipe
) -> Callable[[PreTrainedModel, Sequence[LedgerEntry]], float]:
    """Return a function of a model in training and its ledger: its accuracy on minimal pairs."""
    settings = recipe.model_dump(mode="json")

    def accuracy(model: PreTrainedModel, ledger: Sequence[LedgerEntry]) -> float:
        reading = reading_of(ledger, settings) or "mlm"
        protocol = FinetuneProtocol(reading=reading, max_seqlen=recipe.max_seqlen)
        encoder = Encoder(model, tokenizer.pad_id, causal=reading == "clm")
        scores = LanguageModel(Path(), tokenizer, encoder, protocol).pair_scores(pairs)
        return scores.metrics["accuracy"]

    return accuracy


def read_pairs(source: AnyInput) -> list[MinimalPair]:
    """Read minimal pairs, with BLiMP's names of columns."""
    pairs = [MinimalPair.of(row) for row in source.rows()]
    if not pairs:
        raise DataError(f"{source.path}: empty; there is nothing to score")
    return pairs


def load_language_model(folder: Path, *, reading: Reading | None, is_bf16: bool) -> LanguageModel:
    """Load a model with its head; `reading` is by default that of its last objective."""
    limits = model_limits(folder)
    protocol = FinetuneProtocol(reading=reading, max_seqlen=limits.longest_input)
    protocol = PairLearner.protocol_for(protocol, folder)
    model = on_compute_device(load_pretrained(folder))
    check_contract(model, causal=protocol.is_causal)
    set_precision(model, "bf16" if is_bf16 else "fp32")
    tokenizer = TextTokenizer.load(folder)
    encoder = Encoder(model.eval(), tokenizer.pad_id, causal=protocol.is_causal)
    return LanguageModel(folder, tokenizer, encoder, protocol)


@dataclass(frozen=True, repr=False)
class Fillings(Shown):
    """The result of `fill_mask`: candidates for each mask, the most probable first.

    Attributes:
        text: The text with its masks.
        candidates: For each mask, tokens and their probabilities.
    """

    text: str
    candidates: tuple[tuple[tuple[str, float], ...], ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each candidate."""
        return [
            {"mask": number, "token": token, "probability": probability}
            for number, options in enumerate(self.candidates)
            for token, probability in options
        ]

    def lines(self) -> Iterator[str]:
        """Return the text, and the candidates."""
        yield self.text
        for row in self.table():
            yield f"  {row['mask']}  {row['probability']:.4f}  {row['token'].strip()}"


@dataclass(frozen=True, repr=False)
class PairScores(Shown):
    """The result of `score`: log-probabilities of both sentences of each pair, in nats.

    Attributes:
        accuracy: Share of pairs whose acceptable sentence is the more probable one; ties count
            half.
        rows: `id`, `good`, `bad` (log-probabilities) and `correct` of each pair.
        reading: How the model gave sentences a probability.
    """

    accuracy: float
    rows: tuple[Mapping[str, Any], ...]
    reading: str

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each pair."""
        return self.rows

    def lines(self) -> Iterator[str]:
        """Return the accuracy."""
        yield f"accuracy {points(self.accuracy)} on {len(self.rows):,} pairs, by {self.reading}"
