"""The `biphasic study tune` command: choose peak rates by short trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Quiet, Root, StudyFile, Threads, Workers, echo, progress_console


def study_tune(
    file: StudyFile,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Peak rates to try, e.g. 5e-4,1e-3,2e-3. Default: 1/4, 1/2, 1, 2 and 4 times "
            "the file's rate.",
        ),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Trial length as a fraction of the longest schedule.")
    ] = 0.1,
    extend: Annotated[
        bool,
        typer.Option(help="If the best rate is at an edge of the list, try up to three beyond it."),
    ] = True,
    root: Root = Path("runs"),
    workers: Workers = None,
    threads: Threads = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write the tuned study here instead of changing FILE.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be trained, without training.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Choose peak learning rates by short trials.

    Writes one rate for each model and objective to FILE.
    """
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
    echo("\n".join(outcome.difference or [f"{out or file}: already has these rates"]))
