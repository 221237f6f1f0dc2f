"""`biphasic estimate`: memory and time of a recipe, without training it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import echo


def estimate_command(
    file: Annotated[Path, typer.Argument(help="Recipe file (YAML).")],
    devices: Annotated[int, typer.Option(help="Devices that train one model.")] = 1,
    device: Annotated[
        str | None,
        typer.Option(
            help="h100, h200, a100-80gb, a100-40gb, mi250x (one of its two dies) or cpu. "
            "Default: h100, or with --flops another GPU."
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Entries of the tokenizer's vocabulary. Default: those of a trained one."
        ),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(help="Share of the peak that model FLOPs reach. Default: 0.4, an assumption."),
    ] = None,
    flops: Annotated[
        float | None, typer.Option(help="Peak FLOP/s of a device, e.g. 90e9 for a CPU.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="Memory of a device in bytes, e.g. 24e9.")
    ] = None,
    watts: Annotated[float | None, typer.Option(help="Power of a device.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. model=610m."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Estimate memory, time and energy of a recipe, without training it.

    Prints parameters, FLOPs, memory per device, the rows that fit, and compute settings.
    """
    import json

    from biphasic.study.sizing.estimate import DEFAULT_VOCAB_SIZE, MFU, estimate
    from biphasic.study.sizing.text import estimate_lines

    result = estimate(
        file,
        overrides=overrides or (),
        vocab_size=DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size,
        devices=devices,
        device=device,
        flops=flops,
        memory=memory,
        watts=watts,
        mfu=MFU if mfu is None else mfu,
    )
    if as_json:
        echo(json.dumps(result.to_json(), indent=1))
    else:
        echo("\n".join(estimate_lines(result)))
