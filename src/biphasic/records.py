"""The schemas of what a study leaves on disk, with a check that names a damaged file.

Fields that a later version adds are ignored, so that old reports can be rebuilt from new records
and the other way round; a changed meaning gets a new `format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError, model_validator

from biphasic.errors import REPAIR, BiphasicError, DataError, reading

RecordT = TypeVar("RecordT", bound="Record")
Convention = Literal["standard", "paper"]
STUDY = "study.json"
"""What a study compared with what, in its folder."""
PRETRAINING = "pretraining"
"""What tables call the held-out losses, beside the names of tasks."""
ZERO_SHOT = "zs"
"""The kind of tasks that encoders are scored on as they are."""
ZERO_SHOT_SEED = 0
"""A zero-shot task has one run; nothing in it is random."""
FEW_HELDOUT = 20
"""Documents; held-out losses of fewer say little of other text."""


class Record(BaseModel):
    """A frozen record whose numbers are all finite."""

    # Validators are built on first use; most commands read few kinds of records.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class PhaseRecord(Record):
    """A phase of an arm, as far as the arm has come."""

    objective: str
    """Its name: `clm`, `mlm`, `mntp`, `alternate`, `mix`."""
    steps: NonNegativeInt
    mask_rate: float | None = None
    """Share of tokens masked where it began; None where it does not mask."""
    final_mask_rate: float | None = None
    """Share at its end, where the share changes."""
    steps_by_objective: dict[str, NonNegativeInt] = {}
    """Its steps by the objective of each: several where objectives take turns."""


class ArmRecord(Record):
    """One arm of a study: what its encoder was trained with.

    What stands after `segments` was added later: files without it say nothing of it.
    """

    name: str
    label: str
    family: str
    """Objectives in order: CLM, MLM, CLM+MLM, or none for the untrained encoder."""
    state: str
    steps: NonNegativeInt
    segments: tuple[str, ...] = ()
    """States at the end of each training segment, from step 0 on; arms share leading ones."""
    arm: str | None = None
    """Name of the arm that this is the end of, or a step on the way of."""
    is_final: bool = True
    """False of a step on the way."""
    group: str = ""
    """Heading under which plans count it."""
    model: str | None = None
    """Architecture: a preset's name, layers times width, or the finished model it began with."""
    parameters: NonNegativeInt | None = None
    """Without a language-model head; of a finished model, all that its files hold."""
    phases: tuple[PhaseRecord, ...] | None = None
    """What it was trained with until here."""
    continues: str | None = None
    """The finished model that training went on from: its name, or its objectives."""
    continued_steps: NonNegativeInt = 0
    """Steps after that."""
    recipe: dict[str, Any] = {}
    """Settings that differ from the recipe that all arms share."""
    seeds: dict[str, int] = {}
    """Of the pretraining run: `init_seed`, `data_seed`, `mask_seed`."""


class TaskRecord(Record):
    """One task of a study and the metric that decides it."""

    name: str
    kind: str
    title: str
    metric: str
    num_train: NonNegativeInt
    num_validation: NonNegativeInt
    num_test: NonNegativeInt
    trained_on: str | None = None
    """The task whose training split stands in for its own; None where it has one."""
    overlaps: dict[str, NonNegativeInt] = {}
    """Examples of a later split that also stand in an earlier one, as `train/test`."""

    @property
    def is_zero_shot(self) -> bool:
        """Tell whether encoders are scored without fine-tuning: one run, no choice, no seeds."""
        return self.kind == ZERO_SHOT


class RunRecord(Record):
    """One fine-tuning that the study expects."""

    id: str
    arm: str
    task: str
    learning_rate: float
    seed: int


class StudyRecord(Record):
    """`study.json`: what was compared with what."""

    format: Literal["biphasic.study/1"]
    name: str
    title: str
    description: str = ""
    convention: Convention = "standard"
    arms: tuple[ArmRecord, ...]
    tasks: tuple[TaskRecord, ...]
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    heldout_sha256: str | None = None
    """Hash of the text that held-out losses are of."""
    provenance: dict[str, Any] = {}


class LedgerEntry(Record):
    """What one phase has cost so far, counted from step 0."""

    phase: NonNegativeInt
    objective: str
    steps: NonNegativeInt
    documents: NonNegativeInt
    tokens: NonNegativeInt
    supervised_tokens: NonNegativeInt
    flops: int | float


class StateRecord(Record):
    """`state.json`: a state of training and how it came about."""

    format: Literal["biphasic.state/1"]
    identity: str
    step: NonNegativeInt
    parent: str | None = None
    recipe: dict[str, Any] = {}
    """What it was trained by, from step 0."""
    heldout: dict[str, float] = {}
    """Mean loss per supervised token on held-out text, in nats, by objective."""
    heldout_sha256: str | None = None
    """Hash of that text; None in states written before it was recorded."""
    rows_sha256: str
    """Hash of all rows read from step 0 up to this step."""
    ledger: tuple[LedgerEntry, ...] = ()
    seconds: float = 0.0
    """Wall time of this segment alone."""
    ground: dict[str, Any] = {}
    """Hashes of the data that the run stands on."""
    compute: dict[str, Any] = {}
    """How steps were computed."""
    environment: dict[str, Any] = {}


class TrainingLine(Record):
    """A line of `metrics.jsonl` after an optimizer step."""

    step: NonNegativeInt
    phase: NonNegativeInt
    objective: str
    loss: float
    learning_rate: float
    gradient_norm: float
    """Before clipping."""
    tokens: NonNegativeInt
    """Read since step 0, excluding padding."""
    supervised_tokens: NonNegativeInt
    """Of this step."""
    tokens_per_second: float


class HeldoutLine(Record):
    """A line of `metrics.jsonl` after a held-out evaluation."""

    step: NonNegativeInt
    tokens: NonNegativeInt
    heldout: dict[str, float]


class ResultRecord(Record):
    """`result.json`: what one fine-tuning reached on one task; metrics are shares, not percent."""

    format: Literal["biphasic.finetune/1"]
    id: str
    state: str
    task: str
    kind: str
    metric: str
    learning_rate: float
    seed: int
    status: Literal["finished", "diverged"]
    steps: NonNegativeInt
    validation: dict[str, float] | None
    test: dict[str, float] | None
    by_type: dict[str, dict[str, dict[str, int | float]]] = {}
    """Entity F1's parts for each split and entity type; token classification only."""
    trained_on: str | None = None
    """The task that was trained on, where it is another."""
    num_truncated: dict[str, NonNegativeInt] = {}
    """Inputs that the length limit cut, by split."""
    seconds: float
    device: str | None = None

    @model_validator(mode="after")
    def _finished_has_scores(self) -> ResultRecord:
        if self.status == "finished":
            needed = {"validation": self.validation, "test": self.test}
            if self.kind == ZERO_SHOT:
                needed.pop("validation")
            for split, scores in needed.items():
                if self.metric not in (scores or {}):
                    raise ValueError(f"finished, but {split} has no '{self.metric}'")
        return self


def parse_record(
    kind: type[RecordT],
    raw: Mapping[str, Any],
    *,
    where: str,
    remedy: str = REPAIR,
    error: type[BiphasicError] = DataError,
) -> RecordT:
    """Check a mapping against `kind`; `where` begins the message, and `remedy` ends it.

    Raises:
        BiphasicError: Of the type `error`. A field is missing or has a wrong value.
    """
    with reading(where, error, remedy=remedy):
        try:
            return kind.model_validate(raw)
        except ValidationError as invalid:
            issue = invalid.errors()[0]
            path = ".".join(str(part) for part in issue["loc"]) or "record"
            message = issue["msg"].removeprefix("Value error, ")
            raise error(f"damaged record ({path}: {message}); {remedy}", about=where) from None
