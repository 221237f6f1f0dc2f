"""Results from Python: `analyze`, `compare`, `claims`, `figures` and `paper`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.arguments import check_arguments
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from biphasic.analysis.claims import Claim
    from biphasic.analysis.records import Problem
    from biphasic.analysis.scores.layout import Results
    from biphasic.api.results.scores import Analysis, CheckedClaims, Comparisons, Figures
    from biphasic.records import Convention


@check_arguments()
def analyze(
    folder: Path | str,
    *,
    convention: Convention | None = None,
    one_rate: bool = False,
    by_pretraining: bool = False,
    dataset: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Analysis:
    """Show means with 95 % intervals, and list excluded results.

    Args:
        folder: A study's folder, e.g. runs/quickstart; the root of `evaluate`, e.g. runs; one with
            results/MODEL/TASK/DATASET/lrX_sdS/results.json; or results of other tools
            (docs/analyze.md).
        convention: Intervals: `standard` (Student's t) or `paper` (1.96 standard errors). Default:
            the study's, else standard.
        one_rate: Choose one learning rate for all seeds, by mean validation score.
        by_pretraining: For studies with several pretraining seeds: intervals over pretraining runs.
        dataset: Use only these datasets. Default: all; in the reference study's released results,
            those of its averages.
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
    from biphasic.api.results.scores import Analysis

    results = _read(folder, dataset, without)
    scores = scores_of(results, convention)
    if one_rate:
        scores = at_one_rate(scores)
    if by_pretraining:
        scores = over_pretraining(scores)
    return Analysis(scores, tuple(f"{one.kind}: {one.text}" for one in results.problems))


@check_arguments()
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


@check_arguments()
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
        claims: Python file with custom claims; it is executed. Default: the paper's claims.
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
    from biphasic.api.results.scores import CheckedClaims

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


@check_arguments()
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
        out: Folder to write. Default: gallery, in this folder.
        formats: Tables: md, tex, csv, html. Figures: png, svg, pdf. Default: all.
        paper: Add the reference study's values, in grey in figures and in brackets in tables, where
            dataset and metric match.
        convention: As in `analyze`.
        by_pretraining: Combine pretraining runs of a recipe, or not. Default: if every recipe has
            several, as in the report.
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
    from biphasic.analysis.figures.catalog import run_figures, score_figures
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.records import StudyRecords
    from biphasic.analysis.scores.layout import scores_of
    from biphasic.analysis.scores.reference import alike_datasets
    from biphasic.analysis.scores.source import paper_scores
    from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining
    from biphasic.api.results.scores import Figures
    from biphasic.files import expanded

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
    drawn = [
        *score_figures(scores, is_every=every_dataset, reference=reference),
        *run_figures(scores, results if isinstance(results, StudyRecords) else None),
    ]
    target = expanded(folder).resolve() / "gallery" if out is None else expanded(out)
    return Figures(
        write_gallery(target, scores, drawn, formats=chosen, reference=reference),
        target,
        tuple(results.problems),
        () if is_alike else (note,),
    )


@check_arguments()
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
    from biphasic.analysis.figures.catalog import run_figures, score_figures
    from biphasic.analysis.page.gallery import chosen_formats, write_gallery
    from biphasic.analysis.scores.source import paper_scores
    from biphasic.api.results.scores import Figures
    from biphasic.files import expanded

    chosen, scores, target = chosen_formats(formats), paper_scores(), expanded(out)
    drawn = [*score_figures(scores, is_every=every_dataset), *run_figures(scores)]
    return Figures(write_gallery(target, scores, drawn, formats=chosen), target)


def _read(folder: Path | str, only: Sequence[str], without: Sequence[str]) -> Results:
    from biphasic.analysis.scores.layout import read_results
    from biphasic.analysis.scores.reference import DatasetChoice
    from biphasic.files import expanded

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
