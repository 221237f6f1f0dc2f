"""`biphasic finetune`, `predict` and `encode`: everyday use of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from biphasic.cli.options import echo

if TYPE_CHECKING:
    from biphasic.export.fitted import FinetunedFolder
    from biphasic.tasks.embedding import Precision

_FORMS = {
    "sequence-classification": "AutoModelForSequenceClassification loads it",
    "token-classification": "AutoModelForTokenClassification loads it",
    "question-answering": "AutoModelForQuestionAnswering loads it",
    "sentence-transformers": "SentenceTransformer and AutoModel load it",
    "separate-head": "AutoModel loads the encoder; no class of transformers has this head, so it "
    "stands beside it (README.md there shows how to use it)",
}
_FORMAT_HELP = (
    "jsonl, csv, tsv, parquet or txt (a text a line). Default: by the suffix; txt for '-'."
)


def finetune_command(
    model: Annotated[
        str, typer.Argument(help="Folder of a state or of a transformers model, or a hub id.")
    ],
    task: Annotated[
        str,
        typer.Option(
            help="KIND:PATH for your own data, with kind sc, sr, tc, qa, ir or zs; a task file "
            "(YAML); a published dataset such as mnli; a built-in task. See docs/tasks.md."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make for the fine-tuned model.")],
    rates: Annotated[
        list[float] | None,
        typer.Option(
            "--learning-rate", help="Peak rate; repeat for several. Default: 2e-5 to 2e-4, four."
        ),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Repeat for several. Default: 0.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Replace a constant of the fine-tuning, e.g. max_epochs=10, max_steps=5000, "
            "max_seqlen=256, precision=bf16, batching=padded.",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a model on the hub.")] = None,
    copies: Annotated[
        Path | None,
        typer.Option(help="Folder with local copies of hub datasets, as OWNER/NAME."),
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder for the store of results.")] = Path("runs"),
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Fine-tunings at once; default: one per core, or one on a GPU."),
    ] = None,
) -> None:
    """Fine-tune an encoder, keep the model that is best on validation, and print its scores."""
    from biphasic.config import parse_overrides
    from biphasic.export.fitted import finetune
    from biphasic.study.evaluation import task_from_text
    from biphasic.study.run import default_workers

    settings: dict[str, Any] = parse_overrides(overrides or ())
    chosen = task_from_text(task).model_copy(update={"copies": copies, "protocol": settings})
    _print_finetuned(
        finetune(
            model,
            chosen,
            out,
            learning_rates=rates,
            seeds=seeds,
            revision=revision,
            root=root,
            num_workers=workers or default_workers(),
        )
    )


def _print_finetuned(made: FinetunedFolder) -> None:
    from biphasic.analysis.text import metric_name, points, rate
    from biphasic.cli.evaluation import print_evaluation

    print_evaluation(made.evaluation)
    record = made.record
    held = {"validation": record.validation, "test": record.test}
    scores = ", ".join(
        f"{split} {metric_name(record.metric)} {points(metrics[record.metric])}"
        for split, metrics in held.items()
        if metrics and record.metric in metrics
    )
    if record.kind != "zs":
        echo(f"kept: rate {rate(record.learning_rate)}, seed {record.seed}: {scores}")
    echo(f"{made.folder}: {_FORMS[record.form]}")


def predict_command(
    folder: Annotated[Path, typer.Argument(help="Folder made by 'biphasic finetune'.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help=".jsonl, .csv, .tsv, .parquet or .txt; '-' is standard input."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help=".jsonl, .csv or .parquet. Default: JSON lines to standard output."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            help="Column of the text; twice for the two of a pair, or for question and context. "
            "Default: the usual names, as in docs/tasks.md.",
        ),
    ] = None,
    input_format: Annotated[str | None, typer.Option("--format", help=_FORMAT_HELP)] = None,
) -> None:
    """Predict with a fine-tuned model: a row for each example, in their order."""
    from biphasic.tasks.inputs import open_input
    from biphasic.tasks.outputs import ROW_SUFFIXES, check_output
    from biphasic.tasks.predict import predict_file

    if out is not None:
        check_output(out, ROW_SUFFIXES)
    opened = open_input(source, format=input_format)
    with _bar("texts") as report:
        summary = predict_file(folder, opened, out, columns=columns or (), report=report)
    _tell_cut(summary.num_examples, summary.num_cut, summary.num_empty, summary.max_seqlen)
    if out is not None:
        echo(f"{out}: {summary.num_examples:,} predictions")


def encode_command(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder of a state, of a transformers model or of a sentence-transformers model, "
            "or a hub id."
        ),
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help=".jsonl, .csv, .tsv, .parquet or .txt; '-' is standard input."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help=".npy for the vectors; .parquet for vectors with the texts' ids.")
    ],
    field: Annotated[str, typer.Option(help="Column or key that is the text.")] = "text",
    prefix: Annotated[str | None, typer.Option(help="Text to put before every text.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Name of a prompt of the model's, to put before every text.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Give every vector length 1.")
    ] = False,
    max_seqlen: Annotated[
        int | None,
        typer.Option(min=8, help="Longest input in tokens. Default: the model's own limit."),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of a batch. Default: 4096, on a GPU 65536."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="What the model computes in: float32 or bfloat16.")
    ] = "float32",
    revision: Annotated[str | None, typer.Option(help="Revision of a model on the hub.")] = None,
    input_format: Annotated[str | None, typer.Option("--format", help=_FORMAT_HELP)] = None,
) -> None:
    """Embed texts: the mean of the encoder's states, a vector for each text, in their order."""
    from biphasic.config import nearest
    from biphasic.errors import ConfigError
    from biphasic.tasks.embedding import (
        Choices,
        embedding_settings,
        fetch_embedding_model,
        never_saw_both_ways,
    )
    from biphasic.tasks.encode import SUFFIXES, encode_file
    from biphasic.tasks.inputs import open_input
    from biphasic.tasks.outputs import check_output

    known = ("float32", "bfloat16")
    if dtype not in known:
        raise ConfigError(f"--dtype: unknown value '{dtype}'{nearest(dtype, known)}")
    check_output(out, SUFFIXES)
    opened = open_input(source, format=input_format)
    choices = Choices(max_seqlen=max_seqlen, prefix=prefix, prompt=prompt, normalize=normalize)
    folder = fetch_embedding_model(model, revision=revision)
    settings = embedding_settings(folder, choices)
    with _bar("texts") as report:
        summary = encode_file(
            settings,
            opened,
            out,
            field=field,
            precision=cast("Precision", dtype),
            batch_tokens=batch_tokens,
            report=report,
        )
    if never_saw_both_ways(folder):
        echo(
            f"warning: {model} is a decoder that never learnt to see both ways, as it does here; "
            "'biphasic adapt' makes an encoder of it",
            err=True,
        )
    _tell_cut(summary.num_texts, summary.num_cut, summary.num_empty, settings.max_seqlen)
    speed = summary.num_texts / max(summary.seconds, 1e-9)
    echo(f"{out}: {summary.num_texts:,} vectors, {speed:,.0f} texts/s")


def _tell_cut(number: int, num_cut: int, num_empty: int, max_seqlen: int) -> None:
    if num_cut:
        echo(f"cut: {num_cut:,} of {number:,}, longer than {max_seqlen} tokens", err=True)
    if num_empty:
        echo(f"empty: {num_empty:,} of {number:,}", err=True)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show progress on a terminal only; yield what moves the bar."""
    import time

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        bar = bars.add_task("", total=None, text="")
        started = time.monotonic()

        def report(done: int, total: int | None) -> None:
            seconds = time.monotonic() - started
            speed = f", {done / seconds:,.0f} {what}/s" if seconds > 1 else ""
            bars.update(bar, completed=done, total=total, text=f"{done:,} {what}{speed}")

        yield report
