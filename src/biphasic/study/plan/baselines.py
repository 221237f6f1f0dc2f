"""The floors and references of a plan: what names each result, and computing the missing ones."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.facts import RANDOM_VECTORS, facts_to_record
from biphasic.files import digest, read_json_object, remove_partials
from biphasic.locks import lock_work
from biphasic.model.loading.hub import LocalModel
from biphasic.numerics import running_code
from biphasic.records import ZERO_SHOT_SEED, ResultRecord
from biphasic.store import RESULT, is_complete, result_folder
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.finetuning import task_determinants
from biphasic.tasks.baselines import BASELINES_VERSION, DRAWS, TRAINED, Setting
from biphasic.tasks.folder import load_task
from biphasic.tasks.kinds.registry import KINDS

if TYPE_CHECKING:
    from biphasic.study.plan.plan import PlannedArm


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
        if self.vectors:
            identity |= {"width": self.vectors.width, "tokenizer": self.vectors.tokenizer}
        if self.baseline in TRAINED:
            identity |= {"train_examples": drawn, "trained_on": trainer and trainer.info.sha256}
        return digest(identity)

    def compute(self, store: Path, tokenizer: Path) -> None:
        """Write its result; `tokenizer` is the study's."""
        from biphasic.tasks.finetune import (  # noqa: PLC0415 - loads torch
            RESULT_FORMAT,
            read_items,
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
        record = ResultRecord(
            format=RESULT_FORMAT,
            id=self.id,
            state="",
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
        write_result(result_folder(store, self.id), record, scores)


def plan_baselines(
    tasks: Sequence[PlannedTask], vectors: Mapping[str, Vectors | None], seeds: Collection[int]
) -> Iterator[PlannedBaseline]:
    """Yield the baselines of tasks; `vectors` are by arm, `seeds` those of the fine-tunings."""
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
                    for draw in range(DRAWS):
                        yield PlannedBaseline(baseline, name, task, draw, one)
            else:
                own = seeds if is_drawn and baseline in TRAINED else (ZERO_SHOT_SEED,)
                for seed in own:
                    yield PlannedBaseline(baseline, baseline, task, seed)


def compute_baselines(planned: Sequence[PlannedBaseline], store: Path, tokenizer: Path) -> None:
    """Compute the missing results; another process may compute them meanwhile."""
    for one in planned:
        with lock_work(store, one.id, wait=f"computing {one.name}"):
            if not is_complete(result_folder(store, one.id)):
                one.compute(store, tokenizer)


def vectors_of(arm: PlannedArm) -> Vectors | None:
    """Return the width of an arm and its tokenizer; None if its model is not here."""
    if arm.encoder:
        return vectors_of_encoder(arm.encoder)
    architecture, model = arm.recipe.architecture, arm.recipe.model
    pretrained = Path(getattr(model, "pretrained", ""))
    width = architecture.hidden_size if architecture else _width(pretrained)
    return Vectors(width, arm.lineage.fingerprint.tokenizer_sha256) if width else None


def vectors_of_encoder(encoder: LocalModel) -> Vectors | None:
    """Return the width of a finished encoder and its tokenizer."""
    width = _width(encoder.folder)
    return Vectors(width, encoder.identity, encoder.folder) if width else None


def _width(folder: Path) -> int | None:
    """Return the width of hidden states that a folder's `config.json` states."""
    config = folder / "config.json"
    settings = read_json_object(config) if config.is_file() else {}
    names = ("hidden_size", "n_embd", "d_model", "dim")
    return next((settings[name] for name in names if isinstance(settings.get(name), int)), None)
