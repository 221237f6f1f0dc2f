"""The `biphasic evaluate`, `finetune`, `predict` and `encode` commands, which use a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from biphasic.cli.options import (
    DTYPES,
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
    progress_console,
)

_FORMS = {
    "sequence-classification": "loads with AutoModelForSequenceClassification",
    "token-classification": "loads with AutoModelForTokenClassification",
    "question-answering": "loads with AutoModelForQuestionAnswering",
    "sentence-transformers": "loads with SentenceTransformer or AutoModel",
    "separate-head": "written by an earlier version: transformers loads it without its head; "
    "delete it and fine-tune again",
}
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
    from biphasic.evaluation.plan import task_from_text
    from biphasic.study.run.run import default_workers
    from biphasic.study.spec.resolved import evaluation_text
    from biphasic.study.spec.study import PAPER

    settings = parse_overrides(overrides or ())
    changes = {"copies": copies, "protocol": settings}
    chosen = [task_from_text(task).model_copy(update=changes) for task in tasks]
    if print_config:
        text = evaluation_text(
            chosen,
            learning_rates=rates,
            seeds=seeds,
            protocol=settings,
            is_paper=paper,
            convention=convention,
        )
        echo(text, nl=False)
        return
    evaluations = evaluate_all(
        model,
        chosen,
        learning_rates=rates,
        seeds=seeds,
        protocol=PAPER if paper else None,
        revision=revision,
        convention=convention,
        root=root,
        num_workers=workers or default_workers(device=device),
        device=device,
        console=progress_console(quiet=quiet),
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
    from biphasic.analysis.text import rate
    from biphasic.cli.evaluation import print_evaluation
    from biphasic.config import parse_overrides
    from biphasic.evaluation.plan import task_from_text
    from biphasic.export.finetuned.write import finetune
    from biphasic.study.run.run import default_workers
    from biphasic.tasks.kinds.registry import KINDS

    console = progress_console(quiet=quiet)
    settings = parse_overrides(overrides or ())
    chosen = task_from_text(task).model_copy(update={"copies": copies, "protocol": settings})
    finetuned = finetune(
        model,
        chosen,
        out,
        learning_rates=rates,
        seeds=seeds,
        revision=revision,
        root=root,
        num_workers=workers or default_workers(device=device),
        device=device,
        console=console,
    )
    print_evaluation(finetuned.evaluation)
    record, facts = finetuned.record, KINDS[finetuned.record.kind].facts
    by_split = {"validation": finetuned.validation, "test": finetuned.test}
    scores = ", ".join(
        f"{split} {facts.metric(record.metric).title} {metrics[record.metric]:.2f}"
        for split, metrics in by_split.items()
        if record.metric in metrics
    )
    if facts.is_trained:
        echo(f"kept: rate {rate(record.learning_rate)}, seed {record.seed}: {scores}")
    code = " and trust_remote_code=True" if record.needs_code else ""
    echo(f"{finetuned.folder}: {_FORMS[record.form]}{code}")


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
    from biphasic.progress import progress_bar
    from biphasic.tasks.inputs import open_input
    from biphasic.tasks.outputs import ROW_SUFFIXES, check_output
    from biphasic.tasks.predict import predict_file

    console = progress_console(quiet=quiet)
    if out is not None:
        check_output(out, ROW_SUFFIXES)
    opened = open_input(source, format=input_format)
    with progress_bar(console, "predicting", unit="texts") as report:
        summary = predict_file(
            folder, opened, out, columns=columns or (), device=device, report=report
        )
    _warn_truncated(summary.num_examples, summary.num_cut, summary.num_empty, summary.max_seqlen)
    if out is not None:
        echo(f"{out}: {summary.num_examples:,} predictions")


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
    from biphasic.model.compute.device import parse_device
    from biphasic.progress import progress_bar
    from biphasic.tasks.embedding import (
        Choices,
        embedding_settings,
        fetch_embedding_model,
        never_saw_both_ways,
    )
    from biphasic.tasks.encode import SUFFIXES, encode_file
    from biphasic.tasks.inputs import open_input
    from biphasic.tasks.outputs import check_output

    console = progress_console(quiet=quiet)
    check_output(out, SUFFIXES)
    parse_device(device)  # before anything is fetched
    opened = open_input(source, format=input_format)
    choices = Choices(max_seqlen=max_seqlen, prefix=prefix, prompt=prompt, normalize=normalize)
    folder = fetch_embedding_model(model, revision=revision)
    settings = embedding_settings(folder, choices)
    with progress_bar(console, "encoding", unit="texts") as report:
        summary = encode_file(
            settings,
            opened,
            out,
            field=column,
            precision=DTYPES[precision],
            batch_tokens=batch_tokens,
            device=device,
            report=report,
        )
    if never_saw_both_ways(folder):
        echo(
            f"warning: {model} is a decoder not trained for bidirectional attention; convert it to "
            "an encoder with 'biphasic adapt'",
            err=True,
        )
    _warn_truncated(summary.num_texts, summary.num_cut, summary.num_empty, settings.max_seqlen)
    speed = summary.num_texts / max(summary.seconds, 1e-9)
    echo(f"{out}: {summary.num_texts:,} vectors, {speed:,.0f} texts/s")


def _warn_truncated(number: int, num_cut: int, num_empty: int, max_seqlen: int) -> None:
    if num_cut:
        echo(f"truncated: {num_cut:,} of {number:,}, longer than {max_seqlen} tokens", err=True)
    if num_empty:
        echo(f"empty: {num_empty:,} of {number:,}", err=True)
