"""The `biphasic analyze`, `claims`, `paper` and `figures` commands, which read results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.api.scores import analyze, claims, figures, paper
from biphasic.cli.command import Commands
from biphasic.cli.output import echo, print_table

if TYPE_CHECKING:
    from biphasic.analysis.claims.render import CheckedClaims
    from biphasic.analysis.page.gallery import Gallery
    from biphasic.analysis.records import Problem
    from biphasic.analysis.tables.text import Analysis

commands = Commands()


@commands.calls("analyze", analyze)
def _analyze(
    analysis: Analysis,
    *,
    compare: Annotated[
        bool, typer.Option(help="Test whether the best model differs from the next best.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    from biphasic.analysis.text import flat

    if as_json:
        echo(json.dumps(analysis.to_json(), indent=1, allow_nan=False))
        return
    for table in analysis.tables():
        print_table(table)
    echo("\n".join(analysis.explanations()))
    if compare:
        for line in analysis.compare().lines():
            echo(line)
    for problem in analysis.problems:
        echo(flat(problem), err=True)


@commands.calls("claims", claims)
def _claims(
    checked: CheckedClaims,
    *,
    details: Annotated[bool, typer.Option(help="Print every comparison.")] = False,
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, including every comparison.")
    ] = False,
) -> None:
    _echo_problems(checked.problems)
    if as_json:
        echo(json.dumps(checked.to_json(), indent=1))
    elif markdown:
        echo(checked.to_markdown(details=details), nl=False)
    else:
        echo("\n".join(checked.lines(details=details)))


def _echo_problems(problems: Sequence[Problem]) -> None:
    """Report on standard error the datasets left out, and the number of other problems."""
    from biphasic.amounts import count
    from biphasic.analysis.text import flat

    left_out = [problem for problem in problems if problem.kind == "left out"]
    for problem in left_out:
        echo(flat(f"{problem.kind}: {problem.text}"), err=True)
    if others := len(problems) - len(left_out):
        of_records = f"{count(others, 'problem')} with these records"
        echo(f"{of_records}; 'biphasic analyze' lists them", err=True)


commands.prints("paper", paper)


@commands.calls("figures", figures)
def _figures(made: Gallery) -> None:
    _echo_problems(made.problems)
    for note in made.notes:
        echo(note, err=True)
    echo(str(made))
