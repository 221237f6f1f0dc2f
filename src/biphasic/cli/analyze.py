"""The `biphasic analyze` command: tables and comparisons of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import ByPretraining, ConventionOption, echo
from biphasic.cli.results import chosen_convention, print_table, read_scores


def analyze_command(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A study's folder, or one with results/MODEL/TASK/DATASET/lrX_sdS/results.json."
        ),
    ],
    convention: ConventionOption = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Test whether the best model differs from the next best."),
    ] = False,
    examples: Annotated[
        bool,
        typer.Option("--examples/--no-examples", help="With --compare: read per-example scores."),
    ] = True,
    one_rate: Annotated[
        bool,
        typer.Option(
            "--one-rate",
            help="Choose one learning rate for all seeds, by mean validation score.",
        ),
    ] = False,
    by_pretraining: ByPretraining = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Print means with 95 % intervals, and list excluded results."""
    import json

    from biphasic.analysis.scores.table import at_one_rate
    from biphasic.analysis.statistics.replicates import over_pretraining
    from biphasic.analysis.tables.text import comparison_lines, notes, score_tables, scores_json
    from biphasic.analysis.text import flat, plain

    scores, record_problems = read_scores(folder, chosen_convention(convention))
    problems = [f"{problem.kind}: {problem.text}" for problem in record_problems]
    if one_rate:
        scores = at_one_rate(scores)
    if by_pretraining:
        scores = over_pretraining(scores)
    if as_json:
        echo(json.dumps(scores_json(scores, problems), indent=1, allow_nan=False))
        return
    for table in score_tables(scores):
        print_table(table)
    echo("\n".join(notes(scores)))
    if compare:
        for line in comparison_lines(scores, with_examples=examples):
            echo(plain(line))
    for problem in problems:
        echo(flat(problem), err=True)
