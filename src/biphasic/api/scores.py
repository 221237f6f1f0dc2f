"""Results from Python: `analyze`, `compare`, `claims`, `figures` and `paper`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.shown import Shown, inline, shown_path, table_lines

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.analysis.claims import Claim, ClaimResult
    from biphasic.analysis.claims.render import Changes
    from biphasic.analysis.page.gallery import Gallery
    from biphasic.analysis.records import Problem, StudyRecords
    from biphasic.analysis.scores.layout import Layout
    from biphasic.analysis.scores.others import OtherResults
    from biphasic.analysis.scores.table import Scores
    from biphasic.analysis.statistics.comparison import ModelComparison
    from biphasic.records import Convention

_MOST_MODELS = 40  # of a drawing


@dataclass(frozen=True, repr=False)
class Analysis(Shown):
    """What `analyze` returns: scores of models on datasets, in percentage points.

    Attributes:
        scores: The table of scores, with the runs behind each.
        problems: What was omitted or is missing, one line each.
    """

    scores: Scores
    problems: tuple[str, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each model and dataset: mean, half-width and number of seeds."""
        from biphasic.analysis.tables.text import score_rows

        return score_rows(self.scores)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, as `--json` prints them."""
        from biphasic.analysis.tables.text import scores_json

        return scores_json(self.scores, self.problems)

    def tables(self) -> Iterator[Table]:
        """Return a table for each task, for a terminal."""
        from biphasic.analysis.tables.text import score_tables

        return score_tables(self.scores)

    def explanations(self) -> list[str]:
        """Return how to read the tables, in sentences."""
        from biphasic.analysis.tables.text import notes

        return notes(self.scores)

    def lines(self) -> Iterator[str]:
        """Return the tables, and how to read them."""
        from biphasic.analysis.text import flat

        for table in self.tables():
            yield from table_lines(table)
        yield from self.explanations()
        yield from map(flat, self.problems)

    def drawing(self) -> str:
        """Return means, intervals and seeds as strips; empty for many models."""
        from biphasic.analysis.figures.render import to_svg
        from biphasic.analysis.figures.strips import draw_strips
        from biphasic.palette import objective_styles

        models = self.scores.models
        if not self.scores.datasets or len(models) > _MOST_MODELS:
            return ""
        styles = objective_styles(sorted({model.objective for model in models}))
        by_model = {model.name: styles[model.objective] for model in models}
        titles = {dataset.name: dataset.name for dataset in self.scores.datasets}
        return inline(to_svg(draw_strips(self.scores, by_model, titles), name="scores"))

    def compare(self) -> Comparisons:
        """Test whether the best model of each dataset differs from the others."""
        return Comparisons(self.scores)


@dataclass(frozen=True, repr=False)
class Comparisons(Shown):
    """What `compare` returns: differences of models on each dataset, and whether they are clear.

    Attributes:
        scores: The table of scores that is tested.
    """

    scores: Scores

    def results(self) -> Iterator[ModelComparison]:
        """Yield the planned comparisons, and those of each dataset's best model with the others."""
        from biphasic.analysis.statistics.compare import family_of

        for dataset in self.scores.datasets:
            family = family_of(self.scores, dataset.name)
            yield from family.of_plan
            yield from family.with_best

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each comparison; p values are corrected."""
        names = self.scores.labels
        rows = []
        for one in self.results():
            low, high = one.interval or (None, None)
            rows.append(
                {
                    "dataset": one.dataset,
                    "first": names[one.first],
                    "second": names[one.second],
                    "difference": one.difference.mean,
                    "low": low,
                    "high": high,
                    "p": one.p_adjusted,
                    "verdict": one.verdict,
                    "is_planned": one.is_planned,
                }
            )
        return rows

    def lines(self) -> Iterator[str]:
        """Return the comparisons in sentences."""
        from biphasic.analysis.tables.text import comparison_lines
        from biphasic.analysis.text import plain

        return map(plain, comparison_lines(self.scores))


@dataclass(frozen=True, repr=False)
class CheckedClaims(Shown):
    """What `claims` returns: claims and their verdicts.

    Attributes:
        results: Each claim with its checks.
        scores: The table of scores they were checked on.
        changes: Verdicts that depend on the convention: by `paper` and by `standard`.
        problems: Problems of the records.
    """

    results: tuple[ClaimResult, ...]
    scores: Scores
    changes: Changes
    problems: tuple[Problem, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each claim."""
        return [
            {
                "id": one.claim.id,
                "verdict": one.verdict,
                "claim": one.claim.text,
                "numbers": one.numbers,
                "missing": one.missing,
            }
            for one in self.results
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything, as `--json` prints it."""
        from biphasic.analysis.claims.render import claims_json

        return claims_json(self.results, self.scores, self.changes)

    def to_markdown(self, *, details: bool = False) -> str:
        """Return a page in Markdown."""
        from biphasic.analysis.claims.render import claims_markdown

        return claims_markdown(self.results, self.scores, self.changes, with_details=details)

    def lines(self, *, details: bool = False) -> Iterator[str]:
        """Return the claims as plain lines, decided ones first."""
        from biphasic.analysis.claims.render import claims_lines

        return claims_lines(self.results, self.scores, self.changes, with_details=details)


@dataclass(frozen=True, repr=False)
class Figures(Shown):
    """What `figures` and `paper` return.

    Attributes:
        gallery: The figures that were drawn or skipped, and the files.
        out: Folder of the files.
        problems: Problems of the records.
        notes: Sentences about the choice of data.
    """

    gallery: Gallery
    out: Path
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each figure, with the reason why it was skipped."""
        drawn = [
            {"figure": one.name, "title": one.title, "skipped": ""} for one in self.gallery.drawn
        ]
        return drawn + [
            {"figure": one.name, "title": one.title, "skipped": one.reason}
            for one in self.gallery.skipped
        ]

    def lines(self) -> Iterator[str]:
        """Return the files, and what was skipped."""
        from biphasic.analysis.text import flat

        out, gallery = shown_path(self.out.resolve()), self.gallery
        yield from (f"{out}/{path.name}" for path in gallery.paths if path.parent == self.out)
        written = {path.stem for path in gallery.paths}
        for chart in gallery.drawn:
            if chart.name in written:
                yield f"{out}/figures/{chart.name}.*: {flat(chart.title)}"
        for missing in gallery.skipped:
            yield f"skipped: {flat(missing.title)}: {flat(missing.reason)}"

    def drawing(self) -> str:
        """Return all figures."""
        from biphasic.analysis.figures.draw import draw_chart
        from biphasic.analysis.figures.render import to_svg

        charts = self.gallery.drawn
        return "".join(inline(to_svg(draw_chart(one), name=one.name)) for one in charts)


def analyze(
    folder: Path | str,
    *,
    convention: Convention | None = None,
    one_rate: bool = False,
    by_pretraining: bool = False,
    dataset: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Analysis:
    """Read scores: means with 95 % intervals of each model on each dataset.

    Args:
        folder: A study's folder, or one with the results of other tools
            (`results/MODEL/TASK/DATASET/lrX_sdS/results.json`).
        convention: Intervals: `standard` (Student's t) or `paper` (1.96 standard errors). The
            study's when None, else standard.
        one_rate: Choose one learning rate for all seeds, by mean validation score.
        by_pretraining: For studies with several pretraining seeds: intervals over pretraining runs.
        dataset: Use only these datasets; all when empty.
        without: Leave out these datasets.

    Raises:
        DataError: The folder has no results.

    Example:
        >>> from biphasic import analyze
        >>> analysis = analyze("runs/mine")
        >>> analysis.frame[["model", "dataset", "num_seeds"]].values.tolist()
        [['mlm', 'reviews', 1]]
    """
    from biphasic.analysis.scores.layout import scores_of
    from biphasic.analysis.scores.table import at_one_rate
    from biphasic.analysis.statistics.replicates import over_pretraining

    results = _read(folder, dataset, without)
    scores = scores_of(results, convention)
    if one_rate:
        scores = at_one_rate(scores)
    if by_pretraining:
        scores = over_pretraining(scores)
    return Analysis(scores, tuple(f"{one.kind}: {one.text}" for one in results.problems))


def compare(
    folder: Path | str,
    *,
    convention: Convention | None = None,
    one_rate: bool = False,
    by_pretraining: bool = False,
    dataset: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Comparisons:
    """Test whether models differ: those that the study planned, and the best with all others.

    Arguments and errors are those of `analyze`; the command is `biphasic analyze --compare`.

    Example:
        >>> from biphasic import compare
        >>> len(compare("runs/mine").frame)  # a single model has nothing to differ from
        0
    """
    return analyze(
        folder,
        convention=convention,
        one_rate=one_rate,
        by_pretraining=by_pretraining,
        dataset=dataset,
        without=without,
    ).compare()


def claims(
    folder: Path | str | None = None,
    *,
    paper: bool = False,
    convention: Convention | None = None,
    claims: Path | str | None = None,
    by_pretraining: bool = False,
    dataset: Sequence[str] = (),
    without: Sequence[str] = (),
    only: Sequence[str] = (),
) -> CheckedClaims:
    """Check claims against a study's scores.

    Each claim is true, partly true, false or undecided, or the study has no data for it.

    Args:
        folder: As in `analyze`.
        paper: Check the reference study's published table instead.
        convention: As in `analyze`.
        claims: Python file with custom claims; it is executed. The paper's claims when None.
        by_pretraining: As in `analyze`.
        dataset: As in `analyze`.
        without: As in `analyze`.
        only: Check these claims only.

    Raises:
        ConfigError: Both a folder and `paper` are given, or neither; or a claim is unknown.
        DataError: The folder has no results.

    Example:
        >>> from biphasic import claims
        >>> claims(paper=True, only=["C01"]).frame["verdict"].tolist()
        ['true']
    """
    from biphasic.analysis.claims import changed_verdicts, claims_report, restated
    from biphasic.analysis.scores.layout import scores_of
    from biphasic.analysis.scores.source import paper_scores
    from biphasic.analysis.statistics.replicates import over_pretraining

    chosen = _chosen_claims(claims, only)
    if (folder is None) != paper:
        raise ConfigError("give either a folder, or --paper for the published table")
    if folder is None and (dataset or without):
        raise ConfigError("--dataset and --without choose among the datasets of a folder")
    problems: Sequence[Problem] = ()
    if folder is None:
        scores = paper_scores()
    else:
        results = _read(folder, dataset, without)
        scores, problems = scores_of(results, convention), results.problems
    if by_pretraining:
        scores = over_pretraining(scores)
    scores = restated(scores, convention) if convention else scores
    return CheckedClaims(
        claims_report(scores, claims=chosen),
        scores,
        changed_verdicts(scores, claims=chosen),
        tuple(problems),
    )


def figures(
    folder: Path | str,
    out: Path | str | None = None,
    *,
    formats: Sequence[str] = (),
    paper: bool = False,
    convention: Convention | None = None,
    by_pretraining: bool | None = None,
    dataset: Sequence[str] = (),
    without: Sequence[str] = (),
    every_dataset: bool = False,
) -> Figures:
    """Write the tables and figures of a study, or of results of other tools.

    Figures that their records do not support are skipped and listed.

    Args:
        folder: As in `analyze`.
        out: Folder to write; `gallery` in `folder` when None.
        formats: Tables: `md`, `tex`, `csv`, `html`. Figures: `png`, `svg`, `pdf`. All when empty.
        paper: Add the reference study's values where dataset and metric match.
        convention: As in `analyze`.
        by_pretraining: Combine pretraining runs of a recipe, or not; if every recipe has several,
            as in the report, when None.
        dataset: As in `analyze`.
        without: As in `analyze`.
        every_dataset: Draw a panel per dataset instead of averages.

    Raises:
        ConfigError: A format is unknown.
        DataError: The folder has no results.

    Example:
        >>> from biphasic import figures
        >>> made = figures("runs/mine", "drawn", formats=["svg", "csv"])
        >>> (made.out / "tables.csv").is_file(), "size" in set(made.frame["figure"])
        (True, True)
    """
    from biphasic.analysis.figures.catalog import record_figures, run_figures, score_figures
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.records import StudyRecords
    from biphasic.analysis.scores.layout import scores_of
    from biphasic.analysis.scores.reference import alike_datasets
    from biphasic.analysis.scores.source import paper_scores
    from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining

    chosen = chosen_formats(formats)
    results = _read(folder, dataset, without)
    scores = scores_of(results, convention)
    if by_pretraining is None:
        scores = by_recipe(scores)
    elif by_pretraining:
        scores = over_pretraining(scores)
    reference = paper_scores() if paper else None
    is_alike = reference is None or alike_datasets(scores, reference)
    note = "--paper: no dataset and metric of these results match the reference study"
    is_study = isinstance(results, StudyRecords)
    further = record_figures(results, scores) if is_study else run_figures(scores)
    drawn = [*score_figures(scores, is_every=every_dataset, reference=reference), *further]
    target = expanded(folder).resolve() / "gallery" if out is None else expanded(out)
    return Figures(
        write_gallery(target, scores, drawn, formats=chosen, reference=reference),
        target,
        tuple(results.problems),
        () if is_alike else (note,),
    )


def paper(
    out: Path | str = "paper", *, formats: Sequence[str] = (), every_dataset: bool = False
) -> Figures:
    """Write the reference study's tables and figures.

    Figures that need more than its published table are skipped.

    Args:
        out: Folder to write.
        formats: As in `figures`.
        every_dataset: As in `figures`.

    Raises:
        ConfigError: A format is unknown.

    Example:
        >>> from biphasic import paper
        >>> [path.name for path in paper("theirs", formats=["md"]).gallery.paths]
        ['tables.md']
    """
    from biphasic.analysis.figures.catalog import score_figures, without_records
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.scores.source import paper_scores

    chosen, scores, target = chosen_formats(formats), paper_scores(), expanded(out)
    drawn = [*score_figures(scores, is_every=every_dataset), *without_records()]
    return Figures(write_gallery(target, scores, drawn, formats=chosen), target)


def _read(
    folder: Path | str, only: Sequence[str], without: Sequence[str]
) -> StudyRecords | Layout | OtherResults:
    from biphasic.analysis.scores.datasets import DatasetChoice
    from biphasic.analysis.scores.layout import read_results

    return read_results(expanded(folder), DatasetChoice(tuple(only), tuple(without)))


def _chosen_claims(file: Path | str | None, only: Sequence[str]) -> tuple[Claim, ...]:
    from biphasic.analysis.claims import load_claims, paper_claims
    from biphasic.config import nearest

    claims = paper_claims() if file is None else load_claims(Path(file))
    known = [claim.id for claim in claims]
    for name in only:
        if name not in known:
            raise ConfigError(f"--only {name}: no such claim{nearest(name, known)}")
    return tuple(claim for claim in claims if not only or claim.id in only)
