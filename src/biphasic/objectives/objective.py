"""The interface of objectives; each is implemented in its own file."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from biphasic.config import Config
from biphasic.data.pairs import PairReading
from biphasic.data.rows import RowBatch
from biphasic.data.text.source import with_contents
from biphasic.errors import ConfigError
from biphasic.facts import LOSS_UNITS
from biphasic.objectives.supervision import Supervision, Vocabulary, problems
from biphasic.plugins import Plugin, code_of, short_name

if TYPE_CHECKING:
    from biphasic.data.pairs import Pairs

_SHORT = {"heldout_fraction": "held"}  # names of arms have at most 80 characters


class ObjectiveConfig(Config):
    """A training objective on rows; those of ours and plugins alike."""

    plugin: ClassVar[Plugin | None] = None  # set by biphasic; None for our own
    # Unit of a plugin's loss, such as "nats per token"; ours are in `LOSS_UNITS`.
    loss_unit: ClassVar[str] = ""
    objective: str
    """Its name, or what names a plugin."""

    @property
    def short_name(self) -> str:
        """Its name in tables: that of a plugin has no file and no hash."""
        return short_name(self.objective)

    @property
    def unit_of_loss(self) -> str:
        """Unit of its loss; empty if its class does not say."""
        return self.loss_unit or LOSS_UNITS.get(self.short_name, "")

    @property
    def name_in_arms(self) -> str:
        """Its name in automatic names of arms, with the settings that are not the usual ones."""
        names = [self.short_name]
        settings = self.own_settings()
        for key in self.own_settings(exclude_defaults=True):
            value = getattr(self, key)
            # A folder by its name alone, as its path is another on each machine.
            names.append(
                value.name
                if isinstance(value, Path)
                else f"{_SHORT.get(key, key.replace('_', ''))}{settings[key]}"
            )
        return ".".join(names)

    @property
    @abstractmethod
    def directions(self) -> frozenset[bool]:
        """The causal flags that it trains with; the model must support each."""

    @property
    def label_share(self) -> float:
        """Expected labels per token, with which cost and memory are estimated."""
        return 1.0

    @property
    def most_labels(self) -> float:
        """Most labels per token in a step of a phase; most objectives never change."""
        return self.label_share

    @property
    def mask_rate(self) -> float | None:
        """The probability of masking a token, which tables show; most mask none."""
        return None

    @property
    def turns(self) -> tuple[ObjectiveConfig, ...]:
        """The objectives of single steps, with the most labels that they have; most are one."""
        return (self,)

    @property
    def parts(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """The objectives of one step, with their shares of its rows; most are one."""
        return ((1.0, self),)

    @property
    def heldout_weights(self) -> dict[str, float]:
        """Weights of the held-out losses by which its learning rate is tuned; most have none."""
        return {}

    @property
    def heldout_measures(self) -> dict[str, tuple[ObjectiveConfig, int]]:
        """Its own held-out losses by name, beside those of CLM and MLM; most add none.

        Each is the loss of an objective, averaged over a number of maskings of the same text.
        """
        return {}

    @property
    def predicts_specials(self) -> bool:
        """True if labels may be BOS or EOS, or inputs may hide them; most leave them alone."""
        return False

    @property
    def needs_head(self) -> bool:
        """True if the model must have a language-model head; a loss over states needs none."""
        return True

    @property
    def reading(self) -> PairReading | None:
        """The pairs of texts that it reads in place of a corpus; most read none."""
        return None

    def at(self, step: int, *, num_steps: int) -> ObjectiveConfig:
        """Return the objective at one step of a phase; most never change.

        Steps of the phase are counted from 0.
        """
        return self

    def check(self, *, num_steps: int, rows_per_step: int) -> None:
        """Check that the objective can be trained in a phase of this size; most accept any.

        Raises:
            ConfigError: It cannot; the message states what would work.
        """

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Check that the objective supports the vocabulary; most support any.

        Raises:
            ConfigError: It does not.
        """

    def check_pairs(self, pairs: Pairs, *, width: int) -> None:
        """Check that the objective can be trained on its pairs, by a model with vectors of `width`.

        Raises:
            ConfigError: It cannot; the message states what would work.
        """

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return everything that determines inputs and labels of a step, given the rows.

        By default, all settings and the seed of masks. Leave out what determines nothing, such as
        the seed of an objective that draws nothing: runs that differ in it then share their states.
        """
        return {"name": self.short_name, **self.own_settings(), "mask_seed": mask_seed}

    def own_settings(self, *, exclude_defaults: bool = False) -> dict[str, Any]:
        """Return the settings of the objective itself, without its name and those of a phase."""
        owners = [kind for kind in type(self).__mro__ if issubclass(kind, ObjectiveConfig)]
        own = {name for kind in owners for name in inspect.get_annotations(kind)} - {"objective"}
        return self.model_dump(mode="json", include=own, exclude_defaults=exclude_defaults)

    def identity(self, mask_seed: int) -> dict[str, Any]:
        """Return what is hashed: the determinants, with contents of paths, and a plugin's code."""
        return {**with_contents(self.determinants(mask_seed), self), **code_of(self)}

    @abstractmethod
    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Make inputs and labels of rows, in one part or in several that attend differently.

        The losses of all parts are summed and divided once by the number of all labels. A step
        without labels makes no update.

        Raises:
            DataError: The rows contain nothing to learn from, and the run has to end.
        """

    def checked_parts(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Return what `supervise` makes, if the model can be trained on it.

        Raises:
            ConfigError: It cannot; the message names the rule of docs/plugins.md that is broken.
        """
        parts = self.supervise(batch, vocabulary, mask_seed=mask_seed)
        for rule, problem in problems(parts, batch, vocabulary, self.directions):
            raise ConfigError(f"breaks the rule '{rule}': {problem}", about=self.short_name)
        return parts
