"""What `biphasic paper` and `biphasic figures` take and print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import echo
from biphasic.cli.results import chosen_convention, shown

if TYPE_CHECKING:
    from biphasic.analysis.page.gallery import Gallery

Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="ENDING",
        help="Of tables: md, tex, csv, html; of figures: png, svg, pdf. Repeat for several. "
        "Default: all.",
    ),
]
EveryDataset = Annotated[
    bool,
    typer.Option("--every-dataset", help="A panel per dataset, in place of averages."),
]


def paper_command(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("paper"),
    formats: Formats = None,
    every_dataset: EveryDataset = False,
) -> None:
    """Write the reference study's tables, and those figures that they support."""
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
            help="With the reference study's values: in grey behind figures, in brackets in "
            "tables, where the dataset and its metric are the same.",
        ),
    ] = False,
    convention: Annotated[
        str | None,
        typer.Option(
            help="Intervals: 'standard' (Student's t) or 'paper' (1.96 errors). Default: the "
            "study's own."
        ),
    ] = None,
    every_dataset: EveryDataset = False,
) -> None:
    """Write all tables and figures that a study's records support, and say what they lack."""
    from biphasic.analysis.figures.catalog import record_figures, score_figures
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.records import load_study
    from biphasic.analysis.scores.reference import ReferenceValues
    from biphasic.analysis.scores.source import paper_scores, study_scores

    rule = chosen_convention(convention)
    chosen = chosen_formats(formats)
    folder = study.resolve()
    records = load_study(folder, folder.parent / "store")
    scores = study_scores(records, rule)
    reference = paper_scores() if paper else None
    if reference is not None and not ReferenceValues(scores, reference).has_datasets:
        echo(
            "--paper: no dataset of this study is the reference study's, with the same metric",
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
        echo(f"left out: {flat(missing.title)}: {flat(missing.reason)}")
