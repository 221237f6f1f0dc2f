"""The `biphasic adapt`, `pretrain`, `merge` and `estimate` commands, which make one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.api.adapt import adapt
from biphasic.api.training import estimate, merge_models, pretrain
from biphasic.cli.command import Commands
from biphasic.cli.output import echo, shown

if TYPE_CHECKING:
    from biphasic.study.sizing.result import ResourceEstimate

commands = Commands()


@commands.calls("pretrain", pretrain)
def _pretrain(state: Path) -> None:
    """Prints the state's folder."""
    echo(shown(state))


@commands.calls("estimate", estimate)
def _estimate(
    estimated: ResourceEstimate,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Prints parameters, FLOPs, memory per device, the rows that fit, and compute settings."""
    import json

    from biphasic.amounts import rough_duration
    from biphasic.study.sizing.here import speed_here

    if as_json:
        echo(json.dumps(estimated.to_json(), indent=1))
        return
    echo(str(estimated))
    here = speed_here(estimated.precision)
    days = rough_duration(estimated.flops / here.flops_per_second)
    echo(f"on this machine: about {days} on one core, measured for a second")


@commands.calls("adapt", adapt)
def _adapt(folder: Path) -> None:
    echo(f"encoder: {folder}")


@commands.calls("merge", merge_models)
def _merge(folder: Path) -> None:
    echo(f"model: {folder}")
