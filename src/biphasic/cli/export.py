"""The `biphasic export` and `biphasic push` commands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.api.use import DTYPES, Precision, push
from biphasic.cli.command import command
from biphasic.cli.options import Out, Quiet, Revision, echo, progress_console
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from biphasic.api.results.use import Upload


def export_command(
    model: Annotated[str, typer.Argument(metavar="STATE")],
    out: Path,
    format: str = "hf",
    precision: Precision = "fp32",
    max_shard_size: str = "5GB",
    revision: Revision = None,
    quiet: Quiet = False,
) -> None:
    """Export an encoder, with a model card, for use without biphasic.

    Each export is verified in a separate process that cannot import biphasic.

    Args:
        model: Folder of a state or of a transformers model, or a hub id.
        out: Folder to write.
        format: hf (transformers), sentence-transformers (also loads in transformers), or onnx
            (onnxruntime only).
        precision: Precision of the weights.
        max_shard_size: Split larger weights into several files.
    """
    from biphasic.export.write import export_model
    from biphasic.progress import progress_bar, say_on

    console = progress_console(quiet=quiet)
    with progress_bar(console, "exporting"):
        folder = export_model(
            model,
            out,
            format=format,  # type: ignore[arg-type]  # checked there
            dtype=DTYPES[precision],
            max_shard_size=max_shard_size,
            revision=revision,
            say=say_on(console),
        )
    echo(str(folder))


def merge_command(
    base: str,
    adapted: str,
    out: Out,
    weight: Annotated[float, typer.Option(min=0, max=1)] = 0.5,
    method: str = "linear",
    group: Annotated[list[str] | None, typer.Option(metavar="GROUP=WEIGHT")] = None,
) -> None:
    """Merge the weights of two models of one architecture, and print the folder.

    Args:
        base: Folder of a state or of a transformers model, or a hub id.
        adapted: The model that it was adapted to; its tokenizer and settings are kept.
        out: Folder to write; it can be used like any model.
        weight: Share of ADAPTED, from 0 to 1.
        method: linear, or spherical (along the arc between each two tensors).
        group: Weight of a part: a layer (3), layers (0-5), embeddings or rest; repeat for several.
    """
    from biphasic.export.merge import merge_models

    merged = merge_models(
        base,
        adapted,
        out,
        weight=weight,
        method=method,  # type: ignore[arg-type]  # checked there
        groups=_shares(group or ()),
    )
    echo(f"model: {merged}")


def _shares(given: Iterable[str]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text in given:
        name, _, share = text.partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            raise ConfigError(f"--group {text}: give GROUP=WEIGHT, as 0-5=0.3") from None
    return shares


@command(push, repository=typer.Argument(metavar="OWNER/NAME"))
def push_command(upload: Upload) -> None:
    echo(str(upload))
    for note in upload.notes:
        echo(f"warning: {note}", err=True)
    echo(upload.address or "nothing uploaded; add --go to upload")
