"""`biphasic study tune`: peak rates by short trials, written into the study file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Quiet, Root, echo, progress_console


def study_tune(
    file: Annotated[Path, typer.Argument(help="Study file (YAML).")],
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Peak rates to try, e.g. 5e-4,1e-3,2e-3. Default: a quarter, a half, once, "
            "twice and four times the file's own.",
        ),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Length of a trial, as a share of the longest budget.")
    ] = 0.1,
    extend: Annotated[
        bool,
        typer.Option(help="Where the edge of the list is the best, try up to three rates beyond."),
    ] = True,
    root: Root = Path("runs"),
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs at once; default: one per core, or one on a GPU."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(min=1, help="Threads per job; results may depend on it in the last bits."),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write the tuned study here, and leave FILE as it is.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained; do and write nothing.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Choose the peak rate for each model and objective by short runs, and write it into FILE."""
    from biphasic.study.paths import STORE
    from biphasic.study.spec.load import load_study
    from biphasic.study.tune.choice import parse_rates
    from biphasic.study.tune.search import first_rates, tune_study
    from biphasic.study.tune.text import plan_lines, result_lines
    from biphasic.study.tune.trials import plan_tuning

    console = progress_console(quiet=quiet)
    listed = None if rates is None else parse_rates(rates)
    if dry_run:
        tuning = plan_tuning(load_study(file), share)
        lines = plan_lines(tuning, first_rates(tuning, listed), root.resolve() / STORE)
        echo("\n".join(lines))
        return
    outcome = tune_study(
        file,
        root=root,
        rates=listed,
        share=share,
        extend=extend,
        out=out,
        num_workers=workers,
        num_threads=threads,
        console=console,
    )
    echo("\n".join(result_lines(outcome.record)))
    echo(f"curves: {outcome.folder / 'curve.png'}")
    echo("\n".join(outcome.difference or [f"{out or file}: has these rates already"]))
