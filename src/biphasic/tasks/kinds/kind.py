"""Kinds of tasks in three parts: their examples, a learner of them, and facts about them.

Reference: docs/tasks.md for people's files, docs/formats.md for task folders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.facts import KindFacts
from biphasic.plugins import Plugin
from biphasic.rows import Row
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    SPLITS,
    FileSettings,
    HeadRecord,
    Task,
    TaskContent,
    TaskInfo,
    TaskSettings,
)

if TYPE_CHECKING:  # plans read kinds without torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from biphasic.data.packing import TokenIds
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.baselines import Baseline
    from biphasic.tasks.encoding import Encoder, FinetunedModel

# Setting of kinds that can be scored after fine-tuning on another task of the kind.
TRAINED_ON = "trained_on"
BY_LABEL = "by label"  # form of a prediction's column: a float for each label
# One prediction per example, its values by column, and whether the example was truncated.
Predictions = tuple[list[dict[str, Any]], list[bool]]
Sample = str | tuple[str, str]  # a text as the model reads it, or two that it reads as a pair
Column = NDArray[Any] | Sequence[str] | Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class SplitScores:
    """Scores of a model on one split."""

    metrics: dict[str, float]
    ids: tuple[str, ...]  # in split order
    scores: NDArray[np.float64]  # one per example, defined by the kind; higher is better
    columns: Mapping[str, Column] = field(default_factory=dict)  # enough to score any subset
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)


def wrong_scores(splits: object, facts: KindFacts) -> Iterator[str]:
    """Yield what is wrong with the scores of a model."""
    if not isinstance(splits, dict) or not all(isinstance(s, SplitScores) for s in splits.values()):
        yield "evaluate must return a dict of SplitScores"
        return
    if "test" not in splits:
        yield "evaluate does not score the test split"
    for split, scored in splits.items():
        if len(scored.ids) != len(scored.scores) or len(set(scored.ids)) != len(scored.ids):
            yield f"{split}: {len(scored.ids)} ids have {len(scored.scores)} scores, or ids repeat"
        if not np.all(np.isfinite([*scored.metrics.values(), *np.asarray(scored.scores).tolist()])):
            yield f"{split}: a score is not finite"
        if missing := [key for key in facts.metric_keys if key not in scored.metrics]:
            yield f"{split}: no metric '{missing[0]}', which facts names"


@dataclass(frozen=True)
class Facts(KindFacts):
    """Facts of a kind for reports, plans, exports and cards."""

    unit: str = "examples"  # what a split has many of
    trained_unit: str = "examples"  # what an epoch has many of
    texts_per_item: int = 1  # texts that a model reads for one of these
    has_windows: bool = False  # whether a training example may be several items
    paper_metric: str | None = None  # decides in the reference study, if not the first
    is_pooled: bool = False  # whether the head takes the mean of states, not each state
    is_cosine: bool = False  # whether scores are cosines of vectors of texts
    does: str = ""  # what a fine-tuned model does, in cards; `{number}` of labels
    output_note: str = ""  # sentence in cards about the meaning of outputs
    pipeline: str = "text-classification"  # the hub's tag of fine-tuned models
    hub_task: str | None = None  # the hub's name of the task in scores
    form: Any = None  # how transformers loads models that have a head; see `Form`
    problem_type: str | None = None  # setting of that class
    output_names: tuple[str, ...] = ("LABEL_0",)  # of heads without labels

    def __post_init__(self) -> None:
        """A head of pooled states classifies sequences."""
        if self.is_pooled and self.form is None:
            object.__setattr__(self, "form", "sequence-classification")

    def num_outputs(self, labels: Sequence[str]) -> int:
        """Return the width of the head of a model with these labels; 0 for none."""
        return len(labels or self.output_names) if self.form else 0


class Examples(ABC):
    """The examples of a kind: people's files of them, and those of a task folder.

    `RecordFiles` has an example in each row. A `DataError` names file and line of an unusable one.
    """

    settings: tuple[str, ...] = ()  # of task files, that only some kinds have
    needed: tuple[str, ...] = ()  # contents that a task needs beside its splits
    optional_files: tuple[str, ...] = ()  # that a task folder may have as well
    fields: tuple[str, ...] = ("text",)  # what a model reads of an example
    ready_field: str | None = None  # column that replaces these in a row that has it

    def check_columns(self, columns: Mapping[str, Any], kind: str) -> None:
        """Refuse columns that task files cannot rename, with a ValueError."""
        for name in columns:
            raise ValueError(f"columns.{name}: a task of kind {kind} has no such column")

    def templates(self, description: TaskSettings) -> dict[str, str]:
        """Return templates that are hashed beside the files: those that are not the kind's own."""
        return {}

    def example(self, row: Row, record: HeadRecord) -> Any:
        """Return the example to predict that a row holds, from `fields`."""
        raise NotImplementedError

    @abstractmethod
    def file_names(self, splits: Sequence[str]) -> list[str]:
        """Return the files that a task folder needs."""

    @abstractmethod
    def read(
        self, folder: Path, description: TaskSettings, info: TaskInfo, files: Sequence[str]
    ) -> Task:
        """Read the examples of a task folder."""

    @abstractmethod
    def inputs(self, task: Any, split: str) -> Iterator[Sample]:
        """Yield what a model reads of each example of a split."""

    def sample(self, task: Any, *, most: int) -> list[Sample]:
        """Return a few inputs on which exports are checked."""
        return [*islice(self.inputs(task, "test"), most)]

    @abstractmethod
    def find_files(self, folder: Path) -> dict[str, Path]:
        """Return the files of a folder with the usual names, by split or content."""

    @abstractmethod
    def usual_names(self, content: str) -> str:
        """Describe the usual file names of a content, for an error message."""

    def check_file(self, path: Path, content: str, kind: str) -> None:
        """Check the name of a file."""

    @abstractmethod
    def read_files(
        self, file: FileSettings, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        """Read people's files; return their content, and the number of examples by split."""


class Learner(ABC):
    """A task as token sequences, with its loss, its scores, and a model's predictions."""

    predicted: ClassVar[Mapping[str, Any]] = {}
    """Columns of predictions, if fine-tuned models predict. Forms are a type, `[type]` for a list,
    types by field, or `BY_LABEL`."""
    limited: ClassVar[str] = ""  # the field that `limit` is about; empty: all of an example
    num_outputs: int = 0  # width of the linear head; 0 for none
    num_train: int = 0  # length of a training epoch; 0 if the task is not trained on
    trained_sequences: Sequence[TokenIds] = ()  # those used in training
    states_read: int = 1  # states of the encoder that a probe reads side by side for an example

    def __init__(self, task: Any, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> None:
        """Tokenise a task once, for every run on it."""
        self.task, self.info, self.tokenizer, self.protocol = task, task.info, tokenizer, protocol
        self.pad_id, self.labels = tokenizer.pad_id, getattr(task, "labels", ())
        # Truncated inputs by split; `SPLIT_lost_WHAT` of lost parts.
        self.num_truncated: dict[str, int] = {}
        self.encode(task)

    @abstractmethod
    def encode(self, task: Any) -> None:
        """Tokenise a task; set `num_train`, `num_outputs` and what the other methods read."""

    def framed(self, texts: Sequence[str], of: str) -> list[TokenIds]:
        """Return the sequence of each text, and count those that are cut as `num_truncated[of]`."""
        from biphasic.tasks.encoding import encode_texts

        longest = self.protocol.max_seqlen
        sequences, cut = encode_texts(texts, self.tokenizer, max_seqlen=longest)
        self.num_truncated[of] = self.num_truncated.get(of, 0) + sum(cut)
        return sequences

    @property
    def scored(self) -> Iterator[str]:
        """The splits that are scored."""
        return (split for split in SPLITS[1:] if self.task.num_examples(split))

    @property
    def example_of_item(self) -> NDArray[np.int64]:
        """The training example of each item of an epoch, ascending; `train_examples` draws them."""
        return np.arange(self.num_train)

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean loss over some training items, a scalar; for kinds that are trained."""
        raise NotImplementedError

    @abstractmethod
    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score the splits that have answers, at least `test`.

        Raises:
            TrainingError: An output is not finite.
        """

    @classmethod
    def score(cls, task: Any, split: str, predicted: Any) -> SplitScores:
        """Score what a model or a baseline predicts for the examples of a split."""
        raise NotImplementedError

    @classmethod
    def is_probed(cls) -> bool:
        """Return whether a linear model can be fitted on frozen states."""
        return cls.frozen is not Learner.frozen

    def frozen(
        self, encoder: Encoder, split: str, chosen: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Return what a linear head reads of a split, or of its `chosen` examples.

        The shape is [num_targets, num_layers, states_read * hidden_size].
        """
        raise NotImplementedError

    def targets(self, split: str, chosen: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return class numbers (-1 without an answer), numbers, or a truth value per label."""
        raise NotImplementedError

    def score_outputs(self, split: str, outputs: NDArray[Any]) -> SplitScores:
        """Score the head's outputs on what `frozen` returns for a split; for probed kinds."""
        raise NotImplementedError

    @classmethod
    def check_protocol(cls, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> None:
        """Raise a ConfigError before any work if tasks cannot be encoded."""

    @classmethod
    def protocol_for(cls, protocol: FinetuneProtocol, model: Path) -> FinetuneProtocol:
        """Return the protocol with settings that the model in a folder decides."""
        return protocol

    @classmethod
    def load(cls, model: Path, protocol: FinetuneProtocol) -> PreTrainedModel:
        """Load the model in a folder, in fp32, on the CPU."""
        from biphasic.model.loading.build import load_encoder

        return load_encoder(model, batching=protocol.batching)

    @classmethod
    def head_fields(
        cls, task: Any, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        """Return the fields of `head.json` that only some kinds have."""
        return {"labels": task.labels}

    @classmethod
    def limit(cls, protocol: FinetuneProtocol) -> int | None:
        """Return the most tokens that `predict` reads of an example; None if it reads windows."""
        return protocol.max_seqlen

    @classmethod
    def is_cut(cls, finetuned: FinetunedModel, examples: Sequence[Any]) -> list[bool]:
        """Return which examples are longer; only `predict` says it of kinds without this."""
        return [False] * len(examples)

    @classmethod
    def predict(cls, finetuned: FinetunedModel, examples: Sequence[Any]) -> Predictions:
        """Predict, with the computation that scored the model."""
        raise NotImplementedError


class TaskKind:
    """A kind of task: its examples, how a model learns and answers them, and facts about it.

    One object of each class is in the registry (`kinds/registry.py`); nothing else knows a kind by
    its name. A class must be importable without torch: methods that compute import it.
    """

    plugin: Plugin | None = None  # where it comes from; None for ours. biphasic sets it
    name: ClassVar[str] = ""  # in files and on the command line; plugins need none
    examples: ClassVar[Examples]
    learner: ClassVar[type[Learner]]
    facts: ClassVar[Facts]
    # Floors and references by name, `floor:NAME` or `reference:NAME`.
    baselines: ClassVar[Mapping[str, Baseline]] = {}
    # Kind whose folders and published datasets this kind scores too, without training and prompts.
    derived_from: ClassVar[str | None] = None

    def splits(self, *, trained_on: str | None) -> tuple[str, ...]:
        """Return the splits that a task must have."""
        if not self.facts.is_trained:
            return SPLITS[2:]  # nothing is selected on validation either
        return SPLITS if trained_on is None else SPLITS[1:]
