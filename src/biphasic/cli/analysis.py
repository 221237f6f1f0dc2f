"""The `biphasic analyze`, `claims`, `paper` and `figures` commands, which read results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import AsJson, ConventionOption, echo, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.analysis.claims import ClaimResult
    from biphasic.analysis.records import Problem

_COLOURS = {"true": "green", "partly": "yellow", "false": "red"}
_RESULTS = (
    "A study's folder, e.g. runs/quickstart, or one with "
    "results/MODEL/TASK/DATASET/lrX_sdS/results.json."
)
Results = Annotated[Path, typer.Argument(help=_RESULTS)]
OnlyDatasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="Use only this dataset; repeat for several. Default: all; in the reference study's "
        "released results, those of its averages.",
    ),
]
WithoutDatasets = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="NAME", help="Leave out this dataset; repeat for several."),
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="ENDING",
        help="Tables: md, tex, csv, html. Figures: png, svg, pdf. Repeat for several. "
        "Default: all.",
    ),
]


def analyze_command(
    folder: Results,
    convention: ConventionOption = None,
    compare: bool = False,
    one_rate: bool = False,
    by_pretraining: bool = False,
    dataset: OnlyDatasets = None,
    without: WithoutDatasets = None,
    as_json: AsJson = False,
) -> None:
    """Print means with 95 % intervals, and list excluded results.

    Args:
        compare: Test whether the best model differs from the next best.
        one_rate: Choose one learning rate for all seeds, by mean validation score.
        by_pretraining: For studies with several pretraining seeds: intervals over pretraining runs.
        as_json: Print all numbers as JSON.
    """
    import json

    from biphasic.analysis.text import flat
    from biphasic.api.scores import analyze

    analysis = analyze(
        folder,
        convention=convention,
        one_rate=one_rate,
        by_pretraining=by_pretraining,
        dataset=dataset or (),
        without=without or (),
    )
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


def claims_command(
    folder: Annotated[Path | None, typer.Argument(help=_RESULTS)] = None,
    paper: bool = False,
    convention: ConventionOption = None,
    claims: Path | None = None,
    by_pretraining: bool = False,
    dataset: OnlyDatasets = None,
    without: WithoutDatasets = None,
    only: Annotated[list[str] | None, typer.Option(metavar="ID")] = None,
    details: bool = False,
    markdown: bool = False,
    as_json: AsJson = False,
) -> None:
    """Check claims against a study's scores.

    Each claim is true, partly true, false or undecided, or the study has no data for it.

    Args:
        paper: Check the reference study's published table instead.
        claims: Python file with custom claims; it is executed. Default: the paper's claims.
        by_pretraining: For studies with several pretraining seeds: intervals over pretraining runs.
        only: Check this claim only; repeat for several.
        details: Print every comparison.
        markdown: Print Markdown.
        as_json: Print JSON, including every comparison.
    """
    import json

    from rich.console import Console
    from rich.text import Text

    from biphasic.analysis.claims.render import closing_lines
    from biphasic.analysis.text import flat
    from biphasic.api.scores import claims as check

    checked = check(
        folder,
        paper=paper,
        convention=convention,
        claims=claims,
        by_pretraining=by_pretraining,
        dataset=dataset or (),
        without=without or (),
        only=only or (),
    )
    _echo_problems(checked.problems)
    if as_json:
        echo(json.dumps(checked.to_json(), indent=1))
    elif markdown:
        echo(checked.to_markdown(details=details), nl=False)
    elif (console := Console(highlight=False)).is_terminal:
        for heading, is_open in (("Numbers", False), ("What is missing", True)):
            rows = [
                one
                for one in checked.results
                if (one.verdict in {"undecided", "no data"}) is is_open
            ]
            if rows:
                console.print(_claims_table(rows, heading, with_details=details))
        for line in closing_lines(checked.results, checked.scores, checked.changes):
            console.print(Text(flat(line)))
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


def _claims_table(results: Sequence[ClaimResult], heading: str, *, with_details: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    from biphasic.analysis.claims.render import body_lines
    from biphasic.analysis.text import flat

    table = Table(show_lines=True)
    for name in ("Claim", "Verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("Sentence", ratio=2)
    table.add_column(heading, ratio=3)
    for result in results:
        lines = body_lines(result, with_details=with_details)
        table.add_row(
            Text(result.claim.id),
            Text(result.verdict, style=_COLOURS.get(result.verdict, "dim")),
            Text(flat(result.claim.text)),
            Text("\n".join(flat(line) for line in lines)),
        )
    return table


def paper_command(
    out: Path = Path("paper"), formats: Formats = None, every_dataset: bool = False
) -> None:
    """Write the reference study's tables and figures.

    Figures that need more than its published table are skipped.

    Args:
        out: Folder to write.
        every_dataset: Draw a panel per dataset instead of averages.
    """
    from biphasic.api.scores import paper

    echo("\n".join(paper(out, formats=formats or (), every_dataset=every_dataset).lines()))


def figures_command(
    folder: Results,
    out: Path | None = None,
    formats: Formats = None,
    paper: bool = False,
    convention: ConventionOption = None,
    by_pretraining: Annotated[bool | None, typer.Option("--by-pretraining/--single-runs")] = None,
    dataset: OnlyDatasets = None,
    without: WithoutDatasets = None,
    every_dataset: bool = False,
) -> None:
    """Write the tables and figures of a study, or of results of other tools.

    Figures that their records do not support are skipped and listed.

    Args:
        out: Folder to write. Default: gallery, in this folder.
        paper: Add the reference study's values, in grey in figures and in brackets in tables, where
            dataset and metric match.
        by_pretraining: Combine pretraining runs of a recipe, or not. Default: if every recipe has
            several, as in the report.
        every_dataset: Draw a panel per dataset instead of averages.
    """
    from biphasic.api.scores import figures

    made = figures(
        folder,
        out,
        formats=formats or (),
        paper=paper,
        convention=convention,
        by_pretraining=by_pretraining,
        dataset=dataset or (),
        without=without or (),
        every_dataset=every_dataset,
    )
    _echo_problems(made.problems)
    for note in made.notes:
        echo(note, err=True)
    echo("\n".join(made.lines()))
