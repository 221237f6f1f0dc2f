"""The rules of kinds of tasks, on a task's data and a small model."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.conformance.rules import Rule, check_rules
from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.errors import ConfigError
from biphasic.files import write_json
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.presets import PRESETS
from biphasic.plugins import classes_of, find_plugin, shown
from biphasic.tasks.encoding import Encoder, new_head
from biphasic.tasks.folder import load_task, read_description
from biphasic.tasks.kinds.kind import EncodedTask, SplitScores, TaskKind, wrong_scores
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import Task
from biphasic.tasks.source import prepare_task
from biphasic.training.state import save_tensors

_VOCAB_SIZE = 400
_PROTOCOL = FinetuneProtocol(
    max_seqlen=64, max_question_tokens=16, window_overlap=8, precision="fp32"
)
_FEW_TOKENS = 64
_TOLERANCE = 1e-4


class _SmallBatches(Encoder):
    """An encoder that reads few sequences at a time."""

    def batches(
        self, sequences: Sequence[TokenIds], *, batch_tokens: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Tensor, NDArray[np.int64]]]:
        """Yield states as an encoder does, of smaller batches."""
        del batch_tokens
        return super().batches(sequences, batch_tokens=_FEW_TOKENS)


@dataclass
class Case:
    """A task of a kind in a folder, and a small model that has its tokens."""

    folder: Path
    work: Path

    @cached_property
    def task(self) -> Task:
        """The task, as it was read first."""
        return load_task(self.folder)

    @property
    def kind(self) -> TaskKind:
        """Its kind."""
        return KINDS[self.task.info.kind]

    @cached_property
    def model(self) -> Path:
        """The folder of a model with random weights."""
        texts = [
            part if isinstance(part, str) else " ".join(part)
            for part in self.kind.inputs(self.task, "test")
        ]
        tokenizer = train_tokenizer(texts, vocab_size=_VOCAB_SIZE)
        config = architecture_config(
            PRESETS["pico"],
            vocab_size=tokenizer.vocab_size,
            max_seqlen=_PROTOCOL.max_seqlen,
            special_ids=tokenizer.special_ids,
        )
        weights = dict(new_model(config, init_seed=0).named_parameters())
        self.work.mkdir()
        write_json(self.work / "config.json", config.to_dict())
        save_tensors(weights, self.work / "model.safetensors", {"format": "pt"})
        tokenizer.save_with_model(self.work)
        return self.work

    def encoded(self) -> EncodedTask:
        """Encode the task anew."""
        tokenizer = TextTokenizer.load(self.model)
        return self.kind.encode(load_task(self.folder), tokenizer, protocol=_PROTOCOL)

    @cached_property
    def encoder(self) -> Encoder:
        """The model, ready to score."""
        model = self.kind.load(self.model, _PROTOCOL).eval()
        return Encoder(model, TextTokenizer.load(self.model).pad_id)

    def head(self, task: EncodedTask) -> nn.Module:
        """Return a head with the same weights on each call."""
        width = self.encoder.model.config.hidden_size
        generator = torch.Generator().manual_seed(0)
        return new_head(width, task.num_outputs, generator=generator)

    def scores(self, encoder: Encoder | None = None) -> dict[str, SplitScores]:
        """Score the splits by a task that is encoded anew."""
        task = self.encoded()
        with torch.inference_mode():
            return task.evaluate(encoder or self.encoder, self.head(task))


def check_kinds(named: str, data: Path) -> Iterator[str]:
    """Check the kinds of tasks of `FILE`, `FILE:CLASS` or an installed name, on a folder's data.

    Raises:
        ConfigError: One of them breaks a rule, which the message names, or there is none.
    """
    file, colon, name = named.rpartition(":")
    references = [named]
    if ".py" in named:
        file = file if colon else named
        names = [name] if colon else classes_of(file, TaskKind)
        references = [f"{file}:{each}" for each in names]
    if not references:
        raise ConfigError(f"{named}: no class of the base TaskKind")
    for reference in references:
        plugin = find_plugin("task_kinds", reference, TaskKind, ours=tuple(KINDS))
        check_kind(plugin.reference, data)
        yield f"{shown(plugin.reference)}: keeps all {len(RULES)} rules of task_kinds"


def check_kind(kind: str, data: Path) -> None:
    """Check that a kind of task keeps all rules, on data as people have them.

    Args:
        kind: Its name in task files.
        data: Folder with the files of a small task.

    Raises:
        ConfigError: It breaks a rule, which the message names.
        DataError: The data are no task of this kind.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_json(work / "task.yaml", {"kind": kind, "folder": str(data.resolve())})
        folder = prepare_task(str(work / "task.yaml"), store=work / "store", say=lambda _: None)
        check_rules(Case(folder, work / "model"), RULES, where=kind.partition("@")[0])


def _parse(case: Case) -> Iterator[str]:
    """Reading the files again gives the same task; every example has an input."""
    random.seed(1)
    if load_task(case.folder) != case.task:
        yield "a second reading gives other examples"
    for split in case.kind.splits(trained_on=None):
        if len([*case.kind.inputs(case.task, split)]) < case.task.num_examples(split):
            yield f"inputs leaves out examples of the {split} split"


def _encode(case: Case) -> Iterator[str]:
    """Encoding again gives the same sequences, none longer than `max_seqlen`."""
    first = case.encoded()
    random.seed(1)
    np.random.seed(1)
    again = case.encoded()
    sizes = [(task.num_train, task.num_outputs, task.num_truncated) for task in (first, again)]
    pairs = zip(first.trained_sequences, again.trained_sequences, strict=False)
    if sizes[0] != sizes[1] or not all(np.array_equal(*pair) for pair in pairs):
        yield "a second encoding differs; draw no random numbers"
    if any(len(sequence) > _PROTOCOL.max_seqlen for sequence in first.trained_sequences):
        yield f"a sequence is longer than max_seqlen, {_PROTOCOL.max_seqlen} tokens"
    if case.kind.facts.is_trained and not first.num_train:
        yield "num_train is 0, but the kind is fine-tuned"
    if len(first.example_of_item) != first.num_train:
        length = len(first.example_of_item)
        yield f"example_of_item has {length} numbers for num_train={first.num_train} items"


def _loss(case: Case) -> Iterator[str]:
    """The loss of some training items is one finite number with a gradient, and pure."""
    task = case.encoded()
    if not case.kind.facts.is_trained:
        return
    head, indices = case.head(task), np.arange(min(4, task.num_train))
    first = task.loss(case.encoder, head, indices)
    if first.ndim or not bool(first.isfinite()) or not first.requires_grad:
        yield "loss must return one finite number that has a gradient"
    torch.manual_seed(1)
    if not torch.equal(task.loss(case.encoder, head, indices), first):
        yield "a second call gives another loss"


def _scores(case: Case) -> Iterator[str]:
    """Each example has one finite score, and the metrics are those of `facts`."""
    scores = case.scores()
    yield from wrong_scores(scores, case.kind.facts)
    for split, found in scores.items():
        if len(found.ids) != case.task.num_examples(split):
            yield f"{split}: {len(found.ids)} of {case.task.num_examples(split)} examples scored"


def _pure(case: Case) -> Iterator[str]:
    """The same model has the same scores, whatever was drawn before."""
    first = case.scores()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    yield from _differences(first, case.scores(), "a second evaluation", tolerance=0.0)


def _batches(case: Case) -> Iterator[str]:
    """Scores are the same however a split is divided into batches."""
    small = _SmallBatches(case.encoder.model, case.encoder.pad_id)
    smaller = case.scores(small)
    yield from _differences(case.scores(), smaller, "smaller batches", tolerance=_TOLERANCE)


def _determinants(case: Case) -> Iterator[str]:
    """A template that changes inputs changes the identity of the task."""
    if "template" not in case.kind.settings:
        return
    description = read_description(case.folder)
    fields = getattr(case.task, "fields", ())
    template = "changed: " + " ".join(f"{{{field}}}" for field in fields)
    write_json(
        case.folder / "task.json",
        {**description.model_dump(mode="json", exclude_defaults=True), "template": template},
    )
    changed = load_task(case.folder)
    has_other_inputs = [*case.kind.inputs(changed, "test")] != [
        *case.kind.inputs(case.task, "test")
    ]
    if has_other_inputs and changed.info.sha256 == case.task.info.sha256:
        yield "another template gives other inputs, but the same identity"


RULES: dict[str, Rule[Case]] = {
    "parse": _parse,
    "encode": _encode,
    "loss": _loss,
    "scores": _scores,
    "pure": _pure,
    "batches": _batches,
    "determinants": _determinants,
}
"""The rules by name, in the order of their checks; the last one changes the folder."""


def _differences(
    first: dict[str, SplitScores], second: dict[str, SplitScores], what: str, *, tolerance: float
) -> Iterator[str]:
    for split, one in first.items():
        other = second.get(split)
        if other is None or one.ids != other.ids:
            yield f"{what} scores other examples of {split}"
        elif not np.allclose(one.scores, other.scores, rtol=0, atol=tolerance):
            yield f"{what} gives other scores of {split}"
