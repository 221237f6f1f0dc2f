"""Fine-tuning: one model, one task, one learning rate, one seed, to scores per example."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from biphasic.data.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError, TrainingError
from biphasic.seeds import derive_seed, permutation, stream
from biphasic.tasks.classification import encode_classification
from biphasic.tasks.encoding import EncodedTask, Encoder, SplitScores, new_head
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.qa import encode_questions
from biphasic.tasks.records import (
    ClassificationTask,
    QuestionTask,
    TaggingTask,
    Task,
    TaskInfo,
)
from biphasic.tasks.retrieval import encode_retrieval
from biphasic.tasks.tagging import encode_tagging
from biphasic.training.lr import learning_rate
from biphasic.training.memory import release_excess
from biphasic.training.optimizer import MasterWeights, Optimizer, Precision, set_precision

Status = Literal["finished", "diverged"]


@dataclass(frozen=True, slots=True)
class FinetuneRun:
    """All that determines a fine-tuning, beside the model it begins with."""

    task: EncodedTask
    learning_rate: float
    seed: int
    protocol: FinetuneProtocol


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    """What came of a run; `scores` by split, and none where it diverged."""

    task: TaskInfo
    learning_rate: float
    seed: int
    status: Status
    steps: int
    scores: dict[str, SplitScores] | None
    seconds: float


Progress = Callable[[FinetuneRun, int, int, float], None]
"""Called after each step with the run, the steps taken, the steps in all and the loss."""


def encode_task(task: Task, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> EncodedTask:
    """Tokenise a task once, for every run on it."""
    match task:
        case ClassificationTask():
            return encode_classification(task, tokenizer, protocol=protocol)
        case TaggingTask():
            return encode_tagging(task, tokenizer, protocol=protocol)
        case QuestionTask():
            return encode_questions(task, tokenizer, protocol=protocol)
        case _:
            return encode_retrieval(task, tokenizer, protocol=protocol)


class Finetuner:
    """One loaded model, fine-tuned again and again from the weights it was loaded with.

    The weights are put back after every run, so a run's result does not depend on those before it.
    """

    def __init__(self, model: PreTrainedModel, *, precision: Precision) -> None:
        """Take a model over: with `bf16` it computes with rounded copies from then on.

        Raises:
            ModelError: The model's weights are not in fp32.
        """
        if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
            raise ModelError("fine-tuning begins from weights in fp32; load the model anew")
        self.precision: Precision = precision
        self._model = model
        self._body = set_precision(model, precision)
        self._initial = {
            name: master.detach().clone() for name, master in self._body.masters.items()
        }

    def run(self, run: FinetuneRun, *, progress: Progress | None = None) -> FinetuneResult:
        """Fine-tune by the protocol and score the last step.

        A loss, gradient or state that is not finite ends the run as diverged; that is a result
        too.

        Raises:
            ConfigError: The run wants another precision.
        """
        if run.protocol.precision != self.precision:
            raise ConfigError(
                f"precision: the run wants {run.protocol.precision}, but the model was prepared "
                f"for {self.precision}; group runs by precision"
            )
        started = time.perf_counter()
        try:
            with _seeded(run.seed):
                status, steps, scores = self._train_and_score(run, progress)
        finally:
            self._put_weights_back()
        return FinetuneResult(
            task=run.task.info,
            learning_rate=run.learning_rate,
            seed=run.seed,
            status=status,
            steps=steps,
            scores=scores,
            seconds=time.perf_counter() - started,
        )

    def _train_and_score(
        self, run: FinetuneRun, progress: Progress | None
    ) -> tuple[Status, int, dict[str, SplitScores] | None]:
        generator = torch.Generator().manual_seed(derive_seed("finetune-head", run.seed))
        hidden_size = self._model.config.hidden_size
        head = new_head(hidden_size, run.task.num_outputs, generator=generator)
        head.to(self._model.device)
        added = {f"head.{name}": parameter for name, parameter in head.named_parameters()}
        weights = MasterWeights({**self._body.working, **added}, {**self._body.masters, **added})
        encoder = Encoder(self._model, pad_id=run.task.pad_id)
        steps, is_finite = _train(encoder, head, weights, run, progress)
        scores = _score(encoder, head, run.task) if is_finite else None
        return ("diverged" if scores is None else "finished"), steps, scores

    @torch.no_grad()
    def _put_weights_back(self) -> None:
        for name, master in self._body.masters.items():
            master.copy_(self._initial[name])
            master.grad = self._body.working[name].grad = None
        self._body.publish()


def finetune_group(
    model: PreTrainedModel, runs: Sequence[FinetuneRun], *, progress: Progress | None = None
) -> Iterator[FinetuneResult]:
    """Fine-tune a model once for each run, all from the weights it has now; see `Finetuner`."""
    if runs:
        finetuner = Finetuner(model, precision=runs[0].protocol.precision)
        for run in runs:
            yield finetuner.run(run, progress=progress)


def batch_indices(
    step: int, *, num_train: int, batch_size: int, finetune_seed: int
) -> NDArray[np.int64]:
    """Return the training examples of a step: a pure function of its arguments.

    Every example comes once in an epoch; an epoch's last batch may be smaller.
    """
    epoch, batch = divmod(step, -(-num_train // batch_size))
    order = _epoch_order(num_train, finetune_seed, epoch)
    return order[batch * batch_size : (batch + 1) * batch_size]


@lru_cache(maxsize=2)
def _epoch_order(num_train: int, finetune_seed: int, epoch: int) -> NDArray[np.int64]:
    return permutation(stream("finetune-order", finetune_seed, epoch), num_train)


def _train(
    encoder: Encoder,
    head: nn.Module,
    weights: MasterWeights,
    run: FinetuneRun,
    progress: Progress | None,
) -> tuple[int, bool]:
    """Take the steps; return how many were taken, and whether all was finite."""
    optimizer = _new_optimizer(weights, run.protocol)
    num_steps = run.protocol.num_steps(run.task.num_train)
    schedule = run.protocol.schedule(run.learning_rate, num_steps=num_steps)
    encoder.model.train()
    for step in range(num_steps):
        indices = batch_indices(
            step,
            num_train=run.task.num_train,
            batch_size=run.protocol.batch_size,
            finetune_seed=run.seed,
        )
        loss = run.task.loss(encoder, head, indices)
        loss.backward()
        weights.gather_gradients()
        try:
            optimizer.step(learning_rate(schedule, step, total_steps=num_steps))
        except TrainingError:  # a gradient that is not finite
            return step, False
        if not torch.isfinite(loss):
            return step + 1, False
        release_excess()
        if progress is not None:
            progress(run, step + 1, num_steps, loss.item())
    return num_steps, True


def _new_optimizer(weights: MasterWeights, protocol: FinetuneProtocol) -> Optimizer:
    return Optimizer(
        weights,
        beta1=protocol.adam_beta1,
        beta2=protocol.adam_beta2,
        epsilon=protocol.adam_epsilon,
        weight_decay=protocol.weight_decay,
        clip_norm=protocol.max_gradient_norm,
    )


def _score(encoder: Encoder, head: nn.Module, task: EncodedTask) -> dict[str, SplitScores] | None:
    encoder.model.eval()
    try:
        with torch.inference_mode():
            return task.evaluate(encoder, head)
    except TrainingError:
        return None


@contextmanager
def _seeded(finetune_seed: int) -> Iterator[None]:
    """Seed what draws from torch's own generator (dropout), and leave the generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("finetune-dropout", finetune_seed))
        yield
