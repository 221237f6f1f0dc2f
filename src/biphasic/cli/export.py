"""`biphasic export` and `biphasic push`: an encoder for others to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import Quiet, echo, precision_dtype, progress_console, renamed

if TYPE_CHECKING:
    from biphasic.export.push import PushPlan


def export_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="STATE", help="Folder of a state or of a transformers model, or a hub id."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    format: Annotated[
        str,
        typer.Option(
            help="hf, for transformers; sentence-transformers, for that as well; onnx, for "
            "onnxruntime alone, without weights for transformers."
        ),
    ] = "hf",
    precision: Annotated[
        str | None, typer.Option(help="Of the weights: fp32 or bf16. Default: fp32.")
    ] = None,
    max_shard_size: Annotated[
        str, typer.Option(help="Weights beyond this are split into several files.")
    ] = "5GB",
    revision: Annotated[str | None, typer.Option(help="Revision of a model on the hub.")] = None,
    quiet: Quiet = False,
    dtype: Annotated[str | None, typer.Option("--dtype", hidden=True)] = None,
) -> None:
    """Write an encoder as a folder that works without biphasic, with a model card; check it."""
    from biphasic.export.write import export_model
    from biphasic.progress import progress_bar, say_on

    console = progress_console(quiet=quiet)
    precision = renamed(dtype, precision, old_name="--dtype", new_name="--precision")
    weights_dtype = precision_dtype(precision)
    with progress_bar(console, "exporting"):
        folder = export_model(
            model,
            out,
            format=format,  # type: ignore[arg-type]  # checked there, with one line for people
            dtype=weights_dtype,  # type: ignore[arg-type]
            max_shard_size=max_shard_size,
            revision=revision,
            say=say_on(console),
        )
    echo(str(folder))


def push_command(
    folder: Annotated[Path, typer.Argument(help="Folder made by 'biphasic export'.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="On the hub.")],
    private: Annotated[bool, typer.Option("--private", help="For its owner's eyes only.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch, made where it is missing. Default: the main one.")
    ] = None,
    go: Annotated[bool, typer.Option("--go", help="Send it. Without this, only say what.")] = False,
) -> None:
    """Send an export to a repository of the hub; without --go, say what would be sent."""
    from biphasic.export.push import plan_push, push

    plan = plan_push(folder, repository, private=private, revision=revision)
    _print_plan(plan)
    if not go:
        echo("nothing was sent; add --go to send it")
        return
    echo(push(plan))


def _print_plan(plan: PushPlan) -> None:
    width = max(len(name) for name, _ in plan.files)
    for name, size in plan.files:
        echo(f"  {name:<{width}}  {size:>15,} bytes")
    where = f"{plan.repository}, {f'branch {plan.revision}' if plan.revision else 'main branch'}"
    visible = ", private where it is new" if plan.is_private else ""
    echo(f"{len(plan.files)} files, {plan.num_bytes:,} bytes, to {where}{visible}")
    for warning in plan.warnings:
        echo(f"warning: {warning}", err=True)
