"""Checks of plugins: for each base a class of rules, which our own classes follow too.

`check_named` runs them for `biphasic plugin check`; tests of a plugin call `check_objective`,
`check_optimizer`, `check_source`, `check_executor` or `check_kind`. `python -m biphasic.testing`
is the worker of an executor that is checked.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import astuple, replace
from functools import cache, cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ValidationError, create_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.child import PYTHON
from biphasic.config import Config, parse_config
from biphasic.data.packing import lay_out
from biphasic.data.rows import Piece, RowBatch
from biphasic.data.text.source import TextSource
from biphasic.data.text.sources import AnySource, read_documents, source_origin
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.distributed import ProcessGroup
from biphasic.errors import BiphasicError, ConfigError, DataError, StoppedError, reading
from biphasic.execution.executor import ExecutorConfig, Work
from biphasic.execution.job import Job, JobFailedError, Progress, Report, ShouldStop, never
from biphasic.execution.registry import AnyExecutor
from biphasic.execution.worker import serve
from biphasic.files import canonical_json, write_json
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.shape import PRESETS
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import AnyObjective
from biphasic.objectives.supervision import Supervision, Vocabulary, problems
from biphasic.plugin_code import look_in
from biphasic.plugins import (
    Group,
    classes_of,
    find_plugin,
    installed_names,
    keep_files,
    short_name,
    shown,
)
from biphasic.seeds import stream, uniforms
from biphasic.tasks.encoding import Encoder, new_head
from biphasic.tasks.folder import load_task
from biphasic.tasks.kinds.kind import Learner, SplitScores, TaskKind, wrong_scores
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import Task
from biphasic.tasks.source import find_source, prepare_task
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.optimizers.registry import AnyOptimizer
from biphasic.training.state import save_tensors
from biphasic.training.step.input import passes_of, summed_loss
from biphasic.training.step.optimizer import Optimizer
from biphasic.training.step.weights import MasterWeights

Problems = Iterator[str]
Parts = tuple[Supervision, ...]
Weights = dict[str, Tensor]

_TOLERANCE = 1e-4  # relative for losses, absolute for scores
_STEPS = 4
_ROWS = 8
_ROW_LENGTH = 48
_LONGEST = 18  # words of a document
_WORDS = (
    "the", "array", "of", "rows", "holds", "tokens", "and", "weights", "returns", "a", "copy",
    "unless", "axis", "is", "given",
)  # fmt: skip
_SHAPES = {"embedding": (12, 8), "layer.up": (16, 8), "layer.down": (8, 16), "norm": (8,)}
_MATRICES = ("layer.up", "layer.down")
_SECONDS = 120.0
_POLL_SECONDS = 0.05
_FAILURE = "the job fails on purpose"
_PROTOCOL = FinetuneProtocol(
    max_seqlen=64, max_question_tokens=16, window_overlap=8, precision="fp32"
)


class Rules:
    """The rules of a base: each public generator method yields what breaks it, in this order."""

    base: ClassVar[type]
    key: ClassVar[str]  # the field that names a class of the base
    accepts: ClassVar[Any] = None  # the type of settings with that field

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.folder = Path()  # temporary, while rules are checked

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the rules, in the order of their checks."""
        methods = [name for name in vars(cls) if not name.startswith("_")]
        return [name for name in methods if inspect.isgeneratorfunction(getattr(cls, name))]

    def check(self) -> None:
        """Raise a ConfigError that names the first rule that is broken."""
        named = short_name(getattr(self.settings, self.key))
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            for rule in self.names():
                # The class is anybody's code, which may fail in any way.
                about = f"{named}: rule '{rule}'"
                with reading(about, ConfigError, failure="an error", remedy="correct the class"):
                    problem = next(getattr(self, rule)(), None)
                if problem is not None:
                    raise ConfigError(f"breaks the rule '{rule}': {problem}", about=named)

    def _output(self) -> Any:
        """Return what settings determine, to be compared."""
        raise NotImplementedError

    @cached_property
    def _expected(self) -> Any:
        """The output that others must equal."""
        return self._output()

    def _identity(self) -> str:
        raise NotImplementedError

    def _is_impure(self) -> bool:
        outputs = [self._expected]
        for seed in (1, 2):
            for draw in (random.seed, np.random.seed, torch.manual_seed):
                draw(seed)
            outputs.append(self._output())
        return any(output != outputs[0] for output in outputs)

    def _unhashed(self, names: Iterable[str], differing: str) -> Problems:
        """Yield the settings that change the output and not the identity."""
        output, identity = self._expected, self._identity()
        for change, other in _variants(self.settings, sorted(names)):
            varied = type(self)(other)
            try:
                is_other = varied._output() != output
            except BiphasicError:
                continue  # of other settings, which the class refuses
            if is_other and varied._identity() == identity:
                yield f"{change} gives other {differing}, but the same identity"


def _refused_by_training(rule: str) -> Callable[[ObjectiveRules], Problems]:
    def check(rules: ObjectiveRules) -> Problems:
        directions = rules.settings.directions
        for step in range(_STEPS):
            made = problems(rules.parts(step), _batch(step), small_vocabulary(), directions)
            yield from (problem for broken, problem in made if broken == rule)

    return check


class ObjectiveRules(Rules):
    """An objective in a phase of a few steps, on rows of a small text and by a small model."""

    base, key, accepts = ObjectiveConfig, "objective", AnyObjective

    def __init__(self, settings: ObjectiveConfig) -> None:
        super().__init__(settings)
        if settings.reading is not None:
            about = settings.short_name
            raise ConfigError("reads pairs; objectives that read a corpus have rules", about=about)

    # What training refuses in every step, too.
    rows, positions = _refused_by_training("rows"), _refused_by_training("positions")

    def specials(self) -> Problems:
        """BOS and EOS are neither hidden nor predicted, unless `predicts_specials` says so."""
        if self.settings.predicts_specials:
            return
        specials, remedy = sorted(small_vocabulary().special_ids), "use batch.texts without them"
        for step in range(_STEPS):
            first, rows = 0, _batch(step).packed
            for part in self.parts(step):
                first %= _ROWS  # rows may be read again, such as in the other direction
                input_ids = rows.part(first, first := first + part.rows.num_rows).input_ids
                if np.isin(part.labels, specials).any():
                    yield f"a label is BOS or EOS; {remedy}"
                if np.isin(input_ids[part.rows.input_ids != input_ids], specials).any():
                    yield f"BOS or EOS is replaced in the input; {remedy}"

    directions = _refused_by_training("directions")

    def pure(self) -> Problems:
        """The same rows and seed give the same, and the batch stays as it is."""
        before = _batch(0).sha256()
        if self._is_impure():
            yield "a second call gives other labels or inputs; draw from biphasic.seeds"
        if _batch(0).sha256() != before:
            _batch.cache_clear()
            yield "supervise changes the batch; copy input_ids first"

    def draws(self) -> Problems:
        """Places that are drawn depend on the documents, not only on where these are in rows."""
        drawn = any(self._places(step) != self._places(step, 2) for step in range(_STEPS))
        if drawn and all(
            self._places(step) == self._places(step, batch=_other_texts(_batch(step)))
            for step in range(_STEPS)
        ):
            yield (
                "other documents of the same lengths have labels at the same places; draw from "
                "biphasic.seeds.stream with epoch, document and start of each of batch.pieces"
            )

    def resume(self) -> Problems:
        """A step is the same after other steps as in a process that begins with it."""
        earlier = self._at(0)
        if self.settings.at(0, num_steps=_STEPS) is not self.settings:
            return  # it is another one in each step
        for step in range(_STEPS):
            parts = earlier.supervise(_batch(step), small_vocabulary(), mask_seed=1)
            if _digest(parts) != _digest(self.parts(step)):
                yield f"step {step} differs after earlier steps; keep nothing between steps"

    def passes(self) -> Problems:
        """The summed loss is the same for any number of passes and of ranks."""
        parts = self.parts()
        whole = sum(map(_loss, parts))
        ranks = [passes_of(parts, ProcessGroup(rank, 2), None) for rank in (0, 1)]
        divisions: dict[str, list[Supervision]] = {
            "passes of 1 row": [piece for part in parts for piece in part.split(1)],
            "passes of 3 rows": [piece for part in parts for piece in part.split(3)],
            "two ranks": [piece for pieces in ranks for piece in pieces],
        }
        for name, pieces in divisions.items():
            divided = sum(_loss(piece) for piece in pieces if len(piece.labels))
            if not math.isclose(whole, divided, rel_tol=_TOLERANCE):
                yield f"the summed loss is {whole:.6g} in one pass and {divided:.6g} in {name}"

    def finite(self) -> Problems:
        """The loss of each step is finite and not negative."""
        for step in range(_STEPS):
            loss = sum(map(_loss, self.parts(step)))
            if not (math.isfinite(loss) and loss >= 0):
                yield f"the loss of step {step} is {loss}"

    def determinants(self) -> Problems:
        """Settings and seeds that change inputs, labels or loss also change the identity."""
        if self._identity() != self._identity():
            yield "the identity of the same settings differs between calls"
        if self._identity() == self._identity(2) and self._expected != self._output(2):
            yield "another mask_seed gives other labels, but the same identity"
        yield from self._unhashed(self.settings.own_settings(), "labels or another loss")

    def parts(self, step: int = 0, mask_seed: int = 1, batch: RowBatch | None = None) -> Parts:
        """Return what the objective makes of the rows of a step, in a process of its own."""
        batch = batch or _batch(step)
        return self._at(step).supervise(batch, small_vocabulary(), mask_seed=mask_seed)

    def _at(self, step: int) -> ObjectiveConfig:
        again = type(self.settings).model_validate_json(self.settings.model_dump_json())
        return again.at(step, num_steps=_STEPS)

    def _identity(self, mask_seed: int = 1) -> str:
        return canonical_json([self._at(step).identity(mask_seed) for step in range(_STEPS)])

    def _output(self, mask_seed: int = 1) -> list[str]:
        self.settings.check_vocabulary(small_vocabulary())
        steps = [self.parts(step, mask_seed) for step in range(_STEPS)]
        return [f"{_digest(parts)} {[*map(_loss, parts)]!r}" for parts in steps]

    def _places(self, step: int, mask_seed: int = 1, batch: RowBatch | None = None) -> list[Any]:
        return [part.positions.tolist() for part in self.parts(step, mask_seed, batch)]


class OptimizerRules(Rules):
    """An optimizer of a few weights, in a run of a few steps."""

    base, key, accepts = OptimizerConfig, "name", AnyOptimizer

    def updates(self) -> Problems:
        """Every weight with a gradient is updated, and stays finite."""
        after = self._run().values()
        for name, before in _drawn(_STEPS).items():
            if not after[name].isfinite().all():
                yield f"{name} is not finite after {_STEPS} steps"
            if torch.equal(after[name], before):
                yield f"{name} is not updated"

    def rate(self) -> Problems:
        """At a learning rate of 0, which a schedule may have, weights stay as they are."""
        for name in _changed(_drawn(_STEPS), self._run(rate=0.0).values()):
            yield f"{name} changes at a learning rate of 0; use group['lr']"

    def pure(self) -> Problems:
        """The same gradients give the same weights, whatever was drawn before."""
        if self._is_impure():
            yield "weights differ in a second run; draw no random numbers"

    def moments(self) -> Problems:
        """Tensors in `state` are as many as `num_moments`, shaped like their weight, or scalar."""
        moments = self._run().optimizer.state_tensors()
        for name, shape in _SHAPES.items():
            own = {key: value for key, value in moments.items() if key.rpartition(".")[0] == name}
            shaped = {key: tuple(value.shape) for key, value in own.items() if value.ndim}
            for key, own_shape in shaped.items():
                if own_shape != shape:
                    yield f"{key} has the shape {own_shape}, its weight another"
            expected = self.settings.num_moments(is_layer_matrix=name in _MATRICES)
            if len(shaped) != expected:
                yield f"{name} has {len(shaped)} tensors in state, num_moments says {expected}"

    def resume(self) -> Problems:
        """A run that continues from saved weights and moments equals an uninterrupted one."""
        half = self._run(range(_STEPS // 2))
        values = half.values()
        resumed = _Run(self.settings, {name: values[name] for name in _SHAPES})
        resumed.optimizer.load_state_tensors(
            {name: value for name, value in values.items() if name not in _SHAPES}
        )
        resumed.update(range(_STEPS // 2, _STEPS))
        for name in _changed(self._run().values(), resumed.values()):
            yield f"{name} differs after a resume; keep all that decides updates in state[weight]"

    def skips(self) -> Problems:
        """A step whose gradient is not finite (`found_inf` is 1) changes nothing."""
        run = self._run(range(2))
        before = run.values()
        run.update(range(2, 3), factor=float("nan"))
        for name in _changed(before, run.values()):
            yield f"{name} changes at a gradient that is not finite; use found_inf"

    def determinants(self) -> Problems:
        """Settings that change updates also change the identity."""
        yield from self._unhashed(type(self.settings).model_fields.keys() - {"name"}, "weights")

    def _run(self, steps: range = range(_STEPS), *, rate: float = 1e-2) -> _Run:
        run = _Run(self.settings, _drawn(_STEPS))
        run.update(steps, rate=rate)
        return run

    def _output(self) -> list[Any]:
        values = self._run().values()
        return [values[name].tolist() for name in _SHAPES]

    def _identity(self) -> str:
        return canonical_json(self.settings.identity())


class SourceRules(Rules):
    """A text source, of which the first documents are read."""

    base, key, accepts = TextSource, "source", AnySource

    def documents(self) -> Problems:
        """There are documents, each with a text and with an id that no other has."""
        documents, seen = [*islice(read_documents(self.settings), 1000)], set[str]()
        if not documents:
            yield "there is no document"
        for number, document in enumerate(documents):
            if not document.id or document.id in seen:
                yield f"document {number}: its id '{document.id}' is empty or that of another"
            seen.add(document.id)

    def pure(self) -> Problems:
        """Each reading begins at the first document, whatever was read or drawn before."""
        first = self._expected
        next(read_documents(self.settings))
        if self._output() != first or self._is_impure():
            yield "a second reading gives other documents, or another order"

    def origin(self) -> Problems:
        """The origin is the same in each call, and has no absolute path."""
        origin = self._identity()
        if origin != self._identity():
            yield "a second call gives another origin"
        for value in re.findall(r'"(/[^"]*)"', origin):
            if Path(value).exists():
                yield f"the origin has the path {value}; return a hash of the files there"

    def determinants(self) -> Problems:
        """Settings that change the documents also change the origin."""
        names = type(self.settings).model_fields.keys() - TextSource.model_fields.keys()
        yield from self._unhashed(names, "documents")

    def process(self) -> Problems:
        """Another process, with another order of sets, reads the same documents."""
        holder = _SourceHolder(source=self.settings)
        keep_files(self.folder, holder)
        child = subprocess.run(  # noqa: S603 - our own module, no shell
            [*PYTHON, "-c", f"import {__name__} as t; t.print_digest()", str(self.folder)],
            input=holder.model_dump_json(),
            env={**os.environ, "PYTHONHASHSEED": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode:
            yield f"another process cannot read it: {child.stderr.strip().rpartition(chr(10))[2]}"
        elif not child.stdout.endswith(self._expected):  # the source may have printed too
            yield "another process reads other documents, or in another order; sort sets and files"

    def _output(self) -> str:
        documents = islice(read_documents(self.settings), 1000)
        return hashlib.sha256(repr([*map(astuple, documents)]).encode()).hexdigest()

    def _identity(self) -> str:
        return canonical_json(source_origin(self.settings))


class ExecutorRules(Rules):
    """An executor that runs jobs that do nothing, in a store of its own."""

    base, key, accepts = ExecutorConfig, "executor", AnyExecutor

    def __init__(self, settings: ExecutorConfig) -> None:
        super().__init__(settings)
        self.progress: dict[str, Progress] = {}

    def slots(self) -> Problems:
        """It has slots before it starts and when it has started."""
        with self._started() as started:
            for number in (self.settings.num_slots, started.num_slots):
                if not isinstance(number, int) or number < 1:
                    yield f"num_slots is {number!r}; it must be a whole number above 0"

    def runs(self) -> Problems:
        """Each job runs once, its progress is shown, and its future ends when it has ended."""
        names = ["run-0", "run-1", "run-2"]
        with self._started() as started:
            futures = [started.submit(name) for name in names]
            for name, future in zip(names, futures, strict=True):
                if error := _error(future):
                    yield f"a job that does nothing ends with {error}{_last_line(error)}"
                elif not (self.folder / name).is_file():
                    yield "the future of a job has ended, and the job has not run"
        for name in names:
            if (self.folder / name).read_text(encoding="utf-8") != "begun\n":
                yield "a job ran twice"
            if name not in self.progress:
                yield "the progress of a job did not reach `watch`"

    def failures(self) -> Problems:
        """A job that fails raises its own message in the future, and the next job runs."""
        with self._started() as started:
            error = _error(started.submit("fail"))
            if not isinstance(error, BiphasicError) or _FAILURE not in str(error):
                end = error or "no error"
                yield f"a job failed with '{_FAILURE}', and its future ended with {end}"
            elif isinstance(error, JobFailedError) and not error.is_final:
                yield "invalid data fail again: is_final must be true, or the job is retried"
            if error := _error(started.submit("run-after")):
                yield f"after a failed job, the next one ends with {error}"

    def stops(self) -> Problems:
        """At the end, running jobs are asked to stop, and waiting ones do not begin."""
        with self._started() as started:
            names = [f"wait-{number}" for number in range(started.num_slots + 1)]
            futures = [started.submit(name) for name in names]
            end = time.monotonic() + _SECONDS
            while not (begun := [name for name in names if (self.folder / name).is_file()]):
                if time.monotonic() > end:
                    yield f"no job has begun within {_SECONDS:.0f} seconds"
                    return
                time.sleep(_POLL_SECONDS)
        if not all((self.folder / f"{name}-stopped").is_file() for name in begun):
            yield "a running job was not asked to stop, so it could not save its progress"
        for future in futures:
            if not future.cancelled() and not isinstance(error := _error(future), BiphasicError):
                yield f"a job that was stopped ended with {error or 'no error'}"

    @cached_property
    def _work(self) -> Work:
        self.settings.check(self.folder, processes=1)
        return Work(
            self.folder,
            self.folder / "study",
            load_job=load_trial,
            worker=__name__,
            processes=1,
            watch=self.progress.__setitem__,
            say=lambda _: None,
        )

    def _started(self) -> AbstractContextManager[Any]:
        return self.settings.start(self._work)


class KindRules(Rules):
    """A kind of task, on a task of that kind in a folder and by a small model of its tokens."""

    base, key = TaskKind, "name"

    def __init__(self, kind: str, data: Path) -> None:
        super().__init__(KINDS[kind])
        self.kind, self.described = KINDS[kind], {"kind": kind, "folder": str(data.resolve())}

    def parse(self) -> Problems:
        """Reading the files again gives the same task; every example has an input."""
        if self._read() != self.task:
            yield "a second reading gives other examples"
        for split in self.kind.splits(trained_on=None):
            if len([*self.kind.examples.inputs(self.task, split)]) < self.task.num_examples(split):
                yield f"inputs leaves out examples of the {split} split"

    def encode(self) -> Problems:
        """Encoding again gives the same sequences, none longer than `max_seqlen`."""
        first, again = self._learner, self._again
        sizes = [(task.num_train, task.num_outputs, task.num_truncated) for task in (first, again)]
        pairs = zip(first.trained_sequences, again.trained_sequences, strict=False)
        if sizes[0] != sizes[1] or not all(np.array_equal(*pair) for pair in pairs):
            yield "a second encoding differs; draw no random numbers"
        if any(len(sequence) > _PROTOCOL.max_seqlen for sequence in first.trained_sequences):
            yield f"a sequence is longer than max_seqlen, {_PROTOCOL.max_seqlen} tokens"
        if self.kind.facts.is_trained and not first.num_train:
            yield "num_train is 0, but the kind is fine-tuned"
        if (length := len(first.example_of_item)) != first.num_train:
            yield f"example_of_item has {length} numbers for num_train={first.num_train} items"

    def loss(self) -> Problems:
        """The loss of some training items is one finite number with a gradient, and pure."""
        if not self.kind.facts.is_trained:
            return
        indices = np.arange(min(4, self._learner.num_train))
        first, again = (self._learner.loss(self._encoder, self._head, indices) for _ in range(2))
        if first.ndim or not bool(first.isfinite()) or not first.requires_grad:
            yield "loss must return one finite number that has a gradient"
        if not torch.equal(again, first):
            yield "a second call gives another loss"

    def scores(self) -> Problems:
        """Each example has one finite score, and the metrics are those of `facts`."""
        scores = self._scored(self._encoder)
        yield from wrong_scores(scores, self.kind.facts)
        for split, scored in scores.items():
            if len(scored.ids) != (number := self.task.num_examples(split)):
                yield f"{split}: {len(scored.ids)} of {number} examples scored"

    def pure(self) -> Problems:
        """The same model has the same scores, whatever was drawn before."""
        if self._is_impure():
            yield "a second evaluation gives other scores"
        # `encode` sees the sequences for training alone.
        elif self._output(self._again) != self._expected:
            yield "a second encoding gives other scores; draw no random numbers"

    def batches(self) -> Problems:
        """Scores are the same however a split is divided into batches."""
        smaller = self._scored(_SmallBatches(self._encoder.model, self._encoder.pad_id))
        for split, (_, scores) in self._expected.items():
            if not np.allclose(scores, smaller[split].scores, rtol=0, atol=_TOLERANCE):
                yield f"smaller batches give other scores of {split}"

    @cached_property
    def task(self) -> Task:
        """The task of the data."""
        return self._read()

    def _read(self) -> Task:
        write_json(file := self.folder / "task.yaml", self.described)
        source = find_source(str(file))
        return load_task(prepare_task(source, store=self.folder, say=lambda _: None))

    @cached_property
    def _encoder(self) -> Encoder:
        """A model with random weights and the tokens of the task."""
        parts = self.kind.examples.inputs(self.task, "test")
        texts = [part if isinstance(part, str) else " ".join(part) for part in parts]
        tokenizer = train_tokenizer(texts, vocab_size=400)
        model, folder = _new_model(tokenizer, _PROTOCOL.max_seqlen), self.folder / "model"
        folder.mkdir()
        write_json(folder / "config.json", model.config.to_dict())
        save_tensors(dict(model.named_parameters()), folder / "model.safetensors")
        tokenizer.save_with_model(folder)
        return Encoder(self.kind.learner.load(folder, _PROTOCOL).eval(), tokenizer.pad_id)

    def _encoded(self) -> Learner:
        tokenizer = TextTokenizer.load(self._encoder and self.folder / "model")
        return self.kind.learner(self.task, tokenizer, protocol=_PROTOCOL)

    @cached_property
    def _learner(self) -> Learner:
        return self._encoded()

    @cached_property
    def _again(self) -> Learner:
        return self._encoded()

    @cached_property
    def _head(self) -> nn.Module:
        width, generator = self._encoder.model.config.hidden_size, torch.Generator().manual_seed(0)
        return new_head(width, self._learner.num_outputs, generator=generator)

    def _scored(self, encoder: Encoder, learner: Learner | None = None) -> dict[str, SplitScores]:
        with torch.inference_mode():
            return (learner or self._learner).evaluate(encoder, self._head)

    def _output(self, learner: Learner | None = None) -> Any:
        scores = self._scored(self._encoder, learner).items()
        return {split: (scored.ids, [*map(float, scored.scores)]) for split, scored in scores}


RULES: Mapping[Group, type[Rules]] = {
    "objectives": ObjectiveRules,
    "optimizers": OptimizerRules,
    "sources": SourceRules,
    "executors": ExecutorRules,
    "task_kinds": KindRules,
}


def check_objective(settings: ObjectiveConfig) -> None:
    """Check that an objective keeps all rules.

    Raises:
        ConfigError: It breaks a rule, which the message names, or reads pairs.

    Example:
        >>> from biphasic.objectives.masking import Mlm
        >>> check_objective(Mlm(objective="mlm"))
    """
    ObjectiveRules(settings).check()


def check_optimizer(settings: OptimizerConfig) -> None:
    """Check that an optimizer keeps all rules; a ConfigError names one that it breaks."""
    OptimizerRules(settings).check()


def check_source(settings: TextSource) -> None:
    """Check that a text source keeps all rules; a ConfigError names one that it breaks."""
    SourceRules(settings).check()


def check_executor(settings: ExecutorConfig) -> None:
    """Check that an executor keeps all rules; a ConfigError names one that it breaks."""
    ExecutorRules(settings).check()


def check_kind(kind: str, data: Path) -> None:
    """Check that a kind of task keeps all rules, on a folder with the files of a small task.

    Raises:
        ConfigError: It breaks a rule, which the message names.
        DataError: The data are no task of this kind.
    """
    KindRules(kind, data).check()


def check_named(named: str, settings: Mapping[str, Any], task: Path | None = None) -> Iterator[str]:
    """Check the plugins that `FILE`, `FILE:CLASS` or an installed name means; yield their lines.

    Raises:
        ConfigError: One of them breaks a rule, which the message names, or there is none.
    """
    groups: list[Group] = [group for group in RULES if (group == "task_kinds") == bool(task)]
    references = [*_references(named, groups)]
    if not references:
        names = " or ".join(RULES[group].base.__name__ for group in groups)
        hint = "" if task else "; a kind of task is checked with --task FOLDER"
        raise ConfigError(f"{named}: no class of the base {names}{hint}")
    for group, reference in references:
        if task:
            plugin = find_plugin(group, reference, TaskKind, ours=tuple(KINDS))
            check_kind(plugin.reference, task)
        else:
            rules = RULES[group]
            raw = {"settings": {rules.key: reference, **settings}}
            holder: Any = create_model("Holder", __base__=Config, settings=(rules.accepts, ...))
            checked = parse_config(holder, raw, where=named).settings
            plugin = checked.plugin
            if plugin is None:
                raise ConfigError(f"{named}: is one of ours, which is used instead; rename yours")
            rules(checked).check()
        yield f"{shown(plugin.reference)}: keeps all {len(RULES[group].names())} rules of {group}"


def _references(named: str, groups: Iterable[Group]) -> Iterator[tuple[Group, str]]:
    """Yield what a name means: classes of a file, or an installed plugin."""
    file, colon, name = named.rpartition(":") if ".py:" in named else (named, "", "")
    for group in groups:
        if named in installed_names(group):
            yield group, named
        elif ".py" in named:
            for kind in classes_of(file, RULES[group].base):
                if not colon or kind == name:
                    yield group, f"{file}:{kind}"


def load_trial(store: Path, identity: str) -> TrialJob:
    """Return the job of an executor that is checked."""
    return TrialJob(id=identity, label=identity, store=store)


class TrialJob(Job):
    """Writes its name into the store; `fail` in its name fails, and `wait` waits to be stopped."""

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Run it, whether it was run before or not."""
        if self.id.startswith("fail"):
            raise DataError(_FAILURE)
        report(Progress(1, 1, "begun"))
        with (self.store / self.id).open("a", encoding="utf-8") as file:
            file.write("begun\n")
        if self.id.startswith("wait"):
            while not should_stop():
                time.sleep(_POLL_SECONDS)
            (self.store / f"{self.id}-stopped").touch()
            raise StoppedError("stopped")


def print_digest() -> None:
    """Print a digest of the documents of a source, whose settings are on standard input."""
    look_in(Path(sys.argv[1]))
    holder = _SourceHolder.model_validate_json(sys.stdin.read())
    sys.stdout.write(SourceRules(holder.source)._output())


class _SourceHolder(Config):
    source: AnySource


class _SmallBatches(Encoder):
    """An encoder that reads few sequences at a time."""

    def batches(self, sequences: Any, *, batch_tokens: int | None = None) -> Any:
        """Yield states as an encoder does, of smaller batches."""
        del batch_tokens
        return super().batches(sequences, batch_tokens=64)


class _Run:
    """A run of an optimizer, from some weights."""

    def __init__(self, settings: OptimizerConfig, weights: Weights) -> None:
        self.weights = {name: nn.Parameter(value.clone()) for name, value in weights.items()}
        masters = MasterWeights(self.weights, dict(self.weights))
        again = type(settings).model_validate_json(settings.model_dump_json())
        self.optimizer = Optimizer(masters, again, layer_matrices=_MATRICES)

    def update(self, steps: range, *, rate: float = 1e-2, factor: float = 1.0) -> None:
        for step in steps:
            for name, gradient in _drawn(step).items():
                self.weights[name].grad = gradient * factor
            self.optimizer.update(rate)

    def values(self) -> Weights:
        """Return copies of weights and moments."""
        tensors = {**self.weights, **self.optimizer.state_tensors()}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _changed(before: Weights, after: Weights) -> list[str]:
    return [name for name, value in before.items() if not torch.equal(value, after[name])]


@cache
def _drawn(step: int) -> Weights:
    """Return numbers from -0.5 to 0.5, shaped like the weights."""
    tensors: Weights = {}
    for number, (name, shape) in enumerate(_SHAPES.items()):
        draws = uniforms(stream("conformance", 1, step, number), math.prod(shape))
        tensors[name] = torch.from_numpy(draws - 0.5).float().reshape(shape)
    return tensors


def _last_line(error: BaseException) -> str:
    """Return the last line of a job's log, whose folder is deleted with the store."""
    log = error.log if isinstance(error, JobFailedError) else None
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log else []
    return f": {lines[-1]}" if lines else ""


def _error(future: Future[None]) -> BaseException | None:
    with suppress(TimeoutError):
        return future.exception(timeout=_SECONDS)
    return TimeoutError(f"no end within {_SECONDS:.0f} seconds")


def _variants(settings: Config, names: Iterable[str]) -> Iterator[tuple[str, Config]]:
    """Yield valid settings that differ in one of these fields, with a description."""
    values, kind = settings.model_dump(mode="json"), type(settings)
    for name in names:
        value = getattr(settings, name)
        others: list[object] = [*_choices(kind.model_fields[name].annotation)]
        match value:
            case bool():
                others.append(not value)
            case int():
                others += [value + 1, value - 1, 2 * value]
            case float():
                others += [value / 2, 1.5 * value, 1 - value]
            case None:
                others += [1, 2, 0.5]
        for other in others:
            with suppress(ValidationError, ConfigError):  # not a valid value
                changed = kind.model_validate({**values, name: other})
                if changed != settings:
                    yield f"{name} {other}", changed


def _choices(annotation: Any) -> Iterator[object]:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        yield from arguments
    else:
        yield from (choice for part in arguments for choice in _choices(part))


def _digest(parts: Parts) -> str:
    content = hashlib.sha256()
    for part in parts:
        rows = part.rows
        content.update(f"{part.causal} {rows.input_ids.shape}".encode())
        for array in (rows.input_ids, rows.cu_seqlens, part.positions, part.labels, part.weights):
            if array is not None:
                content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


@torch.no_grad()
def _loss(part: Supervision) -> float:
    return float(summed_loss(small_model(), part))


@cache
def _tokenizer() -> TextTokenizer:
    return train_tokenizer([" ".join(_WORDS)], vocab_size=280)


@cache
def small_vocabulary() -> Vocabulary:
    """Return the vocabulary of the rows that objectives are checked on."""
    tokenizer = _tokenizer()
    specials = frozenset(tokenizer.special_ids.values())
    return Vocabulary(tokenizer.vocab_size, tokenizer.mask_id, specials, tokenizer)


@cache
def small_model() -> PreTrainedModel:
    """Return the model that objectives are checked by."""
    return _new_model(_tokenizer(), _ROW_LENGTH)


def _new_model(tokenizer: TextTokenizer, max_seqlen: int) -> PreTrainedModel:
    config = architecture_config(
        PRESETS["pico"],
        vocab_size=tokenizer.vocab_size,
        max_seqlen=max_seqlen,
        special_ids=tokenizer.special_ids,
    )
    return new_model(config, init_seed=0)


@cache
def _batch(step: int) -> RowBatch:
    """Return rows of short documents, with padding."""
    ids = _tokenizer().special_ids
    draws = uniforms(stream("conformance", 0, step), 3 * _ROWS * (_LONGEST + 1))
    documents: list[np.ndarray] = []
    for lengths, *words in draws.reshape(3 * _ROWS, -1).tolist():
        chosen = [_WORDS[int(draw * len(_WORDS))] for draw in words[: 2 + int(8 * lengths)]]
        tokens = _tokenizer().encode(" ".join(chosen))[: _ROW_LENGTH // 3 - 2]
        documents.append(np.array([ids["bos"], *tokens, ids["eos"]], dtype=np.int64))
    rows = [range(first, end) for first, end in pairwise(range(0, 3 * _ROWS + 1, 3))]
    packed = lay_out(documents, rows, row_length=_ROW_LENGTH, pad_id=ids["pad"])
    pieces = tuple(
        Piece(0, 3 * _ROWS * step + number, 0, len(document) - 2)
        for number, document in enumerate(documents)
    )
    return RowBatch(packed, pieces, packed.spans + np.array([1, -1]))


def _other_texts(batch: RowBatch) -> RowBatch:
    """Return rows of other documents, of the same lengths."""
    input_ids = batch.packed.input_ids.copy()
    for start, end in batch.texts:
        input_ids.reshape(-1)[start:end] = input_ids.reshape(-1)[start:end][::-1]
    pieces = tuple(
        replace(piece, epoch=piece.epoch + 1, document=piece.document + 1) for piece in batch.pieces
    )
    return replace(batch, packed=replace(batch.packed, input_ids=input_ids), pieces=pieces)


if __name__ == "__main__":
    serve(load_trial)
