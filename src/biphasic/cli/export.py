"""The `biphasic export` and `biphasic push` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import (
    Quiet,
    Revision,
    echo,
    precision_dtype,
    progress_console,
    renamed,
)


def export_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="STATE", help="Folder of a state or of a transformers model, or a hub id."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    format: Annotated[
        str,
        typer.Option(
            help="hf (transformers), sentence-transformers (also loads in transformers), or onnx "
            "(onnxruntime only)."
        ),
    ] = "hf",
    precision: Annotated[
        str | None, typer.Option(help="Precision of the weights: fp32 or bf16. Default: fp32.")
    ] = None,
    max_shard_size: Annotated[
        str, typer.Option(help="Split larger weights into several files.")
    ] = "5GB",
    revision: Revision = None,
    quiet: Quiet = False,
    dtype: Annotated[str | None, typer.Option("--dtype", hidden=True)] = None,
) -> None:
    """Export an encoder, with a model card, for use without biphasic.

    Each export is verified in a separate process that cannot import biphasic.
    """
    from biphasic.export.write import export_model
    from biphasic.progress import progress_bar, say_on

    console = progress_console(quiet=quiet)
    precision = renamed(dtype, precision, old_name="--dtype", new_name="--precision")
    weights_dtype = precision_dtype(precision)
    with progress_bar(console, "exporting"):
        folder = export_model(
            model,
            out,
            format=format,  # type: ignore[arg-type]  # checked there
            dtype=weights_dtype,  # type: ignore[arg-type]
            max_shard_size=max_shard_size,
            revision=revision,
            say=say_on(console),
        )
    echo(str(folder))


def push_command(
    folder: Annotated[Path, typer.Argument(help="Folder made by 'biphasic export'.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub.")],
    private: Annotated[bool, typer.Option("--private", help="Create it as private.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch, created if missing. Default: main.")
    ] = None,
    go: Annotated[bool, typer.Option("--go", help="Upload. Without it, only list files.")] = False,
) -> None:
    """Upload an export to a hub repository.

    Without --go, only list the files.
    """
    from biphasic.export.push import plan_push, push

    plan = plan_push(folder, repository, private=private, revision=revision)
    width = max(len(name) for name, _ in plan.files)
    for name, size in plan.files:
        echo(f"  {name:<{width}}  {size:>15,} bytes")
    where = f"{plan.repository}, {f'branch {plan.revision}' if plan.revision else 'main branch'}"
    visible = ", private if new" if plan.is_private else ""
    echo(f"{len(plan.files)} files, {plan.num_bytes:,} bytes, to {where}{visible}")
    for warning in plan.warnings:
        echo(f"warning: {warning}", err=True)
    if not go:
        echo("nothing uploaded; add --go to upload")
        return
    echo(push(plan))
