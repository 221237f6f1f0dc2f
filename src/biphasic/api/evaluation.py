"""Fine-tuning and evaluation from Python: `evaluate`, `evaluate_all` and `finetune`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from biphasic.api.arguments import check_arguments
from biphasic.errors import ConfigError
from biphasic.store import DEFAULT_ROOT

if TYPE_CHECKING:
    from biphasic.evaluation.result import Evaluation
    from biphasic.export.finetuned.write import FinetunedFolder
    from biphasic.records import Convention
    from biphasic.study.spec.study import TaskConfig
    from biphasic.tasks.protocol import FinetuneProtocol


@check_arguments()
def evaluate(
    model: Path | str,
    task: TaskConfig | Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    learning_rates: Sequence[float] | None = None,
    extend: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = None,
    libraries: Sequence[str] | None = None,
    revision: str | None = None,
    copies: Path | str | None = None,
    workers: int | None = None,
    threads: int = 1,
    convention: Convention = "standard",
    device: str | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Evaluate an encoder on one task; arguments and errors are those of `evaluate_all`.

    Example:
        >>> from biphasic import evaluate
        >>> grid = {"learning_rates": [1e-3, 3e-3], "seeds": [0, 1], "extend": 0}
        >>> result = evaluate(state, "sc:reviews", **grid)
        >>> result.metric, result.estimate.num_seeds, len(result.results)
        ('accuracy', 2, 4)
    """
    [evaluation] = evaluate_all(
        model,
        [task],
        root=root,
        learning_rates=learning_rates,
        extend=extend,
        seeds=seeds,
        overrides=overrides,
        protocol=protocol,
        libraries=libraries,
        revision=revision,
        copies=copies,
        workers=workers,
        threads=threads,
        convention=convention,
        device=device,
        quiet=quiet,
    )
    return evaluation


@check_arguments()
def evaluate_all(
    model: Path | str,
    tasks: Sequence[TaskConfig | Path | str],
    *,
    root: Path | str = DEFAULT_ROOT,
    learning_rates: Sequence[float] | None = None,
    extend: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = None,
    libraries: Sequence[str] | None = None,
    revision: str | None = None,
    copies: Path | str | None = None,
    workers: int | None = None,
    threads: int = 1,
    convention: Convention = "standard",
    device: str | None = None,
    quiet: bool = False,
) -> Iterator[Evaluation]:
    """Fine-tune an encoder over a grid, and estimate its scores.

    Scores have 95 % intervals.

    Args:
        model: Folder of a state or of a transformers model, or a hub id.
        tasks: pydocs-sc, pydocs-tc, pydocs-qa or pydocs-ir; a published dataset such as mnli or
            squad; KIND:PATH with kind {kinds}; a task file (YAML); a task folder. See
            docs/tasks.md. In Python also a `TaskConfig`, to set a revision, copies or a metric.
        root: Folder of studies and their shared store.
        learning_rates: Peak rates. Default: six from 1e-5 to 5e-4.
        extend: While validation chooses the lowest or highest rate, one rate beyond it is run for
            every seed, at most this many a side; 0: none. Default: 3; 0 with one rate, or with the
            reference study's protocol.
        seeds: Seeds of fine-tuning. Default: 0 to 4.
        overrides: Override a fine-tuning setting, e.g. max_steps=200, max_seqlen=256,
            precision=bf16, batching=padded.
        protocol: Use the reference study's protocol; see docs/protocol.md. In Python, `"paper"`, or
            constants that replace those of the study and of the task's description; `overrides`
            replace all. `max_seqlen` defaults to the model's maximum.
        libraries: In Python, libraries whose documentation the built-in tasks use; all when None.
        revision: Revision of a model on the hub.
        copies: Folder with local copies of hub datasets, as OWNER/NAME.
        workers: Parallel fine-tunings. Default: one per core, or one on a GPU. In Python, 1 runs
            them in this process.
        threads: In Python, threads per fine-tuning; they may change the last bits of results.
        convention: Intervals: `standard` (Student's t) or `paper` (1.96 standard errors).
        device: As in `predict`.
        quiet: Show results and errors only.

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
    from biphasic.config import nearest
    from biphasic.evaluation.evaluate import evaluate_plan
    from biphasic.evaluation.plan import chosen_tasks, plan_evaluation
    from biphasic.execution.slots import check_cores
    from biphasic.model.compute.device import parse_device
    from biphasic.progress import progress_console
    from biphasic.records import Convention
    from biphasic.study.run.run import default_workers

    workers = default_workers(threads, device=device) if workers is None else workers
    check_cores(num_workers=workers, num_threads=threads)
    if convention not in (known := get_args(Convention)):
        raise ConfigError(f"convention: unknown value '{convention}'{nearest(convention, known)}")
    chosen, console = parse_device(device), progress_console(quiet=quiet)
    planned = plan_evaluation(
        model,
        chosen_tasks(tasks, overrides=overrides, copies=copies),
        learning_rates=learning_rates,
        extend=extend,
        seeds=seeds,
        protocol=protocol,
        libraries=libraries,
        revision=revision,
        root=root,
        console=console,
    )
    yield from evaluate_plan(
        planned,
        convention=convention,
        num_workers=workers,
        num_threads=threads,
        device=chosen,
        console=console,
    )


@check_arguments()
def finetune(
    model: Path | str,
    task: TaskConfig | Path | str,
    out: Path | str,
    *,
    learning_rates: Sequence[float] | None = None,
    extend: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = None,
    libraries: Sequence[str] | None = None,
    revision: str | None = None,
    copies: Path | str | None = None,
    root: Path | str = DEFAULT_ROOT,
    workers: int | None = None,
    threads: int = 1,
    device: str | None = None,
    quiet: bool = False,
) -> FinetunedFolder:
    """Fine-tune an encoder, and keep the best model.

    The best model is the one with the highest validation score.

    Args:
        model: Folder of a state or of a transformers model, or a hub id.
        task: KIND:PATH for custom data, with kind {trained_kinds}; a task file (YAML); a published
            dataset such as mnli; a built-in task. See docs/tasks.md. In Python also a `TaskConfig`.
        out: Output folder of the fine-tuned model. In Python, an existing one from the same model,
            task and settings is kept; only scores missing from the store are recomputed.
        learning_rates: Peak rates. Default: four from 2e-5 to 2e-4.
        extend: As in `evaluate_all`.
        seeds: Seeds of fine-tuning. Default: 0.
        overrides: Override a fine-tuning setting, e.g. max_epochs=10, max_steps=5000,
            max_seqlen=256, precision=bf16, batching=padded.
        protocol: In Python, as in `evaluate_all`; when None the study's, with three passes over the
            training data instead of one.
        libraries: In Python, as in `evaluate_all`.
        revision: Revision of a model on the hub.
        copies: Folder with local copies of hub datasets, as OWNER/NAME.
        root: Folder of the store. In Python: runs with stored results are skipped, except the best.
        workers: As in `evaluate_all`.
        threads: In Python, as in `evaluate_all`.
        device: As in `predict`.
        quiet: Show results and errors only.

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
    from biphasic.evaluation.best import LEARNING_RATES, PROTOCOL, SEEDS
    from biphasic.evaluation.plan import chosen_tasks, plan_evaluation
    from biphasic.execution.slots import check_cores
    from biphasic.export.finetuned.write import write_best
    from biphasic.export.output import find_made
    from biphasic.files import expanded
    from biphasic.model.compute.device import computing_on, parse_device
    from biphasic.progress import progress_console
    from biphasic.study.run.run import default_workers
    from biphasic.tasks.kinds.registry import KINDS

    workers = default_workers(threads, device=device) if workers is None else workers
    check_cores(num_workers=workers, num_threads=threads)
    folder, chosen, console = expanded(out), parse_device(device), progress_console(quiet=quiet)
    find_made(folder)
    plan = plan_evaluation(
        model,
        chosen_tasks([task], overrides=overrides, copies=copies),
        learning_rates=learning_rates,
        extend=extend,
        seeds=SEEDS if seeds is None else seeds,
        protocol=protocol,
        libraries=libraries,
        revision=revision,
        root=root,
        console=console,
        shared=PROTOCOL,
        default_rates=LEARNING_RATES,
    )
    planned = plan.tasks[0]
    kind = KINDS[planned.info.kind]
    if not kind.facts.is_trained and not kind.is_cosine:
        raise ConfigError(
            f"a task of kind {planned.info.kind} trains nothing and reads no vectors, so there is "
            "no model to write; 'evaluate' scores it",
            about=f"task '{planned.info.name}'",
        )
    if planned.training.protocol.is_causal:
        raise ConfigError(
            "attention: 'finetune' writes bidirectional models; 'evaluate' scores causal ones"
        )
    # Cards are public: a hub id is unchanged, a folder by name only.
    named = plan.name if expanded(model).exists() else str(model)
    with computing_on(chosen):
        return write_best(
            plan, folder, model=named, num_workers=workers, num_threads=threads, console=console
        )
