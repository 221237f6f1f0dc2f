"""Study files: arms, tasks, and the grid of fine-tunings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from biphasic.config import Config, nearest
from biphasic.data.pydocs import LIBRARIES, STANDARD_LIBRARY
from biphasic.errors import ConfigError
from biphasic.model.presets import Architecture, PresetName
from biphasic.objectives.phases import Phase
from biphasic.records import Convention
from biphasic.tasks.builtin import BUILTIN_TASKS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.lr import LearningRateConfig, check_learning_rate
from biphasic.training.optimizer import Precision
from biphasic.training.recipe import OptimizerConfig, Recipe, Seeds

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,79}$")]


class CorpusConfig(Config):
    """Text to pretrain on."""

    source: Literal["builtin:pydocs"] = "builtin:pydocs"
    """`builtin:pydocs`: the documentation that every installation already has."""
    libraries: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Which libraries' documentation to read; all that are installed when not given."""
    vocab_size: Annotated[int, Field(ge=300, le=1 << 17)] | None = None
    """Entries of the byte-level BPE vocabulary, trained on the training split; 8,192 by default."""
    tokenizer: Path | None = None
    """Folder of a tokenizer in Hugging Face's format, to use instead of training one."""

    @model_validator(mode="after")
    def _consistent(self) -> CorpusConfig:
        known = {*LIBRARIES, STANDARD_LIBRARY}
        for library in self.libraries or ():
            if library not in known:
                raise ValueError(f"unknown library '{library}'{nearest(library, known)}")
        if self.tokenizer and self.vocab_size:
            raise ValueError("give a tokenizer, or the vocab_size of one to train, not both")
        return self


class RecipeConfig(Config):
    """What all arms of a study share; see `Recipe`."""

    model: PresetName | Architecture = "nano"
    """A preset's name, or dimensions."""
    max_seqlen: PositiveInt = 256
    """Capacity of a row, and longest sequence of the model, in tokens."""
    rows_per_step: PositiveInt = 8
    """Rows of the global batch."""
    learning_rate: LearningRateConfig
    """Schedule over all phases together."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW's constants."""
    precision: Precision = "bf16"
    """Of the computation; weights are kept in fp32 either way."""
    seeds: Seeds = Seeds()
    """One per stream."""


class ArmConfig(Config):
    """One way to pretrain."""

    name: Name
    """Short name, used in files."""
    label: str = ""
    """What reports call it; the name when not given."""
    phases: tuple[Phase, ...] = ()
    """Objectives in order; none is the untrained encoder, the floor of every comparison."""

    @property
    def family(self) -> str:
        """Objectives in order, without repeats: `CLM`, `MLM`, `CLM+MLM`, ... or `none`."""
        names = [phase.objective.upper() for phase in self.phases]
        kept = [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
        return "+".join(kept) or "none"


class TaskConfig(Config):
    """One task, and where its protocol departs from the study's."""

    name: str
    """A built-in task: `pydocs-sc`, `pydocs-tc`, `pydocs-qa` or `pydocs-ir`."""
    protocol: dict[str, Any] = Field(default_factory=dict)
    """Settings of `finetuning.protocol` that differ for this task."""

    @model_validator(mode="after")
    def _known_task(self) -> TaskConfig:
        if self.name not in BUILTIN_TASKS:
            raise ValueError(f"unknown task '{self.name}'{nearest(self.name, BUILTIN_TASKS)}")
        return self


class FinetuningConfig(Config):
    """The grid of fine-tunings per state and task."""

    learning_rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (
        1e-5,
        2e-5,
        5e-5,
        1e-4,
        2e-4,
        5e-4,
    )
    """Peak rates; the best on validation is chosen for each seed."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0, 1, 2, 3, 4)
    """Seeds of heads and batch order."""
    protocol: FinetuneProtocol = FinetuneProtocol()
    """All other constants."""


class StudyConfig(Config):
    """A controlled comparison: arms times tasks times learning rates times seeds."""

    name: Name
    """Names the study's folder."""
    title: str
    """Heads the report."""
    description: str = ""
    """A paragraph for the report."""
    corpus: CorpusConfig = CorpusConfig()
    """Text to pretrain on."""
    recipe: RecipeConfig
    """What all arms share."""
    arms: Annotated[tuple[ArmConfig, ...], Field(min_length=1)]
    """Ways to pretrain."""
    tasks: tuple[TaskConfig, ...] = ()
    """What encoders are judged by."""
    finetuning: FinetuningConfig = FinetuningConfig()
    """The grid per arm and task."""
    convention: Convention = "standard"
    """How intervals are computed: `standard` (Student t) or `paper` (1.96 standard errors)."""
    checkpoint_every: NonNegativeInt = 200
    """Updates between checkpoints of a run in progress; 0 for none."""
    heldout_every: NonNegativeInt = 100
    """Updates between held-out evaluations; 0 for the last only."""

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        _refuse_repeats("arms", [arm.name for arm in self.arms])
        _refuse_repeats("tasks", [task.name for task in self.tasks])
        _refuse_repeats("finetuning.learning_rates", list(self.finetuning.learning_rates))
        _refuse_repeats("finetuning.seeds", list(self.finetuning.seeds))
        for arm in self.arms:
            self._check_schedule(arm)
        for task in self.tasks:
            self.protocol_of(task)
        return self

    def _check_schedule(self, arm: ArmConfig) -> None:
        # Here, so that it is known before any data are made.
        steps = sum(phase.steps for phase in arm.phases)
        try:
            if steps:
                check_learning_rate(self.recipe.learning_rate, total_steps=steps)
        except ConfigError as error:
            raise ValueError(f"arm '{arm.name}': {error}") from None

    def recipe_of(self, arm: ArmConfig) -> Recipe:
        """Return an arm's recipe."""
        return Recipe(
            phases=arm.phases,
            **{name: getattr(self.recipe, name) for name in RecipeConfig.model_fields},
        )

    def protocol_of(self, task: TaskConfig) -> FinetuneProtocol:
        """Return a task's protocol; inputs may be as long as the model's, unless limited."""
        shared = self.finetuning.protocol
        settings = {**shared.model_dump(), **task.protocol}
        if "max_seqlen" not in shared.model_fields_set | task.protocol.keys():
            settings["max_seqlen"] = self.recipe.max_seqlen
        for name in task.protocol:
            if name not in FinetuneProtocol.model_fields:
                known = nearest(name, FinetuneProtocol.model_fields)
                raise ValueError(f"task '{task.name}': unknown protocol setting '{name}'{known}")
        protocol = FinetuneProtocol.model_validate(settings)
        if protocol.max_seqlen > self.recipe.max_seqlen:
            raise ValueError(
                f"task '{task.name}': protocol.max_seqlen {protocol.max_seqlen} exceeds the "
                f"model's {self.recipe.max_seqlen} (recipe.max_seqlen)"
            )
        return protocol


def _refuse_repeats(where: str, values: list[Any]) -> None:
    repeated = sorted({str(value) for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"{where}: {', '.join(repeated)} given more than once")
