"""The `biphasic adapt`, `pretrain`, `merge` and `estimate` commands, which make one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biphasic.api.training import adapt, estimate, merge_models, pretrain
from biphasic.cli.command import Commands
from biphasic.cli.output import echo, shown
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from biphasic.study.sizing.result import ResourceEstimate

commands = Commands()


def _seconds(text: str) -> int:
    """Return the seconds of a time `HH:MM:SS`."""
    import re

    from biphasic.config import DURATION, duration_seconds

    if not re.match(DURATION, text):
        raise ConfigError(f"--max-time {text}: give a time as HH:MM:SS")
    return duration_seconds(text)


def _recipe_text(
    recipe: Path,
    corpus: str | None,
    overrides: Sequence[str],
    compute: Mapping[str, Any],
    skip_steps: Sequence[int],
) -> str:
    from biphasic.study.inputs.corpus import corpus_settings
    from biphasic.study.spec.arms import read_recipe
    from biphasic.study.spec.resolved import recipe_text
    from biphasic.study.training import parse_compute

    how, chosen = parse_compute(compute), read_recipe(recipe, overrides).skipping(skip_steps)
    return recipe_text(chosen, corpus=corpus_settings(corpus), compute=how)


@commands.calls(
    "pretrain",
    pretrain,
    instead={"print_config": _recipe_text},
    max_seconds=typer.Option("--max-time", metavar="HH:MM:SS", parser=_seconds),
)
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


def _adaptation_text(**given: Any) -> str:
    from biphasic.adaptation import adaptation_text

    return adaptation_text(**given)


@commands.calls("adapt", adapt, instead={"print_config": _adaptation_text})
def _adapt(folder: Path) -> None:
    echo(f"encoder: {folder}")


@commands.calls(
    "merge",
    merge_models,
    out=typer.Option(),
    groups=typer.Option("--group", metavar="GROUP=WEIGHT"),
)
def _merge(folder: Path) -> None:
    echo(f"model: {folder}")
