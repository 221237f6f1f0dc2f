"""Study files: arms, tasks, and the grid of fine-tunings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from biphasic.amounts import rate as rate_text
from biphasic.config import Config, nearest, parse_config, refuse_repeats
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import ConfigError
from biphasic.files import digest, expanded
from biphasic.objectives.phases import Phase
from biphasic.plugins import anchored, anchored_fields
from biphasic.pydocs.tasks import BUILTIN_TASKS
from biphasic.records import PRETRAINING, Convention
from biphasic.store import STORE
from biphasic.study.settings.arms import (
    ArmConfig,
    EvaluationPoints,
    Name,
    RecipeConfig,
    expand_arms,
    merge_settings,
    point_name,
)
from biphasic.study.settings.questions import (
    AskedArms,
    PlannedComparison,
    Question,
    Sides,
    refuse_uneven,
    resolve_planned,
    resolve_question,
)
from biphasic.study.settings.tuned_rates import (
    ArmRate,
    TunedRate,
    check_rates,
    last_rate,
    tuned_rate,
    with_first_peak,
    with_last_schedule,
)
from biphasic.tasks.hub_tasks import PUBLISHED
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import TaskInfo
from biphasic.tasks.source import is_mteb, published_source, split_source
from biphasic.training import CHECKPOINT_EVERY, HELDOUT_EVERY
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe, Seeds

PAPER = "paper"
SEEDS_OF_RUN = 1000  # Fine-tuning seeds that a pretraining run may have.
RESERVED = (STORE, "logs")  # Names of folders in a root that are not studies.
_USUAL_INPUT = 512  # Longest input of finished encoders, in tokens, unless the protocol says.
_OF_TUNING = {
    "recipe": {"max_seqlen", "rows_per_step", "rows", "precision"},
    "corpus": {"libraries", "vocab_size", "max_tokens", "max_documents", "share"},
}
_OF_NO_ARM = {"learning_rate": {"peak": 1e-3}}  # The recipe of a study that pretrains nothing.


class TaskConfig(Config):
    """One task, with its changes to the study's protocol."""

    name: Annotated[str, Field(min_length=1)]
    """Name in the study."""
    source: str = ""
    """A built-in task, a published dataset, a task folder, a task file (YAML), `KIND:PATH`, or
    `mteb:NAME`; defaults to `name`. Relative paths are relative to the study file."""
    revision: str | None = None
    """Revision of a published dataset on the hub; defaults to the newest."""
    copies: Path | None = None
    """Folder with local copies of hub datasets, as `OWNER/NAME`; used instead of the hub."""
    metric: str | None = None
    """The main metric; defaults to the task's."""
    protocol: dict[str, Any] = Field(default_factory=dict)
    """Settings of `finetuning.protocol` that differ for this task."""
    train_examples: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    """Numbers of training examples: each makes a task of its own, named `NAME-NUMBER`, with
    `protocol.train_examples`."""

    @model_validator(mode="after")
    def _checked(self) -> TaskConfig:
        if self.train_examples is not None and "train_examples" in self.protocol:
            raise ValueError("give train_examples at the task or in its protocol, not both")
        if self.name == PRETRAINING:
            raise ValueError(f"'{PRETRAINING}' is reserved for held-out losses; rename the task")
        known = [*BUILTIN_TASKS, *PUBLISHED]
        if not self.source and self.name not in known:
            raise ValueError(
                f"unknown task '{self.name}'{nearest(self.name, known)}; for your "
                "own data, give a source such as 'sc:folder'"
            )
        return self

    def by_train_examples(self) -> list[TaskConfig]:
        """Return the task, or one for each number of training examples."""
        if self.train_examples is None:
            return [self]
        shared = self.model_dump(exclude_unset=True, exclude={"train_examples"})
        shared["source"] = self.origin
        return [
            TaskConfig(
                **shared
                | {
                    "name": f"{self.name}-{number}",
                    "protocol": {**self.protocol, "train_examples": number},
                }
            )
            for number in self.train_examples
        ]

    def anchored(self, folder: Path) -> TaskConfig:
        """Return the task with relative paths resolved against a folder."""
        return anchored_fields(self, folder, source=anchor_source(self.source, folder))

    @property
    def origin(self) -> str:
        """The source of its examples."""
        return self.source or self.name


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
    """Peak rates; the best on validation is selected for each seed."""
    extend: Annotated[int, Field(ge=0, le=8)] = 0
    """While validation chooses an end of the grid for an arm and task, one more rate beyond that
    end is run for every seed, at most this many a side, in the ratio of the two outermost rates."""
    seeds: (
        Annotated[int, Field(ge=1, le=SEEDS_OF_RUN)]
        | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    ) = 5
    """Seeds of heads and batch order: their number, for seeds of each pretraining run's own, or a
    list that all runs share. Run n has the seeds 1000 n, 1000 n + 1, and so on."""
    protocol: FinetuneProtocol | Literal["paper"] = FinetuneProtocol()
    """All other constants, or `paper` for those of the reference study's public code."""

    @model_validator(mode="after")
    def _no_repeats(self) -> FinetuningConfig:
        refuse_repeats("learning_rates", self.learning_rates)
        if self.extend and len(self.learning_rates) < 2:
            raise ValueError(f"extend: {self.extend} needs two learning_rates or more, for a ratio")
        if self.extend and self.is_paper:
            raise ValueError("extend: 'protocol: paper' has a fixed grid; omit one of them")
        if not isinstance(self.seeds, int):
            refuse_repeats("seeds", self.seeds)
        return self

    def seeds_of(self, run: Seeds) -> tuple[int, ...]:
        """Return the fine-tuning seeds of a pretraining run."""
        if not isinstance(self.seeds, int):
            return self.seeds
        numbers = {*run.model_dump().values()}
        # The number of a run is its seed, or a hash of several different ones.
        number = numbers.pop() if len(numbers) == 1 else int(digest(run.model_dump())[:8], 16)
        first = SEEDS_OF_RUN * number
        return tuple(range(first, first + self.seeds))

    @property
    def is_paper(self) -> bool:
        """Whether the protocol is the reference study's; see docs/protocol.md."""
        return self.protocol == PAPER


def finetuning_of(
    learning_rates: Sequence[float] | None,
    extend: int | None,
    seeds: Sequence[int] | None,
    *,
    protocol: Any,
) -> FinetuningConfig:
    """Return the grid of a command; None for its default."""
    if extend is None:  # one rate has no ratio, and the study's protocol a fixed grid
        is_fixed = protocol == PAPER or (learning_rates is not None and len(learning_rates) < 2)
        extend = 0 if is_fixed else 3
    grid = {"learning_rates": learning_rates, "extend": extend, "seeds": seeds}
    given = {name: value for name, value in grid.items() if value is not None}
    return parse_config(FinetuningConfig, {**given, "protocol": protocol}, where="fine-tuning")


class StudyConfig(Config):
    """A controlled comparison: arms times tasks times learning rates times seeds."""

    name: Name
    """Name of the study and its folder."""
    title: str
    """Title of the report."""
    description: str = ""
    """A paragraph for the report."""
    corpus: CorpusConfig = CorpusConfig()
    """Text to pretrain on."""
    recipe: RecipeConfig
    """Settings that all arms share; not needed if all arms are finished encoders."""
    arms: Annotated[tuple[ArmConfig, ...], Field(min_length=1)]
    """Ways to pretrain."""
    tuned_rates: tuple[TunedRate, ...] = ()
    """Peak rates of arms, by name or by model, first objective and optimizer, which replace the
    recipe's; `biphasic study tune` writes them into a file to include."""
    tuned_with: Annotated[dict[str, Any], Field(exclude_if=lambda settings: not settings)] = Field(
        default_factory=dict
    )
    """Batch and corpus with which the rates were tuned; the plan says if others are set now."""
    evaluation_points: tuple[EvaluationPoints, ...] = ()
    """Intermediate steps at which arms are evaluated, in addition to their end."""
    tasks: Annotated[
        tuple[TaskConfig, ...],
        AfterValidator(
            lambda tasks: tuple(one for task in tasks for one in task.by_train_examples())
        ),
    ] = ()
    """Tasks that encoders are scored on."""
    finetuning: FinetuningConfig = FinetuningConfig()
    """The grid per arm and task."""
    compare: tuple[PlannedComparison, ...] = ()
    """Comparisons planned before the results, which are corrected among themselves; all others are
    exploratory."""
    questions: tuple[Question, ...] = ()
    """Questions asked before the results, which the report answers first."""
    convention: Convention = "standard"
    """How intervals are computed: `standard` (Student t) or `paper` (1.96 standard errors)."""
    checkpoint_every: NonNegativeInt = CHECKPOINT_EVERY
    """Updates between checkpoints; 0 for none."""
    heldout_every: NonNegativeInt = HELDOUT_EVERY
    """Updates between held-out evaluations; 0 for the last only."""
    compute: ComputeConfig = ComputeConfig()
    """How pretraining steps are computed; results change by rounding only."""

    @model_validator(mode="before")
    @classmethod
    def _single_arms(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("arms"), list):
            return raw
        if all(isinstance(arm, Mapping) and "encoder" in arm for arm in raw["arms"]):
            raw = {"recipe": _OF_NO_ARM, **raw}
        try:
            return {**raw, "arms": expand_arms(raw["arms"], raw.get("recipe"))}
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        refuse_repeats("arms", [arm.name for arm in self.arms])
        refuse_repeats("tasks", [task.name for task in self.tasks])
        refuse_repeats("questions", [question.name for question in self.questions])
        check_rates(self.tuned_rates, [arm.name for arm in self.arms])
        if self.name in RESERVED:
            raise ValueError(f"name: '{self.name}' is reserved; choose another name")
        try:
            for arm in self.arms:
                recipe = self.recipe_of(arm)
                try:
                    recipe.check()
                    self.compute.check_rows(recipe.placed_phases)
                except ConfigError as error:
                    raise ConfigError(f"arm '{arm.name}': {error}") from None
            self._check_points()
            self._check_sides()
            for task in self.tasks:
                self.protocol_of(task)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def reads_corpus(self) -> bool:
        """Whether an arm is pretrained here, or begins with random weights."""
        return any(arm.encoder is None for arm in self.arms)

    def _check_points(self) -> None:
        ends = {arm.name: sum(phase.steps for phase in arm.phases) for arm in self.arms}
        for name, steps in self.points_by_arm().items():
            if steps[-1] > ends[name]:
                raise ConfigError(
                    f"evaluation_points: arm '{name}' ends with step {ends[name]:,}, so it cannot "
                    f"be evaluated at {steps[-1]:,}"
                )
            for step in steps:
                if step < ends[name] and (point := point_name(name, step)) in ends:
                    raise ConfigError(
                        f"evaluation_points: step {step:,} of arm '{name}' is called '{point}', "
                        "but another arm has this name; rename that arm"
                    )

    def _check_sides(self) -> None:
        encoders = {arm.name for arm in self.arms if arm.encoder}
        for index, arms in enumerate(self.compared()):
            refuse_uneven([AskedArms(arms, None)], encoders, f"compare.{index}")
        for index, asked in enumerate(self.asked()):
            refuse_uneven(asked, encoders, f"questions.{index}")

    def of_tuning(self) -> dict[str, Any]:
        """Return the settings, without paths, on which the best rates depend."""
        corpus = self.corpus.model_dump(
            mode="json", include=_OF_TUNING["corpus"], exclude_defaults=True
        )
        texts = [Path(source.source).name for source in self.corpus.sources]
        texts = [self.corpus.folder.name] if self.corpus.folder else texts
        batch = self.recipe.model_dump(mode="json", include=_OF_TUNING["recipe"])
        return {**batch, "texts": texts, **corpus}

    def rate_notes(self) -> list[str]:
        """Return notes on tuned rates: for other settings, or not used by arms that they name."""
        now = self.of_tuning()
        changed = [
            f"{name} {self.tuned_with.get(name)}, now {now.get(name)}"
            for name in sorted({*self.tuned_with, *now})
            if self.tuned_with and self.tuned_with.get(name) != now.get(name)
        ]
        other = f"tuned_rates: tuned with {', '.join(changed)}; run 'biphasic study tune' again"
        return [*([other] if changed else []), *self._unused_rates()]

    def _unused_rates(self) -> list[str]:
        rates = self.tuned_rates
        used = {arm.name: (self.tuned_rate_of(arm), last_rate(arm, rates)) for arm in self.arms}
        notes: list[str] = []
        for index, rate in enumerate(rates):
            place = f"tuned_rates.{index} (peak {rate_text(rate.peak)}) is not used"
            if not any(rate in of_arm for of_arm in used.values()):
                notes.append(
                    f"{place}: no arm without a rate of its own has its name, or begins with its "
                    "model and phase"
                )
            elif isinstance(rate, ArmRate):
                notes += [
                    f"{place} by arm '{name}', which has no such schedule, or its own rate for it"
                    for name in rate.arms
                    if rate not in used[name]
                ]
        return notes

    def points_by_arm(self) -> dict[str, list[int]]:
        """Return the intermediate steps at which arms are evaluated, ascending, by arm."""
        names = [arm.name for arm in self.arms]
        steps: dict[str, set[int]] = {}
        for points in self.evaluation_points:
            for name in points.meant(names):
                steps.setdefault(name, set()).update(points.steps)
        return {name: sorted(of_arm) for name, of_arm in steps.items()}

    def compared(self) -> list[Sides]:
        """Return the evaluated states of both sides of each planned comparison."""
        recipes = self.recipes_by_state() if self.compare else {}
        return resolve_planned(self.compare, recipes, [t.name for t in self.tasks], "compare")

    def asked(self) -> list[list[AskedArms]]:
        """Return the evaluated states of the comparisons of each question."""
        recipes = self.recipes_by_state() if self.questions else {}
        tasks = [task.name for task in self.tasks]
        return [
            resolve_question(one, recipes, tasks, f"questions.{index}")
            for index, one in enumerate(self.questions)
        ]

    def recipes_by_state(self) -> dict[str, str]:
        """Return the identity of the recipe, without seeds, of each evaluated state."""
        recipes: dict[str, str] = {}
        points = self.points_by_arm()
        for arm in self.arms:
            recipe = digest(self.recipe_of(arm).model_dump(mode="json", exclude={"seeds"}))
            recipe += f"-{arm.attention}" if arm.attention else ""
            recipe += f"-{arm.encoder.model_dump_json()}" if arm.encoder else ""
            recipes[arm.name] = recipe
            end = sum(phase.steps for phase in arm.phases)
            for step in points.get(arm.name, ()):
                if step < end:  # the state at the end has the arm's name alone
                    recipes.setdefault(point_name(arm.name, step), f"{recipe}-{step}")
        return recipes

    def recipe_of(self, arm: ArmConfig) -> Recipe:
        """Return an arm's recipe, with its tuned rates if it has some."""
        recipe = arm.recipe_from(self.recipe)
        if rate := self.tuned_rate_of(arm):
            recipe = with_first_peak(recipe, rate.peak)
        if last := last_rate(arm, self.tuned_rates):
            recipe = with_last_schedule(recipe, peak=last.peak)
        return recipe.on(self.corpus)

    def tuned_rate_of(self, arm: ArmConfig) -> TunedRate | None:
        """Return the tuned rate of an arm's first schedule, if it has one."""
        return tuned_rate(arm.recipe_from(self.recipe), arm, self.tuned_rates)

    @property
    def longest_input(self) -> int | None:
        """Longest input that all trained models accept, in tokens; None if nothing is trained."""
        # Those of finished encoders are known once they are here (`check_encoder`).
        trained = (arm.recipe for arm in self.arms if arm.encoder is None)
        lengths = (recipe.get("max_seqlen", self.recipe.max_seqlen) for recipe in trained)
        return min(map(int, lengths), default=None)

    def protocol_of(
        self,
        task: TaskConfig,
        needed: Mapping[str, Any] | None = None,
        *,
        longest: int | None = None,
    ) -> FinetuneProtocol:
        """Return a task's protocol; `max_seqlen` defaults to the model's maximum, `longest`."""
        # The task's description overrides what all tasks share, and the study's settings for this
        # task override both.
        longest = longest or self.longest_input
        try:
            protocol = merge_protocol(
                self.finetuning.protocol, needed, task.protocol, longest=longest or _USUAL_INPUT
            )
        except ConfigError as error:
            raise ConfigError(str(error), about=f"task '{task.name}'") from None
        if longest is not None and protocol.max_seqlen > longest:
            self._check_positions(protocol.max_seqlen, task)
        return protocol

    def _check_positions(self, max_seqlen: int, task: TaskConfig) -> None:
        """Check that each evaluated state reads so long an input; phases may have longer rows."""
        points = self.points_by_arm()
        for arm in self.arms:
            recipe = arm.recipe_from(self.recipe)
            for end in () if arm.encoder else (*points.get(arm.name, ()), recipe.total_steps):
                begun = [placed.longest for placed in recipe.placed_phases if placed.start < end]
                longest = max(begun, default=recipe.max_seqlen)
                if max_seqlen > longest:
                    raise ConfigError(
                        f"protocol.max_seqlen {max_seqlen} exceeds the model's {longest} "
                        f"(max_seqlen of the recipe and its phases, arm '{arm.name}')",
                        about=f"task '{task.name}'",
                    )

    def anchored(self, folder: Path) -> StudyConfig:
        """Return the study with relative paths resolved against the study file's folder."""
        return anchored_fields(
            self,
            folder,
            corpus=anchor_corpus(self.corpus, folder),
            arms=tuple(_anchor_arm(arm, folder) for arm in self.arms),
        )


def merge_protocol(
    shared: FinetuneProtocol | Literal["paper"],
    needed: Mapping[str, Any] | None,
    own: Mapping[str, Any],
    *,
    longest: int,
) -> FinetuneProtocol:
    """Return one task's protocol; later arguments override earlier ones."""
    if isinstance(shared, str):
        base = {"max_seqlen": longest, **FinetuneProtocol.paper(max_positions=longest)}
    else:
        # Without defaults, which must not override the needs of the task.
        base = {"max_seqlen": longest, **shared.model_dump(exclude_unset=True)}
    settings = merge_settings(merge_settings(base, needed or {}), own)
    return parse_config(FinetuneProtocol, settings, where="protocol")


def anchor_source(source: str, folder: Path) -> str:
    """Return a task's source with a relative path resolved against a folder."""
    kind, path = split_source(source)
    is_builtin = kind is None and path in BUILTIN_TASKS
    if not path or is_builtin or is_mteb(source) or published_source(source):
        return source
    anchored = str(folder / expanded(path))
    return anchored if kind is None else f"{kind}:{anchored}"


def anchor_corpus(corpus: CorpusConfig, folder: Path) -> CorpusConfig:
    """Return a corpus's settings with relative paths resolved against a folder."""
    against = tuple(anchor_source(source, folder) for source in corpus.against)
    moved = corpus.anchored(folder)
    return moved.model_copy(update={"against": against} if against else {})


def anchor_phases(phases: Iterable[Phase], folder: Path) -> Iterator[Phase]:
    """Yield phases with relative paths resolved against a folder, those of tasks included."""
    for phase in phases:
        moved = anchored(phase, folder)
        if isinstance(moved.corpus, CorpusConfig):
            moved = moved.model_copy(update={"corpus": anchor_corpus(moved.corpus, folder)})
        yield moved


def _anchor_arm(arm: ArmConfig, folder: Path) -> ArmConfig:
    phases = tuple(anchor_phases(arm.phases, folder))
    return arm.anchored(folder).model_copy(update={"phases": phases} if phases else {})


def deciding_metric(task: TaskConfig, info: TaskInfo, *, is_paper: bool) -> str:
    """Return the main metric of a task."""
    known = KINDS[info.kind].facts.metric_keys
    if task.metric is not None and task.metric not in known:
        raise ConfigError(
            f"no metric '{task.metric}' for kind '{info.kind}'{nearest(task.metric, known)}",
            about=f"task '{task.name}'",
        )
    is_given = task.origin in PUBLISHED or task.origin in BUILTIN_TASKS
    of_paper = KINDS[info.kind].facts.paper_metric if is_paper and is_given else None
    return task.metric or of_paper or info.metric
