"""Fine-tuning and evaluation from Python: `evaluate`, `evaluate_all` and `finetune`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biphasic.api.verb import Copies, Device, Function, Quiet, Revision, Root, option
from biphasic.errors import ConfigError
from biphasic.execution.slots import check_cores
from biphasic.files import expanded
from biphasic.model.compute.device import computing_on, parse_device

if TYPE_CHECKING:
    from biphasic.evaluation.result import Evaluation
    from biphasic.execution.executor import Local
    from biphasic.export.finetuned import FinetunedFolder
    from biphasic.records import Convention
    from biphasic.study.plan.plan import Plan
    from biphasic.study.settings.study import TaskConfig
    from biphasic.tasks.protocol import FinetuneProtocol


def _paper(is_paper: bool) -> Literal["paper"] | None:
    return "paper" if is_paper else None


class Grid(Root, Revision, Copies, Device, Quiet):
    """A grid of fine-tunings."""

    _: KW_ONLY
    learning_rates: Sequence[float] | None = option(default=None, flag="--learning-rate")
    """Peak rates. Default: six from 1e-5 to 5e-4."""
    extend: int | None = None
    """While validation chooses the lowest or highest rate, one rate beyond it is run for every
    seed, at most this many a side; 0: none. Default: 3; 0 with one rate, or with the reference
    study's protocol."""
    seeds: Sequence[int] | None = option(default=None, flag="--seed")
    """Seeds of fine-tuning. Default: 0 to 4."""
    overrides: Sequence[str] = option(default=(), flag="--set", metavar="KEY=VALUE")
    """Override a fine-tuning setting, e.g. max_steps=200, max_seqlen=256, precision=bf16,
    batching=padded."""
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = option(
        default=None, flag="--paper", type=bool, instead=False, convert=_paper
    )
    """Use the reference study's protocol; see docs/protocol.md. In Python, `"paper"`, or constants
    that replace those of the study and of the task's description; `overrides` replace all.
    `max_seqlen` defaults to the model's maximum."""
    libraries: Sequence[str] | None = option(default=None, type=None)
    """In Python, libraries whose documentation the built-in tasks use; all when None."""
    workers: int | None = option(default=None, least=1)
    """Parallel fine-tunings. Default: one per core, or one on a GPU. In Python, 1 runs them in this
    process."""
    threads: int = option(default=1, type=None, least=1)
    """In Python, threads per fine-tuning; they may change the last bits of results."""

    def _plan(
        self, model: Path | str, tasks: Sequence[TaskConfig | Path | str], **defaults: Any
    ) -> Plan:
        """Check the arguments and the tasks, and plan the fine-tunings."""
        from biphasic.evaluation.evaluate import chosen_tasks, plan_evaluation

        check_cores(num_workers=self._local.workers or 1, num_threads=self.threads)
        return plan_evaluation(
            model,
            chosen_tasks(tasks, overrides=self.overrides, copies=self.copies),
            learning_rates=self.learning_rates,
            extend=self.extend,
            protocol=self.protocol,
            libraries=self.libraries,
            revision=self.revision,
            root=self.root,
            console=self.console,
            **{"seeds": self.seeds, **defaults},
        )

    @property
    def _local(self) -> Local:
        """The processes and threads that run fine-tunings here."""
        from biphasic.execution.executor import Local
        from biphasic.study.run.run import default_workers

        number = self.workers or default_workers(self.threads, device=self.device)
        return Local(workers=number, threads=self.threads)


class Evaluating(Grid):
    """A grid whose scores are estimated."""

    _: KW_ONLY
    convention: Convention = option(default="standard", choices=("standard", "paper"))
    """Intervals: `standard` (Student's t) or `paper` (1.96 standard errors)."""


class Evaluate(Evaluating):
    """Evaluate an encoder on one task; arguments and errors are those of `evaluate_all`.

    Example:
        >>> from biphasic import evaluate
        >>> grid = {"learning_rates": [1e-3, 3e-3], "seeds": [0, 1], "extend": 0}
        >>> result = evaluate(state, "sc:reviews", **grid)
        >>> result.metric, result.estimate.num_seeds, len(result.results)
        ('accuracy', 2, 4)
    """

    model: Path | str = option(type=str)
    """Folder of a state or of a transformers model, or a hub id."""
    task: TaskConfig | Path | str
    """A task, as one of `evaluate_all`."""

    def __call__(self) -> Evaluation:
        options = {name: value for name, value in self.values().items() if name != "task"}
        [evaluation] = EvaluateAll(**options, tasks=[self.task])()
        return evaluation


class EvaluateAll(Evaluating):
    """Fine-tune an encoder over a grid, and estimate its scores.

    Scores have 95 % intervals.

    Yields:
        Each evaluation when it is finished; all tasks are checked before the first one runs. For
        each seed, the learning rate with the best validation score is selected; the estimate is the
        mean of the selected runs' test scores. Zero-shot tasks are scored once, without training.
        Tasks that are trained on the same task share its fine-tunings.

    Raises:
        ConfigError: A setting is invalid.
        DataError: The model or a task is missing or damaged.
        ModelError: transformers cannot load the model, or it cannot be an encoder.

    Example:
        >>> from biphasic import evaluate_all
        >>> grid = {"learning_rates": [1e-3], "seeds": [0, 1]}
        >>> [result.metric for result in evaluate_all(state, ["sc:reviews"], **grid)]
        ['accuracy']
    """

    model: Path | str = option(type=str)
    """Folder of a state or of a transformers model, or a hub id."""
    tasks: Sequence[TaskConfig | Path | str] = option(flag="--task", type=list[str])
    """pydocs-sc, pydocs-tc, pydocs-qa or pydocs-ir; a published dataset such as mnli or squad;
    KIND:PATH with kind {kinds}; a task file (YAML); a task folder. See docs/tasks.md. In Python
    also a `TaskConfig`, to set a revision, copies or a metric."""

    def __call__(self) -> Iterator[Evaluation]:
        from biphasic.evaluation.evaluate import evaluate_plan

        device = parse_device(self.device)
        yield from evaluate_plan(
            self._plan(self.model, self.tasks),
            convention=self.convention,
            local=self._local,
            device=device,
            console=self.console,
        )

    def print_config(self) -> str:
        """Return the grid and the protocol of each task, as YAML."""
        from biphasic.config import parse_overrides
        from biphasic.evaluation.evaluate import chosen_tasks
        from biphasic.study.settings.load import evaluation_text

        return evaluation_text(
            chosen_tasks(self.tasks, overrides=self.overrides, copies=self.copies),
            learning_rates=self.learning_rates,
            extend=self.extend,
            seeds=self.seeds,
            protocol=parse_overrides(self.overrides),
            is_paper=self.protocol is not None,
            convention=self.convention,
        )


class Finetune(Grid):
    """Fine-tune an encoder, and keep the best model.

    The best model is the one with the highest validation score.

    Returns:
        The folder, which loads without biphasic: as a transformers class that computes the same
        function if there is one, as a sentence-transformers folder for retrieval, and otherwise as
        a class of its own, which transformers loads with `trust_remote_code=True`. `head.json` and
        the card state which.

    Raises:
        ConfigError: A setting is wrong, or `out` holds something else.
        DataError: Model or task are missing or damaged.
        ModelError: The model cannot be an encoder, or the result would only work in biphasic.
        TrainingError: Every run diverged.

    Example:
        >>> from biphasic import finetune
        >>> made = finetune(state, "sc:reviews", "sorter", learning_rates=[1e-3])
        >>> made.record.labels, made.record.form
        (('bad', 'good'), 'sequence-classification')
    """

    model: Path | str = option(type=str)
    """Folder of a state or of a transformers model, or a hub id."""
    task: TaskConfig | Path | str = option(flag="--task", type=str)
    """KIND:PATH for custom data, with kind {trained_kinds}; a task file (YAML); a published dataset
    such as mnli; a built-in task. See docs/tasks.md. In Python also a `TaskConfig`."""
    out: Path | str = option(flag="--out")
    """Output folder of the fine-tuned model. In Python, an existing one from the same model, task
    and settings is kept; only scores missing from the store are recomputed."""
    _: KW_ONLY
    learning_rates: Sequence[float] | None = option(default=None, flag="--learning-rate")
    """Peak rates. Default: four from 2e-5 to 2e-4, higher ones for encoders narrower than 768."""
    seeds: Sequence[int] | None = option(default=None, flag="--seed")
    """Seeds of fine-tuning. Default: 0."""
    overrides: Sequence[str] = option(default=(), flag="--set", metavar="KEY=VALUE")
    """Override a fine-tuning setting, e.g. max_epochs=10, max_steps=5000, max_seqlen=256,
    precision=bf16, batching=padded."""
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = option(
        default=None, type=None
    )
    """In Python, as in `evaluate_all`; when None the study's, with three passes over the training
    data instead of one."""

    def __call__(self) -> FinetunedFolder:
        from biphasic.evaluation.evaluate import PROTOCOL, SEEDS, rates_for
        from biphasic.export.finetuned import write_best
        from biphasic.export.output import find_made
        from biphasic.tasks.kinds.registry import KINDS

        folder, device = expanded(self.out), parse_device(self.device)
        find_made(folder)
        plan = self._plan(
            self.model,
            [self.task],
            seeds=SEEDS if self.seeds is None else self.seeds,
            shared=PROTOCOL,
            default_rates=rates_for,
        )
        planned = plan.tasks[0]
        kind = KINDS[planned.info.kind]
        if not kind.facts.is_trained and not kind.facts.is_cosine:
            raise ConfigError(
                f"a task of kind {planned.info.kind} trains nothing and reads no vectors, so there "
                "is no model to write; 'evaluate' scores it",
                about=f"task '{planned.info.name}'",
            )
        if planned.training.protocol.is_causal:
            raise ConfigError(
                "attention: 'finetune' writes bidirectional models; 'evaluate' scores causal ones"
            )
        # Cards are public: a hub id is unchanged, a folder by name only.
        named = plan.arms[0].config.label if expanded(self.model).exists() else str(self.model)
        with computing_on(device):
            return write_best(
                plan,
                folder,
                model=named,
                local=self._local,
                console=self.console,
            )


evaluate = Function(Evaluate)
evaluate_all = Function(EvaluateAll)
finetune = Function(Finetune)
