"""The interface of kinds of tasks; each kind is implemented in its own file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.facts import KindFacts
from biphasic.plugins import Plugin
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, Task, TaskInfo

if TYPE_CHECKING:  # plans read kinds without torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from biphasic.data.packing import TokenIds
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.rows import Row
    from biphasic.tasks.baselines import Baseline
    from biphasic.tasks.encoding import Encoder
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
    from biphasic.tasks.folder import TaskDescription
    from biphasic.tasks.rows.content import TaskContent
    from biphasic.tasks.task_file import TaskFile

# Setting of kinds that can be scored after fine-tuning on another task of the kind.
TRAINED_ON = "trained_on"
BY_LABEL = "by label"  # form of a prediction's column: a float for each label
# One prediction per example, its values by column, and the number of truncated examples.
Predictions = tuple[list[dict[str, Any]], int]
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
    for split, found in splits.items():
        if len(found.ids) != len(found.scores) or len(set(found.ids)) != len(found.ids):
            yield f"{split}: {len(found.ids)} ids have {len(found.scores)} scores, or ids repeat"
        if not np.all(np.isfinite([*found.metrics.values(), *np.asarray(found.scores).tolist()])):
            yield f"{split}: a score is not finite"
        if missing := [key for key in facts.metric_keys if key not in found.metrics]:
            yield f"{split}: no metric '{missing[0]}', which facts names"


class EncodedTask(ABC):
    """A task as token sequences, with its loss and its scores."""

    info: TaskInfo
    pad_id: int  # token that fills rows
    num_truncated: dict[str, int]  # truncated inputs by split; `SPLIT_lost_WHAT` of lost parts
    num_outputs: int = 0  # width of the linear head; 0 for none
    num_train: int = 0  # length of a training epoch; 0 if the task is not trained on
    trained_sequences: Sequence[TokenIds] = ()  # those used in training
    states_read: int = 1  # states of the encoder that a probe reads side by side for an example

    @property
    def example_of_item(self) -> NDArray[np.int64]:
        """The training example of each item of an epoch, ascending; `train_examples` draws them."""
        return np.arange(self.num_train)

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean loss over some training items, a scalar; for kinds that are trained."""
        raise NotImplementedError

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

    @abstractmethod
    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score the splits that have answers, at least `test`.

        Raises:
            TrainingError: An output is not finite.
        """


class TaskKind(ABC):
    """A kind of task: its files, its examples, how a model learns and answers them, its scores.

    One object of each class is in the registry (`kinds/registry.py`); nothing else knows a kind by
    its name. A class must be importable without torch: methods that compute import it.

    `ExampleKind` reads and writes splits of one example per line, and `TextKind` also encodes texts
    with one answer each. Start from them if they fit.
    """

    plugin: Plugin | None = None  # where it comes from; None for ours. biphasic sets it
    name: ClassVar[str] = ""  # in files and on the command line; plugins need none
    facts: ClassVar[KindFacts]  # what reports say: title, metrics, whether encoders are fine-tuned
    encoded: ClassVar[Callable[..., EncodedTask]]  # class; given task, tokenizer and `protocol`
    settings: ClassVar[tuple[str, ...]] = ()  # of task files, that only some kinds have
    needed: ClassVar[tuple[str, ...]] = ()  # contents that a task needs beside its splits
    optional_files: ClassVar[tuple[str, ...]] = ()  # that a task folder may have as well
    columns: ClassVar[Collection[str]] = ()  # of examples, that people may rename in task files
    optional_columns: ClassVar[Collection[str]] = ()  # those that a file may lack
    paired_columns: ClassVar[Collection[str]] = ()  # those that may be two: a pair of texts
    numbered_columns: ClassVar[Collection[str]] = ()  # those that may be numbers, without a header
    # Kind whose folders and published datasets this kind scores too, without training and prompts.
    derived_from: ClassVar[str | None] = None
    unit: ClassVar[str] = "examples"  # what a split has many of
    trained_unit: ClassVar[str] = "examples"  # what an epoch has many of
    has_windows: ClassVar[bool] = False  # whether a training example may be several items
    texts_per_item: ClassVar[int] = 1  # texts that a model reads for one of these
    paper_metric: ClassVar[str | None] = None  # decides in the reference study, if not the first
    input_fields: ClassVar[tuple[str, ...]] = ("text",)  # what a model reads of an example
    ready_field: ClassVar[str | None] = None  # column that replaces these in a row that has it
    # Columns of predictions, if fine-tuned models predict; forms are a type, `[type]` for a list,
    # types by field, or `BY_LABEL`.
    predicted: ClassVar[Mapping[str, Any]] = {}
    is_pooled: ClassVar[bool] = False  # whether the head takes the mean of states, not each state
    is_probed: ClassVar[bool] = False  # whether a linear model can be fitted on frozen states
    is_cosine: ClassVar[bool] = False  # whether scores are cosines of vectors of texts
    does: ClassVar[str] = ""  # what a fine-tuned model does, in cards; `{number}` of labels
    pipeline: ClassVar[str] = "text-classification"  # the hub's tag of fine-tuned models
    hub_task: ClassVar[str | None] = None  # the hub's name of the task in scores
    form: ClassVar[Any] = None  # how transformers loads models that have a head; see `Form`
    problem_type: ClassVar[str | None] = None  # setting of that class
    output_names: ClassVar[tuple[str, ...]] = ()  # of heads without labels
    # Floors and references by name, `floor:NAME` or `reference:NAME`.
    baselines: ClassVar[Mapping[str, Baseline]] = {}
    output_note: ClassVar[str] = ""  # sentence in cards about the meaning of outputs

    def splits(self, *, trained_on: str | None) -> tuple[str, ...]:
        """Return the splits that a task must have."""
        if not self.facts.is_trained:
            return SPLITS[2:]  # nothing is selected on validation either
        return SPLITS if trained_on is None else SPLITS[1:]

    @abstractmethod
    def file_names(self, *, trained_on: str | None) -> list[str]:
        """Return the files that a task folder needs."""

    @abstractmethod
    def read(
        self, folder: Path, description: TaskDescription, info: TaskInfo, files: Collection[str]
    ) -> Task:
        """Read the examples of a task folder.

        Raises:
            DataError: A record is unusable; the message names file and line.
        """

    def templates(self, description: TaskDescription) -> dict[str, str]:
        """Return templates that are hashed beside the files: those that are not the kind's own."""
        return {}

    @abstractmethod
    def inputs(self, task: Any, split: str) -> Iterator[Sample]:
        """Yield what a model reads of each example of a split."""

    def majority(self, task: Any) -> tuple[str, float] | None:
        """Return the most frequent label of the test split and its share; None without classes."""
        return None

    def score_predictions(self, task: Any, split: str, predicted: Any) -> SplitScores:
        """Score the predictions of a baseline as those of a model."""
        raise NotImplementedError

    def sample(self, task: Any, *, most: int) -> list[Sample]:
        """Return a few inputs on which exports are checked."""
        return [*islice(self.inputs(task, "test"), most)]

    @abstractmethod
    def find_files(self, folder: Path) -> dict[str, Path]:
        """Return the files of a folder with the usual names, by split or content.

        Raises:
            DataError: Several files match.
        """

    @abstractmethod
    def usual_names(self, content: str) -> str:
        """Describe the usual file names of a content, for an error message."""

    def check_file(self, path: Path, content: str) -> None:
        """Check the name of a file.

        Raises:
            DataError: It has another format.
        """

    @abstractmethod
    def read_files(
        self, file: TaskFile, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        """Read the user's files; return their content, and the number of examples by split.

        Raises:
            DataError: The data are unusable; the message names file and line.
        """

    def check_protocol(self, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> None:
        """Check before any work that tasks can be encoded.

        Raises:
            ConfigError: `max_seqlen` is too small.
        """

    def protocol_for(self, protocol: FinetuneProtocol, model: Path) -> FinetuneProtocol:
        """Return the protocol with settings that the model in a folder decides."""
        return protocol

    def load(self, model: Path, protocol: FinetuneProtocol) -> PreTrainedModel:
        """Load the model in a folder, in fp32, on the CPU."""
        from biphasic.model.loading.build import load_encoder

        return load_encoder(model, batching=protocol.batching)

    def encode(
        self, task: Any, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> EncodedTask:
        """Tokenise a task once, for every run on it."""
        return self.encoded(task, tokenizer, protocol=protocol)

    def num_outputs(self, labels: Sequence[str]) -> int:
        """Return the width of the head of a model with these labels; 0 for none."""
        return max(len(labels or self.output_names), 1) if self.form else 0

    def head_fields(
        self, task: Any, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        """Return the fields of `head.json` that only some kinds have."""
        return {"labels": task.labels}

    def example(self, row: Row, record: HeadRecord) -> Any:
        """Return the example to predict that a row holds, from `input_fields`.

        Raises:
            DataError: The row cannot be used.
        """
        raise NotImplementedError

    def predict(self, finetuned: FinetunedModel, examples: Sequence[Any]) -> Predictions:
        """Predict, with the computation that scored the model."""
        raise NotImplementedError
