"""Pairs of texts from Python: `pairs.build`, `mine`, `teach` and `inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biphasic.api.arguments import check_arguments
from biphasic.api.results.data import BuiltPairs, InspectedPairs
from biphasic.files import expanded
from biphasic.store import DEFAULT_ROOT, store_of


@check_arguments(per_document=(1, None), max_weak_pairs=(1, None), seed=(0, None))
def build(
    tables: Sequence[str] = (),
    *,
    out: Path | str,
    tasks: Sequence[str] = (),
    documents: Sequence[str] = (),
    against: Sequence[str] = (),
    per_document: int = 4,
    max_weak_pairs: int | None = None,
    seed: int = 0,
    root: Path | str = DEFAULT_ROOT,
    copies: Path | str | None = None,
    quiet: bool = False,
) -> BuiltPairs:
    """Build pairs; run again to resume after an interruption.

    Args:
        tables: Files of pairs (.jsonl, .csv, .tsv, .parquet) or hf:OWNER/NAME, with columns query
            (or anchor), positive, and optionally negatives and scores.
        out: Folder for the pairs.
        tasks: Retrieval tasks, such as ir:FOLDER, whose training split gives pairs.
        documents: Texts that give weak pairs (heading and paragraph, paragraph and next): a source
            as in `corpus build`.
        against: Evaluation tasks, as in `evaluate`. Pairs with a text that equals, or nearly
            equals, one of theirs are left out.
        per_document: Maximum weak pairs per document.
        max_weak_pairs: Maximum weak pairs per source, drawn at random. Default: all.
        seed: Seed of the draw of weak pairs.
        root: Folder of studies and their shared store.
        copies: As in `corpus.build`.
        quiet: Show results and errors only.

    Raises:
        ConfigError: There is no source, or `out` holds other pairs.
        DataError: A source is missing or damaged.

    Example:
        >>> from biphasic import pairs
        >>> pairs.build(["questions.jsonl"], out="pairs").frame["kept"].tolist()
        [3]
    """
    from biphasic.config import parse_config
    from biphasic.progress import say_on_stderr
    from biphasic.tasks.pairs.build import PairsConfig, build_pairs

    raw = {
        "tables": tables,
        "tasks": tasks,
        "documents": documents,
        "against": against,
        "per_document": per_document,
        "max_weak_pairs": max_weak_pairs,
        "seed": seed,
    }
    built = build_pairs(
        parse_config(PairsConfig, raw, where="pairs build"),
        folder := expanded(out),
        store=store_of(root),
        copies=None if copies is None else expanded(copies),
        say=say_on_stderr(quiet=quiet),
    )
    return BuiltPairs(folder, built)


@check_arguments(negatives=(1, None), margin=(0, 1), depth=(1, None))
def mine(
    folder: Path | str,
    miner: str,
    out: Path | str,
    *,
    negatives: int = 4,
    margin: float = 0.95,
    depth: int = 100,
    quiet: bool = False,
) -> BuiltPairs:
    """Find hard negatives: documents that are similar to a query but do not answer it.

    They replace the negatives and scores that the pairs have; a teacher's vectors are left out.

    Args:
        folder: Folder made by `biphasic pairs build`, `mine` or `teach`.
        miner: Folder or hub id of the embedding model that finds negatives, or bm25.
        out: Folder for the pairs with negatives.
        negatives: Maximum negatives per pair.
        margin: Maximum similarity of a negative, as a share of the positive's.
        depth: Documents searched for each query.
        quiet: As in `pairs.build`.

    Raises:
        ConfigError: `out` holds other pairs, or the extra of BM25 is not installed.
        DataError: The folder has no pairs, or the model is missing.

    Example:
        >>> from biphasic import pairs
        >>> pairs.mine("pairs", "my-encoder", "mined", negatives=1).pairs.pair(0).query
        'what purrs'
    """
    from biphasic.data.pairs.folder import NO_SHARED_WORD, Pairs
    from biphasic.progress import progress_bar, progress_console
    from biphasic.tasks.pairs.enrich import mine as mine_pairs

    source, target = Pairs(expanded(folder)), expanded(out)
    with progress_bar(progress_console(quiet=quiet), "mining", unit="texts") as report:
        mined = mine_pairs(
            source, miner, target, number=negatives, margin=margin, depth=depth, report=report
        )
    notes: tuple[str, ...] = ()
    if wordless := mined.details.get("left_out", {}).get(NO_SHARED_WORD):
        notes = (
            f"left out {wordless:,} negatives that share no word with their query; words are found "
            "by the spaces between them, so for Chinese, Japanese or Thai use another --miner",
        )
    elif not mined.details["num_negatives"]:
        notes = (
            f"no negative found: all documents near a query are known answers, or have more than "
            f"{margin:g} of the positive's similarity; raise --margin, or use another --miner",
        )
    return BuiltPairs(target, mined, notes=notes)


@check_arguments(width=(1, None))
def teach(
    folder: Path | str,
    teacher: str,
    out: Path | str,
    *,
    width: int | None = None,
    quiet: bool = False,
) -> BuiltPairs:
    """Add a teacher's vector of each text, for the objectives `distill` and `margin_mse`.

    Args:
        folder: As in `pairs.mine`.
        teacher: Folder or hub id of an embedding model.
        out: Folder for the pairs with the teacher's vectors.
        width: Principal dimensions to keep. Default: all of the teacher's.
        quiet: As in `pairs.build`.

    Raises:
        ConfigError: The teacher has fewer dimensions, or `out` holds other pairs.
        DataError: The folder has no pairs, or the model is missing.

    Example:
        >>> from biphasic import pairs
        >>> pairs.teach("pairs", "my-encoder", "taught", width=2).pairs.vectors.shape[1]
        2
    """
    from biphasic.data.pairs.folder import Pairs
    from biphasic.progress import progress_bar, progress_console
    from biphasic.tasks.pairs.enrich import teach as teach_pairs

    source, target = Pairs(expanded(folder)), expanded(out)
    with progress_bar(progress_console(quiet=quiet), "teaching", unit="texts") as report:
        taught = teach_pairs(source, teacher, target, width=width, report=report)
    return BuiltPairs(target, taught)


@check_arguments()
def inspect(folder: Path | str, *, samples: int = 3) -> InspectedPairs:
    """Show counts, what was left out, and some pairs; verify all hashes.

    Args:
        folder: As in `pairs.mine`.
        samples: Pairs to show.

    Raises:
        DataError: The folder has no pairs, or they are damaged.

    Example:
        >>> from biphasic import pairs
        >>> pairs.inspect("pairs").pairs.pair(0).query
        'what purrs'
    """
    from biphasic.data.pairs.folder import Pairs

    pairs = Pairs(expanded(folder))
    samples = min(samples, len(pairs))
    places = sorted({place * len(pairs) // samples for place in range(samples)})
    return InspectedPairs(pairs.folder, pairs, tuple(places))
