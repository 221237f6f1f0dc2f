"""The `biphasic analyze`, `claims`, `paper` and `figures` commands, which read results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import AsJson, ConventionOption, echo, print_table, shown
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.analysis.claims import Claim, ClaimResult
    from biphasic.analysis.page.gallery import Gallery
    from biphasic.analysis.records import Problem, StudyRecords
    from biphasic.analysis.scores.layout import Layout

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

    from biphasic.analysis.scores.layout import scores_of
    from biphasic.analysis.scores.table import at_one_rate
    from biphasic.analysis.statistics.replicates import over_pretraining
    from biphasic.analysis.tables.text import comparison_lines, notes, score_tables, scores_json
    from biphasic.analysis.text import flat, plain

    results = _read_results(folder, dataset, without)
    scores = scores_of(results, convention)
    problems = [f"{problem.kind}: {problem.text}" for problem in results.problems]
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
        for line in comparison_lines(scores):
            echo(plain(line))
    for problem in problems:
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

    from biphasic.analysis.claims import changed_verdicts, claims_report, restated
    from biphasic.analysis.claims.render import (
        claims_json,
        claims_lines,
        claims_markdown,
        closing_lines,
    )
    from biphasic.analysis.scores.layout import scores_of
    from biphasic.analysis.scores.source import paper_scores
    from biphasic.analysis.statistics.replicates import over_pretraining
    from biphasic.analysis.text import flat

    chosen = _chosen_claims(claims, only or ())
    if (folder is None) != paper:
        raise ConfigError("give either a folder, or --paper for the published table")
    if folder is None and (dataset or without):
        raise ConfigError("--dataset and --without choose among the datasets of a folder")
    if folder is None:
        scores = paper_scores()
    else:
        results = _read_results(folder, dataset, without)
        _echo_problems(results.problems)
        scores = scores_of(results, convention)
    if by_pretraining:
        scores = over_pretraining(scores)
    scores = restated(scores, convention) if convention else scores
    checked = claims_report(scores, claims=chosen)
    changes = changed_verdicts(scores, claims=chosen)
    if as_json:
        echo(json.dumps(claims_json(checked, scores, changes), indent=1))
    elif markdown:
        echo(claims_markdown(checked, scores, changes, with_details=details), nl=False)
    elif (console := Console(highlight=False)).is_terminal:
        for heading, is_open in (("Numbers", False), ("What is missing", True)):
            rows = [one for one in checked if (one.verdict in {"undecided", "no data"}) is is_open]
            if rows:
                console.print(_claims_table(rows, heading, with_details=details))
        for line in closing_lines(checked, scores, changes):
            console.print(Text(flat(line)))
    else:
        lines = claims_lines(checked, scores, changes, with_details=details)
        echo("\n".join(lines))


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


def _chosen_claims(file: Path | None, only: Sequence[str]) -> tuple[Claim, ...]:
    from biphasic.analysis.claims import load_claims, paper_claims
    from biphasic.config import nearest

    claims = paper_claims() if file is None else load_claims(file)
    known = [claim.id for claim in claims]
    for name in only:
        if name not in known:
            raise ConfigError(f"--only {name}: no such claim{nearest(name, known)}")
    return tuple(claim for claim in claims if not only or claim.id in only)


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
    from biphasic.analysis.figures.catalog import score_figures, without_records
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.scores.source import paper_scores

    chosen = chosen_formats(formats)
    scores = paper_scores()
    figures = [*score_figures(scores, is_every=every_dataset), *without_records()]
    _print_gallery(write_gallery(out, scores, figures, formats=chosen), out)


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
    from biphasic.analysis.figures.catalog import record_figures, run_figures, score_figures
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.scores.layout import Layout, scores_of
    from biphasic.analysis.scores.reference import alike_datasets
    from biphasic.analysis.scores.source import paper_scores
    from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining

    chosen = chosen_formats(formats)
    results = _read_results(folder, dataset, without)
    _echo_problems(results.problems)
    scores = scores_of(results, convention)
    if by_pretraining is None:
        scores = by_recipe(scores)
    elif by_pretraining:
        scores = over_pretraining(scores)
    reference = paper_scores() if paper else None
    if reference is not None and not alike_datasets(scores, reference):
        echo(
            "--paper: no dataset and metric of these results match the reference study",
            err=True,
        )
    if isinstance(results, Layout):
        further = run_figures(scores)
    else:
        further = record_figures(results, scores)
    figures = [*score_figures(scores, is_every=every_dataset, reference=reference), *further]
    target = out if out is not None else folder.resolve() / "gallery"
    gallery = write_gallery(target, scores, figures, formats=chosen, reference=reference)
    _print_gallery(gallery, target)


def _print_gallery(gallery: Gallery, out: Path) -> None:
    from biphasic.analysis.text import flat

    for path in gallery.paths:
        if path.parent == out:
            echo(shown(path.resolve()))
    for chart in gallery.drawn:
        if any(path.stem == chart.name for path in gallery.paths):
            echo(f"{shown(out.resolve())}/figures/{chart.name}.*: {flat(chart.title)}")
    for missing in gallery.skipped:
        echo(f"skipped: {flat(missing.title)}: {flat(missing.reason)}")


def _read_results(
    folder: Path, only: Sequence[str] | None, without: Sequence[str] | None
) -> StudyRecords | Layout:
    from biphasic.analysis.scores.datasets import DatasetChoice
    from biphasic.analysis.scores.layout import read_results

    return read_results(folder, DatasetChoice(tuple(only or ()), tuple(without or ())))
