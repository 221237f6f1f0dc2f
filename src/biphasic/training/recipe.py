"""Recipes: model, phases, schedule and seeds of one training run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from biphasic.config import Config
from biphasic.data.building.config import CorpusConfig, phase_corpus
from biphasic.data.rows import RowKind, check_shapes
from biphasic.errors import ConfigError
from biphasic.files import expanded, is_folder
from biphasic.model.shape import PRESETS, Architecture, PresetName
from biphasic.objectives.lr import LearningRateConfig
from biphasic.objectives.phases import MOST_TOKENS, Phase
from biphasic.plugins import anchored_fields
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.registry import AnyOptimizer
from biphasic.training.timeline import PlacedPhase, check_phases, check_step_size, place_phases

SkippedSteps = Annotated[
    tuple[NonNegativeInt, ...],
    AfterValidator(lambda steps: tuple(sorted(set(steps)))),
    # Records of runs that skip nothing stay as they were before this setting.
    Field(exclude_if=lambda steps: not steps),
]  # steps that are skipped; not written if there are none
# Not written if it is the default, so earlier records stay as they were.
Rows = Annotated[RowKind, Field(exclude_if=lambda rows: rows == "documents")]
Precision = Literal["bf16", "fp32"]  # compute precision; weights are kept in fp32
FinetunePrecision = Literal["bf16", "fp32", "paper"]  # `paper`: bf16 without fp32 master weights


class PretrainedModel(Config):
    """A pretrained model to start from: any decoder or encoder that transformers loads."""

    pretrained: Annotated[str, Field(min_length=1)]
    """Folder or hub id; folders of states work too."""
    revision: str | None = None
    """Branch, tag or commit on the hub; by default the newest."""

    def anchored(self, folder: Path) -> PretrainedModel:
        """Return the model with a relative path resolved against a folder, if it exists there."""
        local = folder / expanded(self.pretrained)
        return self.model_copy(update={"pretrained": str(local)}) if is_folder(local) else self


class Seeds(Config):
    """One seed per stream of random numbers."""

    init_seed: NonNegativeInt = 0
    """Initial weights."""
    data_seed: NonNegativeInt = 0
    """Order of documents and rows."""
    mask_seed: NonNegativeInt = 0
    """Selection of masked tokens."""


class RecipeSettings(Config):
    """The settings of a recipe without its phases, which the arms of a study share."""

    model: PresetName | Architecture | PretrainedModel
    """A preset's name, dimensions, or a pretrained model."""
    learning_rate: LearningRateConfig
    """Schedule over all phases, until one starts its own schedule."""
    max_seqlen: Annotated[int, Field(gt=0, le=MOST_TOKENS)] = 256
    """Maximum length of a row, and of a new model's sequences, in tokens."""
    rows_per_step: PositiveInt = 8
    """Rows per global batch."""
    rows: Rows = "documents"
    """`documents`: whole documents, or chunks of long ones, kept apart. `random_length`: documents
    as one text, cut into two sequences of random lengths per row, as in the study."""
    optimizer: AnyOptimizer = AdamW()
    """Optimizer of all phases."""
    precision: Precision = "bf16"
    """Compute precision; weights are always kept in fp32."""
    seeds: Seeds = Seeds()
    """One seed per stream of random numbers."""
    skip_steps: SkippedSteps = ()
    """Steps, counted from 0, whose rows are read without an update, because the loss or gradient is
    not finite."""

    def anchored(self, folder: Path) -> Self:
        """Return the settings with relative paths resolved against their file's folder."""
        return anchored_fields(self, folder)


class Recipe(RecipeSettings):
    """One training run, from random weights or a pretrained model."""

    phases: tuple[Phase, ...] = ()
    """Phases in order; without any, the model stays in its initial state."""

    @property
    def architecture(self) -> Architecture | None:
        """Dimensions of a new model; None for a pretrained model."""
        if isinstance(self.model, str):
            return PRESETS[self.model]
        return self.model if isinstance(self.model, Architecture) else None

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def placed_phases(self) -> tuple[PlacedPhase, ...]:
        """The phases with their positions in the run."""
        return place_phases(
            self.phases,
            self.learning_rate,
            max_seqlen=self.max_seqlen,
            rows_per_step=self.rows_per_step,
        )

    def phase_at(self, step: int) -> PlacedPhase:
        """Return the phase of update `step`."""
        return next(placed for placed in self.placed_phases if step < placed.end)

    @property
    def lora_borders(self) -> list[int]:
        """Steps at which LoRA begins or ends; segments do not reach over them."""
        return [placed.start for placed in self.placed_phases if placed.at_lora_border]

    def check(self) -> None:
        """Raise an error if settings are invalid together, for any data."""
        check_step_size(self.rows_per_step, max_seqlen=self.max_seqlen)  # also of held-out losses
        check_phases(self.placed_phases)
        on_text = (placed for placed in self.placed_phases if placed.phase.reading is None)
        check_shapes((placed.batches for placed in on_text), self.rows)
        for step in self.skip_steps:
            if self.phases and not 0 <= step < self.total_steps:
                raise ConfigError(
                    f"skip_steps: no step {step}; steps are 0 to {self.total_steps - 1}"
                )

    def on(self, corpus: CorpusConfig) -> Recipe:
        """Return the recipe on a corpus, with all settings of the corpora of its phases."""
        phases = list(self.phases)
        for index, phase in enumerate(phases):
            if isinstance(phase.corpus, CorpusConfig):
                whole = phase_corpus(phase.corpus, corpus, where=f"phases.{index}.corpus")
                phases[index] = phase.model_copy(update={"corpus": whole})
        return self.model_copy(update={"phases": tuple(phases)})

    def check_beginning(self) -> None:
        """Raise an error if random weights never train; estimates are of dimensions alone."""
        if self.phases and self.phases[0].lora and self.architecture:
            raise ConfigError(
                "phases.0.lora: the weights are random, and would stay so; train them in a phase "
                "before, or begin with a pretrained model"
            )

    def skipping(self, steps: Iterable[int]) -> Recipe:
        """Return the recipe with further steps to skip."""
        skipped = tuple(sorted({*self.skip_steps, *steps}))
        return self.model_copy(update={"skip_steps": skipped})
