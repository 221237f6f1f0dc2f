"""The `biphasic evaluate`, `finetune`, `predict` and `encode` commands, which use a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from biphasic.cli.options import (
    CheckedModel,
    Copies,
    Device,
    LearningRates,
    Out,
    Overrides,
    Positive,
    Precision,
    PrintConfig,
    Quiet,
    Revision,
    Root,
    Seeds,
    StoreRoot,
    echo,
)

FinetuneWorkers = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel fine-tunings. Default: one per core, or one on a GPU."),
]
InputFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="jsonl, csv, tsv, parquet or txt (one text per line). Default: by suffix; txt for "
        "'-'.",
    ),
]
STANDARD_OUTPUT = "-"
_SOURCE = ".jsonl, .csv, .tsv, .parquet or .txt; '-' is standard input."


def evaluate_command(
    model: CheckedModel,
    tasks: Annotated[list[str], typer.Option("--task")],
    root: Root = Path("runs"),
    rates: LearningRates = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    paper: bool = False,
    revision: Revision = None,
    copies: Copies = None,
    workers: FinetuneWorkers = None,
    convention: Literal["standard", "paper"] = "standard",
    device: Device = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune an encoder over a grid, and print its scores.

    Scores have 95 % intervals.

    Args:
        tasks: pydocs-sc, pydocs-tc, pydocs-qa or pydocs-ir; a published dataset such as mnli or
            squad; KIND:PATH with kind {kinds}; a task file (YAML); a task folder. Repeat for
            several. See docs/tasks.md.
        rates: Peak rate; repeat for several. Default: six.
        seeds: Repeat for several. Default: 0 to 4.
        overrides: Override a fine-tuning setting, e.g. max_steps=200, max_seqlen=256,
            precision=bf16, batching=padded.
        paper: Use the reference study's protocol; see docs/protocol.md.
        convention: Intervals: 'standard' (Student's t) or 'paper' (1.96 standard errors).
    """
    from biphasic.cli.evaluation import print_evaluation
    from biphasic.config import parse_overrides
    from biphasic.evaluation.evaluate import evaluate_all
    from biphasic.evaluation.plan import chosen_tasks
    from biphasic.study.spec.resolved import evaluation_text
    from biphasic.study.spec.study import PAPER

    if print_config:
        text = evaluation_text(
            chosen_tasks(tasks, overrides=overrides or (), copies=copies),
            learning_rates=rates,
            seeds=seeds,
            protocol=parse_overrides(overrides or ()),
            is_paper=paper,
            convention=convention,
        )
        echo(text, nl=False)
        return
    evaluations = evaluate_all(
        model,
        tasks,
        learning_rates=rates,
        seeds=seeds,
        protocol=PAPER if paper else None,
        overrides=overrides or (),
        revision=revision,
        copies=copies,
        convention=convention,
        root=root,
        workers=workers,
        device=device,
        quiet=quiet,
    )
    failed = [evaluation for evaluation in evaluations if not print_evaluation(evaluation)]
    if failed:
        raise typer.Exit(1)


def finetune_command(
    model: CheckedModel,
    task: Annotated[str, typer.Option()],
    out: Out,
    rates: LearningRates = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    revision: Revision = None,
    copies: Copies = None,
    root: StoreRoot = Path("runs"),
    workers: FinetuneWorkers = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Fine-tune an encoder, keep the best model, print scores.

    The best model is the one with the highest validation score.

    Args:
        task: KIND:PATH for custom data, with kind {trained_kinds}; a task file (YAML); a published
            dataset such as mnli; a built-in task. See docs/tasks.md.
        out: Output folder of the fine-tuned model.
        rates: Peak rate; repeat for several. Default: four from 2e-5 to 2e-4.
        seeds: Repeat for several. Default: 0.
        overrides: Override a fine-tuning setting, e.g. max_epochs=10, max_steps=5000,
            max_seqlen=256, precision=bf16, batching=padded.
    """
    from biphasic.cli.evaluation import print_evaluation
    from biphasic.export.finetuned.write import finetune

    finetuned = finetune(
        model,
        task,
        out,
        learning_rates=rates,
        seeds=seeds,
        overrides=overrides or (),
        revision=revision,
        copies=copies,
        root=root,
        workers=workers,
        device=device,
        quiet=quiet,
    )
    print_evaluation(finetuned.evaluation)
    echo("\n".join(finetuned.sentences()))


def predict_command(
    folder: Path,
    source: Annotated[str, typer.Argument(metavar="INPUT", help=_SOURCE)],
    out: Path | None = None,
    columns: Annotated[list[str] | None, typer.Option("--column")] = None,
    input_format: InputFormat = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Predict with a fine-tuned model: one row per example, in order.

    Args:
        folder: Folder made by 'biphasic finetune'.
        out: .jsonl, .csv or .parquet. Default: JSON lines to standard output.
        columns: Text column; give two for pairs, or for question and context. Default: see
            docs/tasks.md.
    """
    from biphasic.api.use import predict

    predicted = predict(
        folder,
        source,
        out or STANDARD_OUTPUT,
        columns=columns or (),
        format=input_format,
        device=device,
        quiet=quiet,
    )
    for note in predicted.notes:
        echo(note, err=True)
    if out is not None:
        echo("\n".join(predicted.lines()))


def encode_command(
    model: str,
    source: Annotated[str, typer.Argument(metavar="FILE", help=_SOURCE)],
    out: Out,
    column: str = "text",
    prefix: str | None = None,
    prompt: str | None = None,
    normalize: bool = False,
    max_seqlen: Annotated[int | None, typer.Option(min=8)] = None,
    batch_tokens: Positive = None,
    precision: Precision = "fp32",
    revision: Revision = None,
    input_format: InputFormat = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Embed texts by mean pooling: one vector per text, in order.

    Args:
        model: Folder of a state, of a transformers model or of a sentence-transformers model, or a
            hub id.
        out: .npy for vectors; .parquet for vectors with text ids.
        column: Column or key of the text.
        prefix: Prefix of every text.
        prompt: Name of a prompt of the model to prepend to every text.
        normalize: Normalize vectors to unit length.
        max_seqlen: Maximum input length in tokens. Default: the model's limit.
        batch_tokens: Maximum tokens per batch. Default: 4096; 65536 on a GPU.
        precision: Compute precision.
    """
    from biphasic.api.use import encode

    encoded = encode(
        model,
        source,
        out,
        column=column,
        prefix=prefix,
        prompt=prompt,
        normalize=normalize,
        max_seqlen=max_seqlen,
        batch_tokens=batch_tokens,
        precision=precision,
        revision=revision,
        format=input_format,
        device=device,
        quiet=quiet,
    )
    for note in encoded.notes:
        echo(note, err=True)
    echo("\n".join(encoded.lines()))


def mteb_command(
    model: str,
    *,
    task: Annotated[list[str], typer.Option(metavar="NAME")],
    out: Path = Path("mteb"),
    data: Path | None = None,
    prefix: str | None = None,
    max_seqlen: Annotated[int | None, typer.Option(min=8)] = None,
    revision: Revision = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Run tasks of mteb; 'biphasic analyze' compares all models whose results are in a folder.

    Args:
        model: Folder of a state, of a transformers model or of a sentence-transformers model, or a
            hub id.
        task: Name of a task of mteb; repeat for several.
        out: Folder of the results, for all models.
        data: Folder with copies of the tasks' datasets, each named like its task or its repository.
            Default: the hub.
        prefix: Prefix of every text. Default: the model's prompts.
        max_seqlen: Maximum input length in tokens. Default: the model's limit.
    """
    from biphasic.api.use import run_mteb

    scores = run_mteb(
        model,
        task,
        out,
        data=data,
        prefix=prefix,
        max_seqlen=max_seqlen,
        revision=revision,
        device=device,
        quiet=quiet,
    )
    echo("\n".join(scores.lines()))
    echo(f"results: {out}; compare models: biphasic analyze {out} --compare")
