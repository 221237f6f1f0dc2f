"""Pairs of texts from Python: `pairs.build`, `mine`, `teach` and `inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.verb import Copies, Function, Quiet, Root, Verb, option
from biphasic.files import expanded

if TYPE_CHECKING:
    from biphasic.data.pairs import BuiltPairs


class Build(Root, Copies, Quiet):
    """Build pairs; run again to resume after an interruption.

    Raises:
        ConfigError: There is no source, or `out` holds other pairs.
        DataError: A source is missing or damaged.

    Example:
        >>> from biphasic import pairs
        >>> pairs.build(["questions.jsonl"], out="pairs").frame["kept"].tolist()
        [3]
    """

    tables: Sequence[str] = option(default=(), metavar="TABLE...")
    """Files of pairs (.jsonl, .csv, .tsv, .parquet) or hf:OWNER/NAME, with columns query (or
    anchor), positive, and optionally negatives and scores."""
    _: KW_ONLY
    out: Path | str = option(flag="--out")
    """Folder for the pairs."""
    tasks: Sequence[str] = option(default=(), flag="--task", metavar="TASK")
    """Retrieval tasks, such as ir:FOLDER, whose training split gives pairs."""
    documents: Sequence[str] = ()
    """Texts that give weak pairs (heading and paragraph, paragraph and next): a source as in
    `corpus build`."""
    against: Sequence[str] = option(default=(), metavar="TASK")
    """Evaluation tasks, as in `evaluate`. Pairs with a text that equals, or nearly equals, one of
    theirs are left out."""
    per_document: int = option(default=4, least=1)
    """Maximum weak pairs per document."""
    max_weak_pairs: int | None = option(default=None, least=1)
    """Maximum weak pairs per source, drawn at random. Default: all."""
    seed: int = option(default=0, least=0)
    """Seed of the draw of weak pairs."""

    def __call__(self) -> BuiltPairs:
        from biphasic.config import parse_config
        from biphasic.data.pairs import BuiltPairs
        from biphasic.tasks.pairs import PairsConfig, build_pairs

        raw = {name: getattr(self, name) for name in PairsConfig.model_fields}
        built = build_pairs(
            parse_config(PairsConfig, raw, where="pairs build"),
            folder := expanded(self.out),
            store=self.store,
            copies=None if self.copies is None else expanded(self.copies),
            say=self.say,
        )
        return BuiltPairs(folder, built)


class Mine(Quiet):
    """Find hard negatives: documents that are similar to a query but do not answer it.

    They replace the negatives and scores that the pairs have; a teacher's vectors are left out.

    Raises:
        ConfigError: `out` holds other pairs, or the extra of BM25 is not installed.
        DataError: The folder has no pairs, or the model is missing.

    Example:
        >>> from biphasic import pairs
        >>> pairs.mine("pairs", "my-encoder", "mined", negatives=1).pairs.pair(0).query
        'what purrs'
    """

    folder: Path | str
    """Folder made by `biphasic pairs build`, `mine` or `teach`."""
    miner: str = option(flag="--miner")
    """Folder or hub id of the embedding model that finds negatives, or bm25."""
    out: Path | str = option(flag="--out")
    """Folder for the pairs with negatives."""
    _: KW_ONLY
    negatives: int = option(default=4, least=1)
    """Maximum negatives per pair."""
    margin: float = option(default=0.95, least=0, most=1)
    """Maximum similarity of a negative, as a share of the positive's."""
    depth: int = option(default=100, least=1)
    """Documents searched for each query."""

    def __call__(self) -> BuiltPairs:
        from biphasic.data.pairs import NO_SHARED_WORD, BuiltPairs, Pairs
        from biphasic.progress import progress_bar
        from biphasic.tasks.enrich import mine as mine_pairs

        source, target = Pairs(expanded(self.folder)), expanded(self.out)
        with progress_bar(self.console, "mining", unit="texts") as report:
            mined = mine_pairs(
                source,
                self.miner,
                target,
                number=self.negatives,
                margin=self.margin,
                depth=self.depth,
                report=report,
            )
        notes: tuple[str, ...] = ()
        if wordless := mined.details.get("left_out", {}).get(NO_SHARED_WORD):
            notes = (
                f"left out {wordless:,} negatives that share no word with their query; words are "
                "found by the spaces between them, so for Chinese, Japanese or Thai use another "
                "--miner",
            )
        elif not mined.details["num_negatives"]:
            notes = (
                f"no negative found: all documents near a query are known answers, or have more "
                f"than {self.margin:g} of the positive's similarity; raise --margin, or use "
                "another --miner",
            )
        return BuiltPairs(target, mined, notes=notes)


class Teach(Quiet):
    """Add a teacher's vector of each text, for the objectives `distill` and `margin_mse`.

    Raises:
        ConfigError: The teacher has fewer dimensions, or `out` holds other pairs.
        DataError: The folder has no pairs, or the model is missing.

    Example:
        >>> from biphasic import pairs
        >>> pairs.teach("pairs", "my-encoder", "taught", width=2).pairs.vectors.shape[1]
        2
    """

    folder: Path | str
    """Folder made by `biphasic pairs build`, `mine` or `teach`."""
    teacher: str = option(flag="--teacher")
    """Folder or hub id of an embedding model."""
    out: Path | str = option(flag="--out")
    """Folder for the pairs with the teacher's vectors."""
    _: KW_ONLY
    width: int | None = option(default=None, least=1)
    """Principal dimensions to keep. Default: all of the teacher's."""

    def __call__(self) -> BuiltPairs:
        from biphasic.data.pairs import BuiltPairs, Pairs
        from biphasic.progress import progress_bar
        from biphasic.tasks.enrich import teach as teach_pairs

        source, target = Pairs(expanded(self.folder)), expanded(self.out)
        with progress_bar(self.console, "teaching", unit="texts") as report:
            taught = teach_pairs(source, self.teacher, target, width=self.width, report=report)
        return BuiltPairs(target, taught)


class Inspect(Verb):
    """Show counts, what was left out, and some pairs; verify all hashes.

    Raises:
        DataError: The folder has no pairs, or they are damaged.

    Example:
        >>> from biphasic import pairs
        >>> pairs.inspect("pairs").pairs.pair(0).query
        'what purrs'
    """

    folder: Path | str
    """Folder made by `biphasic pairs build`, `mine` or `teach`."""
    _: KW_ONLY
    samples: int = option(default=3, least=0)
    """Pairs to show."""

    def __call__(self) -> BuiltPairs:
        from biphasic.data.pairs import BuiltPairs, Pairs

        pairs = Pairs(expanded(self.folder))
        samples = min(self.samples, len(pairs))
        places = sorted({place * len(pairs) // samples for place in range(samples)})
        return BuiltPairs(pairs.folder, pairs, numbers=tuple(places))


build = Function(Build)
mine = Function(Mine)
teach = Function(Teach)
inspect = Function(Inspect)
