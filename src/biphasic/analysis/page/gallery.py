"""Writing tables and figures into a folder, with a list of the skipped ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.analysis.figures.chart import Chart, Skipped, points_csv
from biphasic.analysis.records import Problem
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.markup import TABLE_FORMATS, make_sheets, markdown_text
from biphasic.analysis.text import flat
from biphasic.analysis.words import environment
from biphasic.errors import ConfigError
from biphasic.files import write_bytes, write_text
from biphasic.shown import Shown, inline, shown_path

FIGURE_FORMATS = ("png", "svg", "pdf")
FORMATS = (*TABLE_FORMATS, *FIGURE_FORMATS)  # extensions of all files that can be written
_INDEX = "figures.md"


@dataclass(frozen=True, repr=False)
class Gallery(Shown):
    """Written files and skipped figures, which `figures` and `paper` return.

    Attributes:
        paths: The files.
        out: Their folder.
        problems: Problems of the records.
        notes: Sentences about the choice of data.
    """

    paths: tuple[Path, ...]
    drawn: tuple[Chart, ...]
    skipped: tuple[Skipped, ...]
    out: Path
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each figure, with the reason why it was skipped."""
        drawn = [{"figure": one.name, "title": one.title, "skipped": ""} for one in self.drawn]
        return drawn + [
            {"figure": one.name, "title": one.title, "skipped": one.reason} for one in self.skipped
        ]

    def lines(self) -> Iterator[str]:
        """Return the files, and what was skipped."""
        out = shown_path(self.out.resolve())
        yield from (f"{out}/{path.name}" for path in self.paths if path.parent == self.out)
        written = {path.stem for path in self.paths}
        for chart in self.drawn:
            if chart.name in written:
                yield f"{out}/figures/{chart.name}.*: {flat(chart.title)}"
        for missing in self.skipped:
            yield f"skipped: {flat(missing.title)}: {flat(missing.reason)}"

    def drawing(self) -> str:
        """Return all figures."""
        from biphasic.analysis.figures.draw import draw, to_svg  # noqa: PLC0415

        charts = self.drawn
        return "".join(inline(to_svg(draw(one), name=one.name)) for one in charts)


def chosen_formats(names: Collection[str] | None) -> frozenset[str]:
    """Check file extensions; return all if none is given."""
    if unknown := sorted(set(names or ()) - set(FORMATS)):
        raise ConfigError(f"--format {unknown[0]}: unknown; choose from {', '.join(FORMATS)}")
    return frozenset(names or FORMATS)


def write_gallery(
    folder: Path,
    scores: Scores,
    figures: Iterable[Chart | Skipped],
    *,
    formats: Collection[str] = FORMATS,
    reference: Scores | None = None,
) -> Gallery:
    """Write `tables.*` and `figures/*` into a folder."""
    # Each figure comes with `NAME.csv`, its points. Files of skipped figures from earlier calls are
    # deleted. Values of a reference are shown next to the same cells.
    sheets = make_sheets(scores, reference=reference)
    paths = []
    for ending, write in TABLE_FORMATS.items():
        if ending in formats:
            paths.append(folder / f"tables.{ending}")
            write_text(paths[-1], write(scores, sheets))
    figures = [*figures]
    drawn = tuple(figure for figure in figures if isinstance(figure, Chart))
    skipped = tuple(figure for figure in figures if isinstance(figure, Skipped))
    endings = [ending for ending in FIGURE_FORMATS if ending in formats]
    if endings:
        for chart in drawn:
            paths += _write_figure(folder / "figures", chart, endings)
        for missing in skipped:
            for ending in (*FIGURE_FORMATS, "csv"):
                (folder / "figures" / f"{missing.name}.{ending}").unlink(missing_ok=True)
        paths.append(folder / _INDEX)
        write_text(paths[-1], _index(drawn, skipped, endings))
    return Gallery(tuple(paths), drawn, skipped, folder)


def _write_figure(folder: Path, chart: Chart, endings: Collection[str]) -> Iterator[Path]:
    from biphasic.analysis.figures.draw import draw, to_bytes  # noqa: PLC0415 - loads matplotlib

    figure = draw(chart)
    for ending in endings:
        yield (path := folder / f"{chart.name}.{ending}")
        write_bytes(path, to_bytes(figure, ending, name=chart.name))
    yield (path := folder / f"{chart.name}.csv")
    write_text(path, points_csv(chart))


def _index(drawn: Iterable[Chart], skipped: Iterable[Skipped], endings: Collection[str]) -> str:
    ending = "png" if "png" in endings else "svg"
    made = environment()
    made.filters.update(text=markdown_text)
    shown = ending if ending in endings else ""
    template = made.get_template("figures.md.j2")
    return template.render(drawn=drawn, skipped=skipped, ending=shown)
