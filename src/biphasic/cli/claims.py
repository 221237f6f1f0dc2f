"""The `biphasic claims` command: check claims against a study or the paper's table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import ByPretraining, ConventionOption, echo
from biphasic.cli.results import chosen_convention, read_scores

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.analysis.claims import Claim, ClaimResult
    from biphasic.analysis.scores.table import Scores
    from biphasic.records import Convention

_COLOURS = {"true": "green", "partly": "yellow", "false": "red", "undecided": "dim"}


def claims_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A study's folder, e.g. runs/quickstart, or one with "
            "results/MODEL/TASK/DATASET/lrX_sdS/results.json."
        ),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Check the reference study's published table instead.")
    ] = False,
    convention: ConventionOption = None,
    claims: Annotated[
        Path | None,
        typer.Option(
            help="Python file with custom claims; it is executed. Default: the paper's claims."
        ),
    ] = None,
    by_pretraining: ByPretraining = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Check this claim only; repeat for several."),
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="Print every comparison.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, including every comparison.")
    ] = False,
) -> None:
    """Check claims against a study's scores.

    Each claim is true, partly true, false or undecided.
    """
    import json

    from rich.console import Console
    from rich.text import Text

    from biphasic.analysis.claims import changed_verdicts, claims_report, restated
    from biphasic.analysis.claims.render import (
        claims_json,
        claims_lines,
        claims_markdown,
        closing_lines,
    )
    from biphasic.analysis.statistics.replicates import over_pretraining
    from biphasic.analysis.text import flat

    chosen = _chosen(claims, only or ())
    rule = chosen_convention(convention)
    scores = _scores(folder, is_paper=paper, convention=rule)
    if by_pretraining:
        scores = over_pretraining(scores)
    scores = scores if rule is None else restated(scores, rule)
    results = claims_report(scores, claims=chosen)
    changes = changed_verdicts(scores, claims=chosen)
    if as_json:
        echo(json.dumps(claims_json(results, scores, changes), indent=1))
    elif as_markdown:
        echo(claims_markdown(results, scores, changes, with_details=details), nl=False)
    elif (console := Console(highlight=False)).is_terminal:
        for heading, is_decided in (("Numbers", True), ("What is missing", False)):
            rows = [one for one in results if (one.verdict != "undecided") is is_decided]
            if rows:
                console.print(_table(rows, heading, with_details=details))
        for line in closing_lines(results, scores, changes):
            console.print(Text(flat(line)))
    else:
        lines = claims_lines(results, scores, changes, with_details=details)
        echo("\n".join(lines))


def _scores(folder: Path | None, *, is_paper: bool, convention: Convention | None) -> Scores:
    """Read the scores; report the number of problems on standard error."""
    from biphasic.analysis.scores.source import paper_scores
    from biphasic.analysis.text import count
    from biphasic.errors import ConfigError

    if (folder is None) != is_paper:
        raise ConfigError("give either a folder, or --paper for the published table")
    if folder is None:
        return paper_scores()
    scores, problems = read_scores(folder, convention)
    if problems:
        num_problems = count(len(problems), "problem")
        echo(f"{num_problems} with these records; 'biphasic analyze' lists them", err=True)
    return scores


def _chosen(file: Path | None, only: Sequence[str]) -> tuple[Claim, ...]:
    from biphasic.analysis.claims import load_claims, paper_claims
    from biphasic.config import nearest
    from biphasic.errors import ConfigError

    claims = paper_claims() if file is None else load_claims(file)
    known = [claim.id for claim in claims]
    for name in only:
        if name not in known:
            raise ConfigError(f"--only {name}: no such claim{nearest(name, known)}")
    return tuple(claim for claim in claims if not only or claim.id in only)


def _table(results: Sequence[ClaimResult], heading: str, *, with_details: bool) -> Table:
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
            Text(result.id),
            Text(result.verdict, style=_COLOURS[result.verdict]),
            Text(flat(result.text)),
            Text("\n".join(flat(line) for line in lines)),
        )
    return table
