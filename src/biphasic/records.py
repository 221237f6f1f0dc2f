"""Schemas of the records that a study writes, and their validation.

Unknown fields are ignored, so older versions can read records of newer ones. A change of meaning
gets a new `format`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import not_
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from biphasic.amounts import level_within
from biphasic.errors import REPAIR, BiphasicError, DataError, reading, refuse_newer
from biphasic.facts import LOSS_UNITS, KindFacts, facts_of

RecordT = TypeVar("RecordT", bound="Record")
Convention = Literal["standard", "paper"]
STUDY = "study.json"  # File with the arms, tasks and runs of a study, in its folder.
PRETRAINING = "pretraining"  # Name of held-out losses in tables, next to the names of tasks.
ZERO_SHOT_SEED = 0  # Seed of the single run of a zero-shot task, which has no randomness.
FEW_HELDOUT = 20  # Held-out losses on fewer documents are not representative.
# When a field is written.
_UNLESS_EMPTY: Any = Field(exclude_if=not_)
_UNLESS_NONE: Any = Field(exclude_if=lambda value: value is None)


# What the seeds of a pretraining run decide.
SEED_STREAMS = {"data_seed": "order of rows", "init_seed": "initial weights", "mask_seed": "masks"}


def fixed_streams(runs: Iterable[Sequence[int]]) -> list[str]:
    """Return what pretraining runs have in common; their seeds are in the order of the streams."""
    seeds = zip(*runs, strict=True)
    return [name for name, of in zip(SEED_STREAMS.values(), seeds, strict=False) if len({*of}) == 1]


class Record(BaseModel):
    """A frozen record whose numbers are all finite."""

    # Validators are built on first use: most commands read few kinds of records.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class PhaseRecord(Record):
    """A phase of an arm, up to the arm's step."""

    objective: str  # Its name: `clm`, `mlm`, `mntp`, `alternate`, `mix`.
    steps: NonNegativeInt
    # Share of masked tokens at its beginning; None if it does not mask.
    mask_rate: float | None = None
    final_mask_rate: float | None = None  # Share of masked tokens at its end, if the share changes.
    # Number of steps by objective; several objectives if they alternate.
    steps_by_objective: dict[str, NonNegativeInt] = {}
    # Its other settings that are not the default.
    settings: Annotated[dict[str, Any], _UNLESS_EMPTY] = {}


class ArmRecord(Record):
    """One evaluated state of a study, and how it was trained.

    Old files lack the fields after `segments`.
    """

    name: str
    label: str
    family: str  # Objectives in order: CLM, MLM, CLM+MLM, or none for the untrained encoder.
    state: str
    steps: NonNegativeInt
    # States at the end of each training segment, from step 0 on; arms share the first ones.
    segments: tuple[str, ...] = ()
    arm: str | None = None  # Name of the arm.
    is_final: bool = True  # Whether this is the end of the arm, not an intermediate step.
    # Whether it is a finished encoder, compared as it is: the store has no state of it.
    is_finished_encoder: Annotated[bool, _UNLESS_EMPTY] = False
    group: str = ""  # Group in which plans count it.
    # Architecture: a preset's name, layers times width, or the name of the pretrained model.
    model: str | None = None
    dimensions: Annotated[dict[str, int], _UNLESS_EMPTY] = {}  # Of a model that is no preset.
    # Without a language-model head; for a pretrained model, all parameters in its files.
    parameters: NonNegativeInt | None = None
    phases: tuple[PhaseRecord, ...] | None = None  # Phases up to this step.
    # Of phases whose objective is a plugin, its file and code, which the name does not say.
    plugins: Annotated[tuple[str, ...], _UNLESS_EMPTY] = ()
    # The finished model that training continued from: its name, or its objectives.
    continues: str | None = None
    continued_steps: NonNegativeInt = 0  # Steps of continued training.
    recipe: dict[str, Any] = {}  # Settings that differ from the shared recipe.
    # Seeds of the pretraining run: `init_seed`, `data_seed`, `mask_seed`.
    seeds: dict[str, int] = {}
    # Attention of its encoder in fine-tuning and scoring; None uses the protocol's.
    attention: Annotated[str | None, _UNLESS_NONE] = None
    # Peak learning rate of its first schedule; None if it is not trained.
    peak: float | None = None
    is_tuned: bool = False  # Whether this rate was tuned.
    # Rates that were tried; None if the rate was not tuned, or the study file does not say.
    num_trials: Annotated[int | None, _UNLESS_NONE] = None
    # Peak rate of its last schedule, and the rates that were tried; None if it was not tuned.
    last_peak: Annotated[float | None, _UNLESS_NONE] = None
    last_trials: Annotated[int | None, _UNLESS_NONE] = None


class KindRecord(Record):
    """A record about a task of a kind."""

    kind: str
    metric: str  # The primary metric.
    # Facts about the kind; None for the first kinds, whose facts are known.
    about: Annotated[KindFacts | None, _UNLESS_NONE] = None

    @property
    def facts(self) -> KindFacts:
        """Facts about the kind."""
        return facts_of(self.kind, self.about)

    @property
    def metric_title(self) -> str:
        """Name of its metric in reports."""
        return self.facts.metric(self.metric).title

    @property
    def is_zero_shot(self) -> bool:
        """True if encoders are scored without fine-tuning: one run, no rates, no seeds."""
        return not self.facts.is_trained


class TaskRecord(KindRecord):
    """One task of a study."""

    name: str
    title: str
    num_train: NonNegativeInt
    num_validation: NonNegativeInt
    num_test: NonNegativeInt
    # The task that encoders are trained on instead; None if it has a training split.
    trained_on: str | None = None
    # Number of examples of a later split that are also in an earlier one, as `train/test`.
    overlaps: dict[str, NonNegativeInt] = {}
    # Number of test examples that occur in the training corpus; None if they were not counted.
    num_seen: NonNegativeInt | None = None


class RunRecord(Record):
    """One fine-tuning that the study expects."""

    id: str
    arm: str
    task: str
    learning_rate: float
    seed: int


class CompareRecord(Record):
    """A planned comparison: two arms, or all runs of two recipes."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    tasks: tuple[str, ...]


class ForecastRecord(Record):
    """The study's expectation of a comparison, in percentage points."""

    difference: float
    interval: tuple[float, float]  # Ends of the 90 % interval.


class AskedRecord(CompareRecord):
    """A comparison of a question: a - b, or (a - b) - (c - d)."""

    minus: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # The arms c and d.
    forecast: ForecastRecord | None = None


class SupportRecord(Record):
    """When a question is answered by "supported"."""

    clear_for: NonNegativeInt  # Fewest comparisons that are clearly above zero.
    clear_against: NonNegativeInt  # Most comparisons that are clearly below zero.


class AgainstRecord(Record):
    """When a question is answered by "counts against"."""

    clear_against: NonNegativeInt  # Fewest comparisons that are clearly below zero.
    # Most comparisons that are clearly above zero; None for any number.
    clear_for: NonNegativeInt | None = None


class QuestionRecord(Record):
    """A question that a study asks before its results."""

    name: str
    question: str
    comparisons: tuple[AskedRecord, ...]
    supported_if: SupportRecord
    against_if: AgainstRecord
    # Percentage points: arms whose difference is smaller are tested to be level.
    margin: Annotated[float | None, _UNLESS_NONE] = None

    @property
    def within(self) -> str:
        """The margin as text; empty without one."""
        return "" if self.margin is None else level_within(self.margin)


class DetectableRecord(Record):
    """The smallest difference that a comparison of a question is expected to find."""

    question: str
    comparison: NonNegativeInt  # Its place in the question.
    task: str
    points: float  # Percentage points that are clear with 80 % power.
    spread: float  # Assumed standard deviation of an arm's score over runs, in percentage points.
    # Of a question with a margin: the chance that a difference as forecast is clear, and that a
    # difference of zero is level.
    power_of_forecast: Annotated[float | None, _UNLESS_NONE] = None
    power_of_level: Annotated[float | None, _UNLESS_NONE] = None


class RegistrationRecord(Record):
    """`registration.json`: what a study fixed, and when."""

    format: Literal["biphasic.registration/1"]
    id: str  # Hash of `fixed`, `code` and `amends`.
    registered: str  # Time in UTC, ISO 8601.
    amends: str | None = None  # The registration before; None for the first.
    changed: tuple[str, ...] = ()  # Parts that differ from the registration before.
    num_scores: NonNegativeInt  # Scores of its arms that were in the store then.
    fixed: dict[str, Any]  # Questions, arms, tasks, grid and seeds (`registration.py`).
    code: dict[str, str]  # Version of biphasic, and hashes of the code that trains and scores.
    detectable: tuple[DetectableRecord, ...] = ()
    spread_from: str = ""  # Where the assumed spreads are from; empty if none were.


class StudyRecord(Record):
    """`study.json`: the arms, tasks and runs of a study."""

    format: Literal["biphasic.study/1"]
    name: str
    title: str
    description: str = ""
    convention: Convention = "standard"
    arms: tuple[ArmRecord, ...]
    tasks: tuple[TaskRecord, ...]
    learning_rates: tuple[float, ...]
    # Most rates a side that are run beyond these, while validation chooses an end.
    extend: Annotated[NonNegativeInt, _UNLESS_EMPTY] = 0
    # Fine-tuning seeds; of the first arm, if each pretraining run has its own.
    seeds: tuple[int, ...]
    # Planned before the results.
    compare: Annotated[tuple[CompareRecord, ...], _UNLESS_EMPTY] = ()
    questions: Annotated[tuple[QuestionRecord, ...], _UNLESS_EMPTY] = ()
    runs: tuple[RunRecord, ...]
    # Floors and references; their `arm` is the name of the baseline.
    baselines: Annotated[tuple[RunRecord, ...], _UNLESS_EMPTY] = ()
    heldout_sha256: str | None = None  # Hash of the held-out text.
    provenance: dict[str, Any] = {}

    @property
    def states(self) -> set[str]:
        """Identities of the evaluated states of the store, and of those that lead to them."""
        arms = (arm for arm in self.arms if not arm.is_finished_encoder)
        return {state for arm in arms for state in (arm.state, *arm.segments)}


class LedgerEntry(Record):
    """The cost of one phase so far, from step 0."""

    phase: NonNegativeInt
    objective: str
    steps: NonNegativeInt
    documents: NonNegativeInt  # Documents started; chunks of a long one count once.
    tokens: NonNegativeInt  # Read, including special tokens and excluding padding.
    supervised_tokens: NonNegativeInt
    flops: int | float  # Model FLOPs (`ModelShape.update_flops`).
    # Content hash of the phase's corpus; None if it read that of the run, or pairs.
    corpus: Annotated[str | None, _UNLESS_NONE] = None


class StateRecord(Record):
    """`state.json`: a state of training and its origin."""

    format: Literal["biphasic.state/1"]
    identity: str
    step: NonNegativeInt
    parent: str | None = None
    recipe: dict[str, Any] = {}  # Recipe from step 0.
    # Mean loss on held-out text, by objective.
    heldout: dict[str, float] = {}
    # Units of losses by objective, where they are not those of `LOSS_UNITS`.
    loss_units: Annotated[dict[str, str], _UNLESS_EMPTY] = {}
    heldout_sha256: str | None = None  # Hash of the held-out text; None in old states.
    rows_sha256: str  # Hash of all rows read from step 0 up to this step.
    ledger: tuple[LedgerEntry, ...] = ()
    seconds: float = 0.0  # Time of this segment's updates, without held-out losses and saving.
    ground: dict[str, Any] = {}  # Data fingerprint of the run.
    compute: dict[str, Any] = {}  # Compute settings.
    environment: dict[str, Any] = {}
    # Steps from which on code, versions or hardware differed from before.
    changes: Annotated[tuple[str, ...], _UNLESS_EMPTY] = ()
    # Hashes of the code that trained it, from step 0 on (`numerics.py`); none in old states.
    code: tuple[str, ...] = ()
    # File, or distribution and version, with the hash of the code.
    plugins: Annotated[dict[str, tuple[str, ...]], _UNLESS_EMPTY] = {}

    def loss_unit(self, objective: str) -> str:
        """Return the unit of a loss; empty if it is unknown."""
        return self.loss_units.get(objective, LOSS_UNITS.get(objective, ""))


class LossLine(Record):
    """A line of `metrics.jsonl` after an optimizer step, as reports read it."""

    step: NonNegativeInt
    phase: NonNegativeInt
    objective: str
    loss: float
    tokens: NonNegativeInt  # Read since step 0, excluding padding.


class TrainingLine(LossLine):
    """A line of `metrics.jsonl` after an optimizer step, as training writes it."""

    learning_rate: float
    gradient_norm: float  # Before clipping.
    supervised_tokens: NonNegativeInt  # Of this step.
    tokens_per_second: float


class HeldoutLine(Record):
    """A line of `metrics.jsonl` after a held-out evaluation."""

    step: NonNegativeInt
    tokens: NonNegativeInt
    heldout: dict[str, float]
    minimal_pairs: Annotated[float | None, _UNLESS_NONE] = None  # Accuracy, a share.


class ProbeRecord(Record):
    """The probe's settings that validation chose."""

    strength: float  # Inverse strength of the penalty.
    layer: NonNegativeInt | None = None  # None: the last layer, whose number was not asked for.
    by_layer: list[float] = []  # Best validation score of each layer, if all were tried.


class ResultRecord(KindRecord):
    """`result.json`: scores of one fine-tuning on one task; metrics are shares, not percent."""

    format: Literal["biphasic.finetune/1"]
    id: str
    state: str
    task: str
    learning_rate: float
    seed: int
    protocol: dict[str, Any] = {}  # Settings of the fine-tuning; empty in old results.
    status: Literal["finished", "diverged"]
    steps: NonNegativeInt
    validation: dict[str, float] | None
    test: dict[str, float] | None
    # By split and type: precision, recall, F1 and support of entities; accuracy and number of pairs
    # of a paradigm.
    by_type: dict[str, dict[str, dict[str, int | float]]] = {}
    trained_on: str | None = None  # The task that was trained on, if it is another one.
    # Hash of the examples of the task, and of the one trained on; None in old results.
    examples_sha256: Annotated[str | None, _UNLESS_NONE] = None
    num_truncated: dict[str, NonNegativeInt] = {}  # Number of truncated inputs, by split.
    probe: ProbeRecord | None = None  # None unless a linear model was fitted.
    # Name of a floor or reference; of random vectors also their width and tokenizer.
    baseline: Annotated[dict[str, str | int], _UNLESS_EMPTY] = {}
    seconds: float
    sealed: Annotated[str | None, _UNLESS_NONE] = None  # Date and time; None in old results.
    device: str | None = None
    # Hash of the code that fine-tuned and scored (`numerics.py`); None in old results.
    code: str | None = None

    def score(self, split: Literal["validation", "test"], metric: str) -> float | None:
        """Return a score, a share; None if the run has none."""
        scores = self.validation if split == "validation" else self.test
        return (scores or {}).get(metric) if self.status == "finished" else None

    @model_validator(mode="after")
    def _finished_has_scores(self) -> ResultRecord:
        if self.status == "finished":
            needed = {"validation": self.validation, "test": self.test}
            if self.is_zero_shot:
                needed.pop("validation")
            for split, scores in needed.items():
                if self.metric not in (scores or {}):
                    raise ValueError(f"finished, but {split} has no '{self.metric}'")
        return self


def phase_of(recipe: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the settings of a phase of a recipe; none if it has no such phase."""
    phases = recipe.get("phases") or ()
    return phases[number] if number < len(phases) else {}


def objectives_of(recipe: Mapping[str, Any], entry: LedgerEntry) -> set[str]:
    """Return the objectives of a phase, all if they alternate or are mixed."""
    return _objectives(phase_of(recipe, entry.phase)) or {entry.objective}


def _objectives(settings: Mapping[str, Any]) -> set[str]:
    parts = settings.get("objectives") or ()
    names = {settings["objective"]} if "objective" in settings and not parts else set()
    return names.union(*map(_objectives, parts))


def parse_record(
    kind: type[RecordT],
    raw: Mapping[str, Any],
    *,
    where: str,
    remedy: str = REPAIR,
    error: type[BiphasicError] = DataError,
) -> RecordT:
    """Validate a mapping as `kind`; messages begin with `where` and end with `remedy`."""
    refuse_newer(raw, where)
    with reading(where, error, remedy=remedy):
        try:
            return kind.model_validate(raw)
        except ValidationError as invalid:
            issue = invalid.errors()[0]
            path = ".".join(str(part) for part in issue["loc"]) or "record"
            message = issue["msg"].removeprefix("Value error, ")
            raise error(f"damaged record ({path}: {message}); {remedy}", about=where) from None
