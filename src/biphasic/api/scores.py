"""Results from Python: `analyze`, `compare`, `claims`, `figures` and `paper`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.verb import Function, Verb, option
from biphasic.errors import ConfigError
from biphasic.files import expanded

if TYPE_CHECKING:
    from biphasic.analysis.claims import Claim
    from biphasic.analysis.claims.claim import CheckedClaims
    from biphasic.analysis.page.gallery import Gallery
    from biphasic.analysis.records import Problem
    from biphasic.analysis.scores.read import Results
    from biphasic.analysis.tables.text import Analysis, Comparisons
    from biphasic.records import Convention


class Selection(Verb):
    """The results to read."""

    _: KW_ONLY
    convention: Convention | None = option(default=None, choices=("standard", "paper"))
    """Intervals: `standard` (Student's t) or `paper` (1.96 standard errors). Default: the study's,
    else standard."""
    dataset: Sequence[str] = option(default=(), metavar="NAME")
    """Use only these datasets. Default: all; in the reference study's released results, those of
    its averages."""
    without: Sequence[str] = option(default=(), metavar="NAME")
    """Leave out these datasets."""


class Reading(Selection):
    """Results of a folder."""

    folder: Path | str
    """A study's folder, e.g. runs/quickstart; the root of `evaluate`, e.g. runs; one with
    results/MODEL/TASK/DATASET/lrX_sdS/results.json; or results of other tools (docs/analyze.md)."""
    _: KW_ONLY
    one_rate: bool = False
    """Choose one learning rate for all seeds, by mean validation score."""
    by_pretraining: bool = False
    """For studies with several pretraining seeds: intervals over pretraining runs."""


class Drawing(Verb):
    """How figures are written."""

    _: KW_ONLY
    formats: Sequence[str] = option(default=(), flag="--format", metavar="ENDING")
    """Tables: md, tex, csv, html. Figures: png, svg, pdf. Default: all."""
    every_dataset: bool = False
    """Draw a panel per dataset instead of averages."""


class Analyze(Reading):
    """Show means with 95 % intervals, and list excluded results.

    Raises:
        DataError: The folder has no results.

    Example:
        >>> from biphasic import analyze
        >>> analysis = analyze("runs/mine")
        >>> sorted(analysis.means["model"])
        ['floor:majority', 'mlm', 'reference:bag-of-words']
        >>> sorted(analysis.frame["split"].unique())
        ['test', 'validation']
    """

    def __call__(self) -> Analysis:
        from biphasic.analysis.scores.read import scores_of
        from biphasic.analysis.scores.table import at_one_rate
        from biphasic.analysis.statistics.replicates import over_pretraining
        from biphasic.analysis.tables.text import Analysis

        results = _read(self.folder, self.dataset, self.without)
        scores = scores_of(results, self.convention)
        if self.one_rate:
            scores = at_one_rate(scores)
        if self.by_pretraining:
            scores = over_pretraining(scores)
        return Analysis(
            scores, tuple(f"{problem.kind}: {problem.text}" for problem in results.problems)
        )


class Compare(Reading):
    """Test whether models differ: those that the study planned, and the best with all others.

    Other arguments and errors are those of `analyze`; the command is `biphasic analyze --compare`.

    Example:
        >>> from biphasic import compare
        >>> len(compare("runs/mine").frame)  # a single model has nothing to differ from
        0
    """

    _: KW_ONLY
    pairs: Sequence[tuple[str, str]] = ()
    """Compare these pairs of models instead, which are corrected together."""

    def __call__(self) -> Comparisons:
        values = self.values()
        pairs = values.pop("pairs")
        return Analyze(**values)().compare(pairs)


class Claims(Selection):
    """Check claims against a study's scores.

    Each claim is true, partly true, false or undecided, or the study has no data for it.

    Raises:
        ConfigError: Both a folder and `paper` are given, or neither; or a claim is unknown.
        DataError: The folder has no results.

    Example:
        >>> from biphasic import claims
        >>> claims(paper=True, only=["C01"]).frame["verdict"].tolist()
        ['true']
    """

    folder: Path | str | None = None
    """A study's folder, e.g. runs/quickstart; the root of `evaluate`, e.g. runs; one with
    results/MODEL/TASK/DATASET/lrX_sdS/results.json; or results of other tools (docs/analyze.md)."""
    _: KW_ONLY
    paper: bool = False
    """Check the reference study's published table instead."""
    claims: Path | str | None = None
    """Python file with custom claims; it is executed. Default: the paper's claims."""
    by_pretraining: bool = False
    """For studies with several pretraining seeds: intervals over pretraining runs."""
    only: Sequence[str] = option(default=(), metavar="ID")
    """Check these claims only."""

    def __call__(self) -> CheckedClaims:
        from biphasic.analysis.claims import changed_verdicts, claims_report, restated
        from biphasic.analysis.claims.claim import CheckedClaims
        from biphasic.analysis.scores.read import scores_of
        from biphasic.analysis.scores.source import paper_scores
        from biphasic.analysis.statistics.replicates import over_pretraining

        chosen = _chosen_claims(self.claims, self.only)
        if (self.folder is None) != self.paper:
            raise ConfigError("give either a folder, or --paper for the published table")
        if self.folder is None and (self.dataset or self.without):
            raise ConfigError("--dataset and --without choose among the datasets of a folder")
        problems: Sequence[Problem] = ()
        if self.folder is None:
            scores = paper_scores()
        else:
            results = _read(self.folder, self.dataset, self.without)
            scores, problems = scores_of(results, self.convention), results.problems
        if self.by_pretraining:
            scores = over_pretraining(scores)
        scores = restated(scores, self.convention) if self.convention else scores
        return CheckedClaims(
            claims_report(scores, claims=chosen),
            scores,
            changed_verdicts(scores, claims=chosen),
            tuple(problems),
        )


class Figures(Selection, Drawing):
    """Write the tables and figures of a study, or of results of other tools.

    Figures that their records do not support are skipped and listed.

    Raises:
        ConfigError: A format is unknown.
        DataError: The folder has no results.

    Example:
        >>> from biphasic import figures
        >>> made = figures("runs/mine", "drawn", formats=["svg", "csv"])
        >>> (made.out / "tables.csv").is_file(), "size" in set(made.frame["figure"])
        (True, True)
    """

    folder: Path | str
    """A study's folder, e.g. runs/quickstart; the root of `evaluate`, e.g. runs; one with
    results/MODEL/TASK/DATASET/lrX_sdS/results.json; or results of other tools (docs/analyze.md)."""
    out: Path | str | None = option(default=None, flag="--out")
    """Folder to write. Default: gallery, in this folder."""
    _: KW_ONLY
    paper: bool = False
    """Add the reference study's values, in grey in figures and in brackets in tables, where dataset
    and metric match."""
    by_pretraining: bool | None = option(default=None, flag="--by-pretraining/--single-runs")
    """Combine pretraining runs of a recipe, or not. Default: if every recipe has several, as in the
    report."""

    def __call__(self) -> Gallery:
        from biphasic.analysis.figures.catalog import score_figures
        from biphasic.analysis.figures.runs import run_figures
        from biphasic.analysis.page.gallery import chosen_formats, write_gallery
        from biphasic.analysis.records import StudyRecords
        from biphasic.analysis.scores.read import scores_of
        from biphasic.analysis.scores.reference import alike_datasets
        from biphasic.analysis.scores.source import paper_scores
        from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining

        chosen = chosen_formats(self.formats)
        results = _read(self.folder, self.dataset, self.without)
        scores = scores_of(results, self.convention)
        if self.by_pretraining is None:
            scores = by_recipe(scores)
        elif self.by_pretraining:
            scores = over_pretraining(scores)
        reference = paper_scores() if self.paper else None
        is_alike = reference is None or alike_datasets(scores, reference)
        note = "--paper: no dataset and metric of these results match the reference study"
        drawn = [
            *score_figures(scores, is_every=self.every_dataset, reference=reference),
            *run_figures(scores, results if isinstance(results, StudyRecords) else None),
        ]
        target = (
            expanded(self.folder).resolve() / "gallery" if self.out is None else expanded(self.out)
        )
        gallery = write_gallery(target, scores, drawn, formats=chosen, reference=reference)
        notes = () if is_alike else (note,)
        return replace(gallery, problems=tuple(results.problems), notes=notes)


class Paper(Drawing):
    """Write the reference study's tables and figures.

    Figures that need more than its published table are skipped.

    Raises:
        ConfigError: A format is unknown.

    Example:
        >>> from biphasic import paper
        >>> [path.name for path in paper("theirs", formats=["md"]).paths]
        ['tables.md']
    """

    out: Path | str = option(default="paper", flag="--out")
    """Folder to write."""

    def __call__(self) -> Gallery:
        from biphasic.analysis.figures.catalog import score_figures
        from biphasic.analysis.figures.runs import run_figures
        from biphasic.analysis.page.gallery import chosen_formats, write_gallery
        from biphasic.analysis.scores.source import paper_scores

        chosen, scores, target = chosen_formats(self.formats), paper_scores(), expanded(self.out)
        drawn = [*score_figures(scores, is_every=self.every_dataset), *run_figures(scores)]
        return write_gallery(target, scores, drawn, formats=chosen)


def _read(folder: Path | str, only: Sequence[str], without: Sequence[str]) -> Results:
    from biphasic.analysis.scores.read import read_results
    from biphasic.analysis.scores.reference import DatasetChoice

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


analyze = Function(Analyze)
compare = Function(Compare)
claims = Function(Claims)
figures = Function(Figures)
paper = Function(Paper)
