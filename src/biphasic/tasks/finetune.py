"""Fine-tuning: one model, one task, one learning rate, one seed; its scores, and their files.

Zero-shot tasks use the same path with zero steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError, TrainingError
from biphasic.facts import facts_to_record
from biphasic.files import digest, write_json
from biphasic.model.compute.device import compute_device
from biphasic.model.compute.forward import batching_of
from biphasic.model.lora import add_lora, draw_lora, split_lora
from biphasic.model.shape import Lora
from biphasic.numerics import running_code
from biphasic.objectives.lr import learning_rate
from biphasic.plugins import short_name
from biphasic.records import ProbeRecord, ResultRecord
from biphasic.seeds import derive_seed, permutation, stream
from biphasic.store import complete_folder
from biphasic.tasks.encoding import Encoder, new_head, token_ids
from biphasic.tasks.kinds.kind import TRAINED_ON, Column, Learner, SplitScores, wrong_scores
from biphasic.tasks.kinds.registry import KINDS, kinds_with
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import Task
from biphasic.training.memory import release_excess
from biphasic.training.recipe import FinetunePrecision
from biphasic.training.step.optimizer import Optimizer, set_head_precision, set_precision
from biphasic.training.step.weights import MasterWeights, short_table

RESULT_FORMAT = "biphasic.finetune/1"


@dataclass(frozen=True, slots=True)
class FinetuneRun:
    """Everything that determines a fine-tuning besides the initial model."""

    task: Learner
    learning_rate: float  # the peak; meaningless for a zero-shot task, as is the seed
    seed: int  # of head, order and dropout
    protocol: FinetuneProtocol
    evaluations: tuple[Learner, ...] = ()  # tasks to score; by default `task`
    # Identities of the results on these tasks, and of the initial model; for runs of a store.
    ids: tuple[str, ...] = ()
    state: str = ""

    @property
    def scored(self) -> tuple[Learner, ...]:
        """The tasks to score."""
        return self.evaluations or (self.task,)


# Of a run on one of its scored tasks: the record, and the scores of examples by split.
Result = tuple[ResultRecord, dict[str, SplitScores]]


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The model after a run; the next run overwrites it."""

    run: FinetuneRun
    results: tuple[Result, ...]
    weights: dict[str, Tensor]  # of the body, as kept in training: fp32, except with `paper`
    head: dict[str, Tensor]  # empty if the task has no head


# Called after each step with the run, the steps taken, the total steps and the loss.
StepReport = Callable[[FinetuneRun, int, int, float], None]
Keep = Callable[[TrainedModel], None]  # called after each run with the trained model


def encode_task(task: Task, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> Learner:
    """Tokenise a task once, for every run on it."""
    return KINDS[task.info.kind].learner(task, tokenizer, protocol=protocol)


class Finetuner:
    """One loaded model, fine-tuned repeatedly; its weights are restored after every run."""

    def __init__(
        self, model: PreTrainedModel, *, precision: FinetunePrecision, lora: Lora | None = None
    ) -> None:
        """Take ownership of a model and compute in `precision` from now on."""
        if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
            raise ModelError("fine-tuning starts from weights in fp32; load the model again")
        self.precision: FinetunePrecision = precision
        self._model, self._lora = model, lora
        if lora is not None:
            add_lora(model, lora, seed=0, mask_id=None)
        self._body = set_precision(model, precision)
        # A copy of the masters, not of the file: restoring takes no reading and no conversion.
        self._initial = {
            name: master.detach().clone()
            for name, master in self._body.masters.items()
            if self._body.working[name].requires_grad
        }

    def run(
        self, run: FinetuneRun, *, progress: StepReport | None = None, keep: Keep | None = None
    ) -> tuple[Result, ...]:
        """Fine-tune by the protocol, then score the final weights on each of the run's tasks."""
        # A loss, gradient or state that is not finite makes it diverged, which is a valid result.
        self._check(run)
        started = time.perf_counter()
        try:
            # Seeded for each run, so that a job after another equals one alone.
            with _seeded(run.seed):
                # Apart from dropout's: the same seed gives every arm the same head, whatever it
                # drops.
                generator = torch.Generator().manual_seed(derive_seed("finetune-head", run.seed))
                head = new_head(
                    self._model.config.hidden_size * run.task.states_read,
                    run.task.num_outputs,
                    is_dense=run.protocol.has_dense_head(
                        is_pooled=KINDS[run.task.info.kind].facts.is_pooled
                    ),
                    generator=generator,
                )
                if self._lora is not None:
                    draw_lora(self._body.masters, seed=derive_seed("finetune-lora", run.seed))
                    self._body.publish()
                head.to(self._model.device)
                set_head_precision(head, self.precision)
                results = tuple(self._train_and_score(head, run, progress, started))
            if keep is not None:
                weights, _ = split_lora(
                    self._model, {**self._model.state_dict(), **self._body.masters}
                )
                keep(TrainedModel(run, results, weights, head.state_dict()))
            return results
        finally:
            # Also after an error, as a worker goes on with the next job of the same model.
            self._put_weights_back()

    def _check(self, run: FinetuneRun) -> None:
        trained = run.task.info
        if run.protocol.precision != self.precision:
            raise ConfigError(
                f"precision: the run needs {run.protocol.precision}, but the model was prepared "
                f"for {self.precision}; group runs by precision"
            )
        if run.protocol.lora != self._lora:
            raise ConfigError("lora: the model was prepared for another; group runs by lora")
        if run.protocol.batching != batching_of(self._model):
            raise ConfigError(
                f"batching: the run needs {run.protocol.batching} sequences, but the model was "
                f"loaded for {batching_of(self._model)} ones; group runs by batching"
            )
        kind = KINDS[trained.kind]
        if not run.task.num_train and kind.facts.is_trained:
            raise ConfigError(
                f"task '{trained.name}': no training split; fine-tune on another task and score "
                "this one afterwards, or use a kind without fine-tuning"
            )
        for task in run.scored:
            is_same_kind = task.info.kind == trained.kind and TRAINED_ON in kind.examples.settings
            if task.info != trained and not is_same_kind:
                known = " and ".join(kinds_with(TRAINED_ON))
                raise ConfigError(
                    f"task '{task.info.name}' ({task.info.kind}) cannot be scored after "
                    f"fine-tuning on '{trained.name}' ({trained.kind}); only tasks of kind {known} "
                    "can be, after one of the same kind"
                )

    def _train_and_score(
        self, head: nn.Module, run: FinetuneRun, progress: StepReport | None, started: float
    ) -> Iterator[Result]:
        encoder = Encoder(
            self._model,
            pad_id=run.task.pad_id,
            causal=run.protocol.is_causal,
            pooling=run.protocol.pooling,
        )
        steps, is_finite = self._train(encoder, head, run, progress)
        training_seconds = time.perf_counter() - started
        ids = run.ids or ("",) * len(run.scored)
        for task, result_id in zip(run.scored, ids, strict=True):
            started = time.perf_counter()
            probe = None
            if run.protocol.is_probe and run.task.num_train:
                scores, probe = _probe(encoder, head, run)
            else:
                scores = _score(encoder, head, task) if is_finite else {}
            scores = with_clusters(scores, task.info.clusters)
            yield (
                ResultRecord(
                    format=RESULT_FORMAT,
                    id=result_id,
                    state=run.state,
                    task=task.info.name,
                    kind=task.info.kind,
                    metric=task.info.metric,
                    trained_on=None if task.info == run.task.info else run.task.info.name,
                    examples_sha256=digest([task.info.sha256, run.task.info.sha256]),
                    learning_rate=run.learning_rate,
                    seed=run.seed,
                    protocol=run.protocol.model_dump(mode="json"),
                    status="finished" if scores else "diverged",
                    steps=steps,
                    validation=scores["validation"].metrics if "validation" in scores else None,
                    test=scores["test"].metrics if scores else None,
                    by_type={
                        split: scored.by_type for split, scored in scores.items() if scored.by_type
                    },
                    num_truncated=task.num_truncated,
                    probe=probe,
                    seconds=training_seconds + time.perf_counter() - started,
                    device=str(compute_device()),
                    code=running_code("finetuning"),
                    about=facts_to_record(
                        task.info.kind, run.protocol.facts(KINDS[task.info.kind].facts)
                    ),
                ),
                scores,
            )

    def _train(
        self, encoder: Encoder, head: nn.Module, run: FinetuneRun, progress: StepReport | None
    ) -> tuple[int, bool]:
        """Run the optimizer steps; return their number, and whether everything stayed finite."""
        if not run.task.num_train or run.protocol.is_probe:
            return 0, True
        embedding = self._model.get_input_embeddings()
        # Without fp32 weights, per-step decay would be lost in rounding. LoRA trains no table.
        # With fp32 masters, rows that no text reads change by decay alone, which can be made up for
        # at the end (docs/decisions/0011).
        is_whole = self.precision == "paper" or self._lora is not None
        if is_whole or not isinstance(embedding, nn.Embedding):
            optimizer = _new_optimizer(self._body, head, run.protocol)
            return _take_steps(encoder, head, optimizer, run, progress)
        # Padding is read as well, so its embedding row counts.
        trained = token_ids([*run.task.trained_sequences, np.array([run.task.pad_id])])
        with short_table(embedding, self._body, trained) as table:
            optimizer = _new_optimizer(table.weights, head, run.protocol)
            outcome = _take_steps(encoder, head, optimizer, run, progress)
            table.decay = optimizer.decay
        return outcome

    @torch.no_grad()
    def _put_weights_back(self) -> None:
        for name, initial in self._initial.items():
            master = self._body.masters[name]
            master.copy_(initial)
            # Gradients of this run must not be added to those of the next.
            master.grad = self._body.working[name].grad = None
        self._body.publish()


def finetune_group(
    model: PreTrainedModel,
    runs: Sequence[FinetuneRun],
    *,
    progress: StepReport | None = None,
    keep: Keep | None = None,
) -> Iterator[tuple[Result, ...]]:
    """Fine-tune a model once per run, each time from its current weights; see `Finetuner`."""
    if runs:
        protocol = runs[0].protocol
        finetuner = Finetuner(model, precision=protocol.precision, lora=protocol.lora)
        for run in runs:
            yield finetuner.run(run, progress=progress, keep=keep)


def read_items(
    examples: NDArray[np.int64], *, num_examples: int | None, finetune_seed: int
) -> NDArray[np.int64]:
    """Return the training items that a run reads, if it reads `num_examples` of the `examples`."""
    # The draw depends on the number of examples alone, not on the items that a tokenizer makes of
    # them; a larger choice contains a smaller one.
    # Long texts give several items each, in the order of their examples.
    total = int(examples[-1]) + 1
    # All of them in their order: a run without the setting has the same items.
    if num_examples in {None, total}:
        return np.arange(len(examples))
    chosen = permutation(stream("train-examples", finetune_seed), total)[:num_examples]
    starts, ends = (np.searchsorted(examples, chosen, side=side) for side in ("left", "right"))
    return np.concatenate([np.arange(*item) for item in zip(starts, ends, strict=True)])


def batch_indices(
    step: int, *, items: NDArray[np.int64], batch_size: int, finetune_seed: int
) -> NDArray[np.int64]:
    """Return the training items of a step: each once per epoch, the last batch smaller."""
    epoch, batch = divmod(step, -(-len(items) // batch_size))
    order = _epoch_order(len(items), finetune_seed, epoch)
    return items[order[batch * batch_size :][:batch_size]]


# Each step of an epoch asks for the same permutation, which is as long as the split.
@lru_cache(maxsize=2)
def _epoch_order(num_read: int, finetune_seed: int, epoch: int) -> NDArray[np.int64]:
    return permutation(stream("finetune-order", finetune_seed, epoch), num_read)


def _new_optimizer(body: MasterWeights, head: nn.Module, protocol: FinetuneProtocol) -> Optimizer:
    added = {f"head.{name}": parameter for name, parameter in head.named_parameters()}
    return Optimizer(
        MasterWeights({**body.working, **added}, {**body.masters, **added}), protocol.optimizer
    )


def _take_steps(
    encoder: Encoder,
    head: nn.Module,
    optimizer: Optimizer,
    run: FinetuneRun,
    progress: StepReport | None,
) -> tuple[int, bool]:
    items = read_items(
        run.task.example_of_item, num_examples=run.protocol.train_examples, finetune_seed=run.seed
    )
    num_steps = run.protocol.num_steps(len(items))
    schedule = run.protocol.schedule(run.learning_rate, num_steps=num_steps)
    encoder.model.train()
    for step in range(num_steps):
        indices = batch_indices(
            step, items=items, batch_size=run.protocol.batch_size, finetune_seed=run.seed
        )
        loss = run.task.loss(encoder, head, indices)
        if loss.ndim or not loss.requires_grad:
            about = short_name(run.task.info.kind)
            raise ConfigError("loss must return one number that has a gradient", about=about)
        loss.backward()
        # The model's gradients may be bf16; the norm and the update are taken in fp32.
        optimizer.weights.gather_gradients()
        try:
            optimizer.step(learning_rate(schedule, step, total_steps=num_steps))
        # Not an error of the run: high rates of a grid diverge, and selection must know which did.
        except TrainingError:  # a non-finite gradient
            return step, False
        if not torch.isfinite(loss):
            return step + 1, False
        release_excess()
        if progress is not None:
            progress(run, step + 1, num_steps, loss.item())
    return num_steps, True


def _probe(
    encoder: Encoder, head: nn.Module, run: FinetuneRun
) -> tuple[dict[str, SplitScores], ProbeRecord | None]:
    """Fit the head on the states of the frozen encoder; empty if a state is not finite."""
    from biphasic.tasks.probe import fit_probe  # noqa: PLC0415 - loads scikit-learn's models

    # The same examples that a fine-tuning with this seed reads.
    chosen = read_items(
        run.task.example_of_item, num_examples=run.protocol.train_examples, finetune_seed=run.seed
    )
    encoder.model.eval()
    try:
        with torch.no_grad():
            return fit_probe(run.task, encoder, head, chosen, run.protocol.layer)
    except TrainingError:
        return {}, None


def _score(encoder: Encoder, head: nn.Module, task: Learner) -> dict[str, SplitScores]:
    """Score the splits of a task; empty if an output is not finite."""
    encoder.model.eval()
    try:
        with torch.inference_mode():
            scores = task.evaluate(encoder, head)
    except TrainingError:
        return {}
    kind = KINDS[task.info.kind]
    if kind.plugin is not None:
        for problem in wrong_scores(scores, kind.facts):
            raise ConfigError(f"breaks the rule 'scores': {problem}", about=kind.plugin.name)
    return scores


def with_clusters(
    scores: Mapping[str, SplitScores], clusters: Mapping[str, Mapping[str, str]]
) -> dict[str, SplitScores]:
    """Return scores with the clusters that the task's rows name, if they do."""
    if not clusters:
        return dict(scores)
    named = {split: clusters.get(split, {}) for split in scores}
    return {
        split: replace(
            scored,
            columns={**scored.columns, "cluster": [named[split].get(i, i) for i in scored.ids]},
        )
        for split, scored in scores.items()
    }


@contextmanager
def _seeded(finetune_seed: int) -> Iterator[None]:
    """Seed torch's global generator (used by dropout), and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("finetune-dropout", finetune_seed))
        yield


def write_result(folder: Path, record: ResultRecord, scores: Mapping[str, SplitScores]) -> None:
    """Write a run's `result.json` and `scores.parquet`, with a row for each example, at once."""
    tables = [_split_table(split, scored) for split, scored in scores.items()]
    record = record.model_copy(update={"sealed": datetime.now(UTC).isoformat(timespec="seconds")})
    with complete_folder(folder, format=record.format, id=record.id) as partial:
        write_json(partial / "result.json", record.model_dump(mode="json"), is_flushed=False)
        # A diverged run has no scores. Its table is empty, but has the columns that readers expect.
        table = pa.concat_tables(tables or [_split_table("test", SplitScores({}, (), np.empty(0)))])
        pq.write_table(table, partial / "scores.parquet")


def _split_table(split: str, scores: SplitScores) -> pa.Table:
    return pa.table(
        {
            "split": pa.array([split] * len(scores.ids), pa.string()),
            "id": pa.array(scores.ids, pa.string()),
            "score": pa.array(scores.scores, pa.float64()),
            **{name: _array(column) for name, column in scores.columns.items()},
        }
    )


def _array(column: Column) -> pa.Array:
    # Arrow cannot infer the item type if all lists are empty.
    has_lists = len(column) > 0 and isinstance(column[0], list)
    return pa.array(column, pa.list_(pa.string()) if has_lists else None)
