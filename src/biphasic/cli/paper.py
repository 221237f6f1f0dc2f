"""The `biphasic paper` and `biphasic figures` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import ByPretraining, echo
from biphasic.cli.results import chosen_convention, shown

if TYPE_CHECKING:
    from biphasic.analysis.page.gallery import Gallery

Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="ENDING",
        help="Tables: md, tex, csv, html. Figures: png, svg, pdf. Repeat for several. "
        "Default: all.",
    ),
]
EveryDataset = Annotated[
    bool,
    typer.Option("--every-dataset", help="Draw a panel per dataset instead of averages."),
]


def paper_command(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("paper"),
    formats: Formats = None,
    every_dataset: EveryDataset = False,
) -> None:
    """Write the reference study's tables and figures.

    Figures that need more than its published table are skipped.
    """
    from biphasic.analysis.figures.catalog import score_figures, without_records
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.scores.source import paper_scores

    chosen = chosen_formats(formats)
    scores = paper_scores()
    figures = [*score_figures(scores, is_every=every_dataset), *without_records()]
    _print(write_gallery(out, scores, figures, formats=chosen), out)


def figures_command(
    study: Annotated[Path, typer.Argument(help="A study's folder, e.g. runs/quickstart.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: gallery, in the study's folder.")
    ] = None,
    formats: Formats = None,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Add the reference study's values, in grey in figures and in brackets in "
            "tables, where dataset and metric match.",
        ),
    ] = False,
    convention: Annotated[
        str | None,
        typer.Option(
            help="Intervals: 'standard' (Student's t) or 'paper' (1.96 standard errors). "
            "Default: the study's."
        ),
    ] = None,
    by_pretraining: ByPretraining = False,
    every_dataset: EveryDataset = False,
) -> None:
    """Write the tables and figures of a study.

    Figures that its records do not support are skipped and listed.
    """
    from biphasic.analysis.figures.catalog import record_figures, score_figures
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.records import load_study
    from biphasic.analysis.scores.reference import alike_datasets
    from biphasic.analysis.scores.source import paper_scores, study_scores
    from biphasic.analysis.statistics.replicates import over_pretraining

    rule = chosen_convention(convention)
    chosen = chosen_formats(formats)
    folder = study.resolve()
    records = load_study(folder, folder.parent / "store")
    scores = study_scores(records, rule)
    if by_pretraining:
        scores = over_pretraining(scores)
    reference = paper_scores() if paper else None
    if reference is not None and not alike_datasets(scores, reference):
        echo(
            "--paper: no dataset and metric of this study match the reference study",
            err=True,
        )
    figures = [
        *score_figures(scores, is_every=every_dataset, reference=reference),
        *record_figures(records, convention=scores.convention),
    ]
    target = out if out is not None else folder / "gallery"
    gallery = write_gallery(target, scores, figures, formats=chosen, reference=reference)
    _print(gallery, target)


def _print(gallery: Gallery, out: Path) -> None:
    from biphasic.analysis.text import flat

    for path in gallery.paths:
        if path.parent == out:
            echo(shown(path.resolve()))
    for chart in gallery.drawn:
        if any(path.stem == chart.name for path in gallery.paths):
            echo(f"{shown(out.resolve())}/figures/{chart.name}.*: {flat(chart.title)}")
    for missing in gallery.skipped:
        echo(f"skipped: {flat(missing.title)}: {flat(missing.reason)}")
