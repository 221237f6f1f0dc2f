"""The fine-tunings, floors and references of a plan: shared trainings, identities of results."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from biphasic.data.packing import Attention
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.facts import RANDOM_VECTORS, facts_to_record
from biphasic.files import digest, remove_partials
from biphasic.locks import lock_work
from biphasic.numerics import running_code
from biphasic.objectives.contrastive import PairObjective
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.plugins import code_of
from biphasic.records import ZERO_SHOT_SEED, ResultRecord
from biphasic.store import RESULT, Store
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs import FinetuneJob, GridRun, ScoredTask, TaskInput, due_runs
from biphasic.study.settings.study import FinetuningConfig
from biphasic.tasks.baselines import BASELINES_VERSION, DRAWS, TRAINED, Setting
from biphasic.tasks.folder import load_task, read_description
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FINETUNING_VERSION, FinetuneProtocol


@dataclass(frozen=True)
class FinetuneGroup:
    """All fine-tunings of one state on one task."""

    training_id: str  # Identity of state and training, which all grids share.
    state: str
    # The tasks that are scored after each fine-tuning; they share a training.
    evaluations: tuple[PlannedTask, ...]
    grid: tuple[tuple[float, int], ...]  # Learning rates and seeds.
    label: str  # Name in progress displays.
    store: Path  # Its results decide which runs beyond the grid are due.
    # Rates and seeds beyond the grid, which are due while validation chooses an end.
    beyond: tuple[tuple[float, int], ...] = ()

    @property
    def training(self) -> PlannedTask:
        """The task that is trained on."""
        return self.evaluations[0].training

    @cached_property
    def id(self) -> str:
        """Identity of its job: studies with other tasks or another grid have jobs of their own."""
        tasks = [_run_determinants(self.state, task) for task in self.evaluations]
        metrics = [task.info.metric for task in self.evaluations]
        # A metric decides which runs beyond the grid are due.
        more = {"beyond": self.beyond, "metrics": metrics} if self.beyond else {}
        own = digest({"tasks": tasks, "grid": self.grid, **more})
        return f"{self.training_id}-{own[:16]}"

    @property
    def attention(self) -> Attention:
        """How the encoder attends."""
        return self.training.protocol.attention

    @property
    def most(self) -> int:
        """Its runs for each scored task, with all beyond the grid."""
        return len(self.grid) + len(self.beyond)

    @property
    def runs(self) -> Mapping[str, tuple[GridRun, ...]]:
        """The runs that are due, by name of the scored task; all tasks have them in one order."""
        if not self.beyond:
            return self._possible
        # Read from the store at each call: which runs are due changes while results arrive.
        tasks = [(task.info.metric, self._possible[task.info.name]) for task in self.evaluations]
        due = due_runs(tasks, len(self.beyond), self.store)
        return {name: tuple(runs[at] for at in due) for name, runs in self._possible.items()}

    @cached_property
    def _possible(self) -> dict[str, tuple[GridRun, ...]]:
        points = (*self.grid, *self.beyond)
        return {
            task.info.name: tuple(
                GridRun(id=identity, learning_rate=rate, seed=seed)
                for identity, (rate, seed) in zip(self._ids(task), points, strict=True)
            )
            for task in self.evaluations
        }

    def run_ids(self) -> Iterator[str]:
        """Yield the identities of the runs that are due."""
        if not self.beyond:
            return self.possible_ids()
        return (run.id for runs in self.runs.values() for run in runs)

    def possible_ids(self) -> Iterator[str]:
        """Yield the identities of all runs without storing them: plans have millions."""
        for task in self.evaluations:
            yield from self._ids(task)

    def _ids(self, task: PlannedTask) -> Iterator[str]:
        shared = _run_determinants(self.state, task)
        for rate, seed in (*self.grid, *self.beyond):
            yield digest({**shared, "learning_rate": rate, "seed": seed})

    def missing_runs(self) -> list[str]:
        """Return the fine-tunings that are due and have no result."""
        return [id_ for id_ in self.run_ids() if not Store(self.store).has(RESULT, id_)]

    def job(self, *, tokenizer: Path, encoder: Path) -> FinetuneJob:
        """Return the job that runs them."""
        training = self.training
        return FinetuneJob(
            id=self.id,
            # By training, not by job: two jobs that share a training must not train it at the same
            # time.
            lock=self.training_id,
            label=self.label,
            store=self.store,
            beyond=len(self.beyond),
            tokenizer=tokenizer,
            encoder=encoder,
            state=self.state,
            training=TaskInput(**_input(training)),
            evaluations=tuple(
                ScoredTask(**_input(task), runs=self._possible[task.info.name])
                for task in self.evaluations
            ),
        )


def _input(task: PlannedTask) -> dict[str, Any]:
    info = task.info
    return {
        "name": info.name, "folder": task.folder, "metric": info.metric, "protocol": task.protocol,
    }  # fmt: skip


def by_training(tasks: tuple[PlannedTask, ...]) -> list[tuple[PlannedTask, ...]]:
    """Group tasks by the task that encoders are fine-tuned on; a group shares one training."""
    groups: dict[str, list[PlannedTask]] = {}
    for task in tasks:
        groups.setdefault(digest(_training_determinants(task.training)), []).append(task)
    return [tuple(group) for group in groups.values()]


def plan_group(
    state: str,
    evaluations: tuple[PlannedTask, ...],
    finetuning: FinetuningConfig,
    *,
    seeds: Iterable[int],
    name: str,
    store: Path,
) -> FinetuneGroup:
    """Plan the fine-tunings of one state for tasks that share a training."""
    training, rates, seeds = evaluations[0].training, finetuning.learning_rates, [*seeds]
    if training.protocol.is_probe:  # no rate; seeds only choose training examples
        rates = (0.0,)
        seeds = seeds if training.protocol.train_examples else [ZERO_SHOT_SEED]
    grid = [*product(rates, seeds)]
    beyond = [*product(rates_beyond(rates, finetuning.extend), seeds)]
    if not training.is_trained:
        # Nothing is trained: no rate to choose, nothing random.
        grid, beyond = [(0.0, ZERO_SHOT_SEED)], []
    shared = digest(_run_determinants(state, training))
    label = f"{name} on {' + '.join(task.info.name for task in evaluations)}"
    return FinetuneGroup(shared, state, evaluations, tuple(grid), label, store, tuple(beyond))


def rates_beyond(rates: Iterable[float], number: int) -> list[float]:
    """Return `number` rates beyond each end of a grid, in the ratio of its two outermost rates."""
    inorder = sorted(rates)
    if len(inorder) < 2:  # of probes, which have no rate
        return []
    # Six digits, as rates are shown: 5e-6, not 5.000000000000001e-6.
    return [
        float(f"{end * (end / inner) ** step:.5e}")
        # The two lowest rates and the two highest, the outermost first.
        for end, inner in (inorder[:2], inorder[:-3:-1])
        for step in range(1, number + 1)
    ]


def check_lengths(
    tasks: Iterable[tuple[str, str | None, FinetuneProtocol]],
    tokenizer: TextTokenizer,
    *,
    positions: int | None = None,
    layers: int | None = None,
) -> None:
    """Check that `max_seqlen` is long enough for each task, and within the model's limits."""
    problems: list[str] = []
    for name, kind, protocol in tasks:
        if positions is not None and protocol.max_seqlen > positions:
            problems.append(
                f"task '{name}': max_seqlen {protocol.max_seqlen} exceeds the model's {positions} "
                f"positions; set max_seqlen={positions} or less"
            )
        elif isinstance(protocol.layer, int) and layers is not None and protocol.layer > layers:
            problems.append(
                f"task '{name}': layer: {protocol.layer}: the encoder has {layers} layers"
            )
        elif kind is not None:
            facts, learner = KINDS[kind].facts, KINDS[kind].learner
            if protocol.is_probe and facts.is_trained and not learner.is_probed():
                known = ", ".join(e.name for e in KINDS.values() if e.learner.is_probed())
                problems.append(
                    f"task '{name}': train: head is for tasks of kind {known}, not '{kind}'"
                )
            try:
                learner.check_protocol(tokenizer, protocol=protocol)
            except ConfigError as error:
                problems.append(f"task '{name}': {error}")
    if problems:
        raise ConfigError("; ".join(dict.fromkeys(problems)))


def other_reading(encoder: Path, task: PlannedTask, *, setting: str) -> str:
    """Say how an embedding model was trained, if a task without training reads it otherwise."""
    if not _compares_vectors(task):
        return ""
    from biphasic.tasks.embedding import prompts_of, trained_reading  # noqa: PLC0415 - loads torch

    try:
        trained = trained_reading(encoder)
    except ModelError as error:
        return str(error)
    if trained is None:
        return ""
    attention = "causal" if trained.causal else "bidirectional"
    notes = _other_settings(task, trained.pooling, attention, setting=setting)
    compared = _other_similarity(trained.similarity)
    return "; ".join([*notes, *compared, *_unread_prompts(task, prompts_of(encoder))])


def other_reading_of_phase(phase: ObjectiveConfig, task: PlannedTask) -> str:
    """Say how a model's last phase trains its vectors, if a task reads them otherwise."""
    if not isinstance(phase, PairObjective) or not _compares_vectors(task):
        return ""
    prompts = {"query": phase.query_prompt, "document": phase.document_prompt}
    notes = _other_settings(task, phase.pooling, phase.attention, setting="protocol.")
    compared = _other_similarity(getattr(phase, "similarity", "cosine"))
    return "; ".join([*notes, *compared, *_unread_prompts(task, prompts)])


def _compares_vectors(task: PlannedTask) -> bool:
    """Return whether a task compares an encoder's vectors as they are."""
    return not task.is_trained and KINDS[task.info.kind].facts.is_cosine


def _other_settings(
    task: PlannedTask, pooling: str, attention: str, *, setting: str
) -> Iterator[str]:
    usual = {"pooling": pooling, "attention": attention}
    other = [f"{key}={own}" for key, own in usual.items() if getattr(task.protocol, key) != own]
    if other:
        sets = " ".join(f"{setting}{each}" for each in other)
        was = f"the model's vectors were trained with {' and '.join(other)}"
        yield f"{was}; use {sets} to score them the same way"


def _other_similarity(similarity: str) -> Iterator[str]:
    if similarity != "cosine":
        yield f"the task compares vectors by their cosine, and the model by '{similarity}'"


def _unread_prompts(task: PlannedTask, prompts: Mapping[str, str]) -> Iterator[str]:
    """Say which prompts of an embedding model are not in the templates of a retrieval task."""
    kind, unread = KINDS[task.info.kind].examples, list[str]()
    if task.is_read and "query_template" in kind.settings:
        description = read_description(task.folder)
        for role, prompt in prompts.items():
            name = f"{role}_template"
            usual: str = getattr(kind, name, "")
            if prompt and usual and not (getattr(description, name) or usual).startswith(prompt):
                # As JSON, which YAML reads as well, whatever line breaks and quotes a prompt has.
                unread.append(f"{name}: {json.dumps(prompt + usual, ensure_ascii=False)}")
    if unread:
        lines = ", ".join(unread)
        yield f"the task does not read the model's prompts; set them in a task file: {lines}"


def _training_determinants(task: PlannedTask) -> dict[str, Any]:
    """Return everything that determines fine-tuning on a task, except rate and seed."""
    return {**task_determinants(task), "protocol": task.determinants}


def task_determinants(task: PlannedTask) -> dict[str, Any]:
    """Return what identifies a task: its name, its data and the code of a plugin."""
    code = code_of(KINDS[task.info.kind])
    return {"task": task.info.name, "task_sha256": task.info.sha256, **code}


def _run_determinants(state: str, task: PlannedTask) -> dict[str, Any]:
    """Return everything that determines the scores of a state on a task, except rate and seed."""
    shared = {"finetuning_version": FINETUNING_VERSION, "state": state}
    # The rest of a protocol decides only how a model is trained, so tasks that are merely scored
    # have identities without it.
    if task.trainer is None and task.is_trained:
        return {**shared, **_training_determinants(task)}
    scored = {
        **task_determinants(task),
        "protocol": task.protocol.scoring_determinants(is_zero_shot=not task.is_trained),
    }
    if task.trainer is not None:
        scored["trained_on"] = _training_determinants(task.trainer)
    return {**shared, **scored}


@dataclass(frozen=True)
class Vectors:
    """The width and the tokenizer of random vectors."""

    width: int
    tokenizer: str  # Hash of the study's tokenizer, or identity of the finished encoder.
    encoder: Path | None = None  # Folder of the finished encoder, whose tokenizer it is.


@dataclass(frozen=True)
class PlannedBaseline:
    """One result of a baseline on a task."""

    baseline: str  # As its kind of task names it.
    name: str  # In the study, which may have random vectors of several widths.
    task: PlannedTask
    seed: int  # Of random vectors, or of the training examples that are read.
    vectors: Vectors | None = None

    @cached_property
    def id(self) -> str:
        """Identity of its result."""
        trainer, drawn = self.task.trainer, self.task.training.protocol.train_examples
        identity: dict[str, Any] = {
            "baseline": self.baseline,
            "version": BASELINES_VERSION,
            **task_determinants(self.task),
            "protocol": self.task.protocol.scoring_determinants(is_zero_shot=False),
            "seed": self.seed,
        }
        identity |= self._vectors
        if self.baseline in TRAINED:
            identity |= {"train_examples": drawn, "trained_on": trainer and trainer.info.sha256}
        return digest(identity)

    @property
    def _vectors(self) -> dict[str, str | int]:
        one = self.vectors
        return {"width": one.width, "tokenizer": one.tokenizer} if one else {}

    def compute(self, store: Path, tokenizer: Path) -> None:
        """Write its result; `tokenizer` is the study's."""
        from biphasic.tasks.finetune import (  # noqa: PLC0415 - loads torch
            RESULT_FORMAT,
            read_items,
            with_clusters,
            write_result,
        )

        started, kind = time.perf_counter(), KINDS[self.task.info.kind]
        task: Any = load_task(self.task.folder)
        protocol = self.task.protocol
        if self.baseline in TRAINED:
            of_trainer: Any = load_task(self.task.training.folder)
            train = of_trainer.splits["train"]
            chosen = read_items(
                np.arange(len(train)),
                num_examples=self.task.training.protocol.train_examples,
                finetune_seed=self.seed,
            )
            task = replace(task, splits={**task.splits, "train": [train[i] for i in chosen]})
        setting = Setting(protocol)
        if self.vectors:
            loaded = TextTokenizer.load(self.vectors.encoder or tokenizer)
            setting = Setting(protocol, loaded, self.vectors.width, self.seed)
        predicted = kind.baselines[self.baseline](task, setting)
        scores = {split: kind.learner.score(task, split, of) for split, of in predicted.items()}
        scores = with_clusters(scores, task.info.clusters)
        record = ResultRecord(
            format=RESULT_FORMAT,
            id=self.id,
            state="",
            baseline={"name": self.baseline} | self._vectors,
            task=self.task.info.name,
            kind=self.task.info.kind,
            metric=self.task.info.metric,
            examples_sha256=digest([self.task.info.sha256, self.task.training.info.sha256]),
            learning_rate=0.0,
            seed=self.seed,
            status="finished",
            steps=0,
            validation=scores["validation"].metrics if "validation" in scores else None,
            test=scores["test"].metrics,
            by_type={split: of.by_type for split, of in scores.items() if of.by_type},
            seconds=time.perf_counter() - started,
            code=running_code("finetuning"),
            about=facts_to_record(self.task.info.kind, kind.facts),
        )
        remove_partials(store / RESULT.place, self.id)
        write_result(Store(store).folder(RESULT, self.id), record, scores)


def plan_baselines(
    tasks: Sequence[PlannedTask], vectors: Mapping[str, Vectors | None], seeds: Collection[int]
) -> Iterator[PlannedBaseline]:
    """Yield the baselines of tasks; `vectors` are by arm, `seeds` those of the fine-tunings."""
    # Arms of one width and tokenizer share their vectors, which the first of them names.
    # Reversed, as the last one set wins: the first arm shall give the name.
    first = {one: arm for arm, one in reversed([*vectors.items()]) if one}
    named = {
        RANDOM_VECTORS if len(first) == 1 else f"{RANDOM_VECTORS}:{arm}": one
        for one, arm in reversed(first.items())
    }
    for task in tasks:
        if not task.is_read:
            continue
        is_drawn = task.training.protocol.train_examples is not None
        kind = KINDS[task.info.kind]
        # A plugin that inherits from one of our kinds may have other metrics.
        has_own = kind.plugin is None or "baselines" in vars(type(kind))
        for baseline in kind.baselines if has_own else ():
            if baseline == RANDOM_VECTORS:
                for name, one in named.items():
                    # Several draws, as one table of random vectors may be lucky.
                    for draw in range(DRAWS):
                        yield PlannedBaseline(baseline, name, task, draw, one)
            else:
                # Floors that learn read the same drawn examples as the encoders that they are
                # compared with.
                own = seeds if is_drawn and baseline in TRAINED else (ZERO_SHOT_SEED,)
                for seed in own:
                    yield PlannedBaseline(baseline, baseline, task, seed)


def compute_baselines(planned: Sequence[PlannedBaseline], store: Path, tokenizer: Path) -> None:
    """Compute the missing results; another process may compute them meanwhile."""
    for one in planned:
        with lock_work(store, one.id, wait=f"computing {one.name}"):
            if not Store(store).has(RESULT, one.id):
                one.compute(store, tokenizer)
