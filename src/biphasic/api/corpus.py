"""Corpora from Python: `corpus.build`, `inspect`, `verify` and `merge`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.api.verb import Copies, Function, Quiet, Root, Verb, option
from biphasic.errors import ConfigError, DataError
from biphasic.files import expanded

if TYPE_CHECKING:
    from biphasic.data.building.build import BuiltCorpus
    from biphasic.data.building.built import InspectedCorpus
    from biphasic.data.building.config import CorpusConfig
    from biphasic.data.building.gather import BuildProgress
    from biphasic.shown import Findings


class Build(Copies, Root, Quiet):
    """Build a corpus; run again to resume after an interruption.

    The result does not depend on interruptions or on the number of workers.

    Raises:
        ConfigError: A setting is invalid, or `out` holds another corpus.
        DataError: A source is missing or damaged.

    Example:
        >>> from biphasic import corpus
        >>> built = corpus.build(["texts.jsonl"], out="corpora/mine", vocab_size=320)
        >>> built.frame["split"].tolist()
        ['train', 'heldout']
    """

    sources: Sequence[str] = option(default=(), metavar="SOURCE...")
    """Files or folders of .txt, .md, .jsonl (.gz, .zst) or .parquet;
    hf:OWNER/NAME?name=CONFIG&split=SPLIT&revision=REVISION; or builtin:pydocs. Default: the spec's
    sources, or the built-in documentation."""
    _: KW_ONLY
    out: Path | str = option(flag="--out")
    """Folder for tokenizer, train and heldout."""
    spec: Path | str | None = None
    """Corpus file (YAML) with settings; other options override it."""
    tokenizer: str | None = None
    """Folder or hub id of a tokenizer. Default: train one."""
    vocab_size: int | None = None
    """Vocabulary size of the tokenizer to train. Default: 8192."""
    column: str | None = None
    """Column or JSON key of the text. Default: text."""
    shares: Sequence[float] = option(default=(), flag="--share")
    """Share of tokens; one for each source, in the same order."""
    max_tokens: int | None = None
    """Maximum tokens in the training split."""
    deduplicate: bool | None = None
    """Skip documents with the text of an earlier one, in any Unicode form."""
    against: Sequence[str] = option(default=(), metavar="TASK")
    """Evaluation tasks, as in `evaluate`. Documents that hold a text of theirs are left out."""
    heldout_fraction: float | None = None
    """Fraction of documents to hold out, by hash. Default: 0.01."""
    workers: int | None = option(default=None, least=1)
    """Tokenizer processes. Default: one per core."""

    def __call__(self) -> BuiltCorpus:
        from biphasic.data.building.build import BuiltCorpus, build_corpus, notes_on
        from biphasic.data.building.gather import build_bar
        from biphasic.study.inputs.corpus import tasks_of

        config = self._config()
        last: list[BuildProgress] = []
        folder = expanded(self.out)
        with build_bar(self.console) as show:

            def report(progress: BuildProgress) -> None:
                last[:] = [progress]
                show(progress)

            build_corpus(
                config,
                folder,
                num_workers=self.workers,
                say=self.say,
                progress=report,
                tasks=tasks_of(config, self.store, self.say),
            )
        how = last[0].rates() if last else "already built; nothing to do"
        return BuiltCorpus(folder, (how, *notes_on(folder)))

    def _config(self) -> CorpusConfig:
        """Override the spec's settings with options."""
        from biphasic.config import parse_config
        from biphasic.data.building.config import CorpusConfig
        from biphasic.data.text.source import is_one_document
        from biphasic.study.inputs.corpus import corpus_settings

        raw: dict[str, Any] = {}
        if self.spec is not None:
            base = corpus_settings(expanded(self.spec))
            raw = base.model_dump(mode="json", exclude_unset=True)
        if self.sources:
            raw["sources"] = [{"source": source} for source in self.sources]
        if self.shares or len(self.sources) == 1:
            raw.pop("share", None)  # of the spec's sources by their sizes
        for name, value in (("column", self.column), ("share", self.shares)):
            if value and "sources" not in raw:
                raise ConfigError(f"--{name}: give the sources it applies to")
        if self.shares and len(self.shares) != len(raw["sources"]):
            counts = f"{len(self.shares)} given for {len(raw['sources'])} sources"
            raise ConfigError(f"--share: {counts}; give one for each")
        for place, source in enumerate(raw.get("sources", ())):
            if self.column:
                if is_one_document(Path(source["source"])):
                    document = f"{source['source']} is one document, without columns"
                    raise ConfigError(f"--column: {document}; omit --column")
                source["column"] = self.column
            if self.shares:
                source["share"] = self.shares[place]
        names = ("tokenizer", "vocab_size", "max_tokens", "deduplicate", "heldout_fraction")
        settings = {
            **{name: getattr(self, name) for name in names},
            "against": tuple(self.against) or None,
            "copies": str(self.copies) if self.copies else None,
        }
        for counts, other in (("tokenizer", "vocab_size"), ("vocab_size", "tokenizer")):
            if settings.get(counts) is not None:
                raw.pop(other, None)
        raw |= {name: value for name, value in settings.items() if value is not None}
        return parse_config(CorpusConfig, raw, where="corpus build")


class Inspect(Verb):
    """Show counts, lengths, samples, row fill, duplicates and sources.

    Raises:
        DataError: There is no corpus, or it is damaged.

    Example:
        >>> from biphasic import corpus
        >>> corpus.inspect("corpora/mine").summaries["train"].documents > 100
        True
    """

    folder: Path | str
    """Folder made by `biphasic corpus build`, or one corpus in it."""
    _: KW_ONLY
    max_seqlen: int = option(default=512, least=8)
    """Row length in tokens, to measure how full rows are."""
    samples: int = option(default=3, least=0)
    """Documents to show."""

    def __call__(self) -> InspectedCorpus:
        from biphasic.data.building.build import RECORD, notes_on, parts_of
        from biphasic.data.building.built import InspectedCorpus, inspect_corpus
        from biphasic.data.tokens.tokenizer import TextTokenizer

        folder, notes = expanded(self.folder), ()
        if _is_build(folder):
            warning = f"WARNING: unfinished (no {RECORD}); run its 'corpus build' again"
            notes = tuple(notes_on(folder)) if (folder / RECORD).is_file() else (warning,)
        beside = (folder / "tokenizer", folder.resolve().parent / "tokenizer")
        tokenizer_folder = next((place for place in beside if place.is_dir()), None)
        tokenizer = TextTokenizer.load(tokenizer_folder) if tokenizer_folder else None
        summaries = {
            part.name: inspect_corpus(
                part, tokenizer=tokenizer, max_seqlen=self.max_seqlen, num_samples=self.samples
            )
            for part in parts_of(folder)
        }
        return InspectedCorpus(summaries, self.max_seqlen, notes)


class Verify(Verb):
    """Verify the hashes and the consistency of a corpus.

    Raises:
        CheckpointError: It is damaged.
        DataError: There is no corpus.

    Example:
        >>> from biphasic import corpus
        >>> corpus.verify("corpora/mine").frame["split"].tolist()
        ['train', 'heldout']
    """

    folder: Path | str
    """Folder made by `biphasic corpus build`, or one corpus in it."""

    def __call__(self) -> Findings:
        from biphasic.data.building.built import verify_build, verify_corpus
        from biphasic.shown import Findings

        folder = expanded(self.folder)
        parts = verify_build(folder) if _is_build(folder) else (verify_corpus(folder),)
        rows = tuple(
            {"split": part.folder.name, "documents": len(part), "tokens": part.num_tokens}
            for part in parts
        )
        counts = "{split}: {documents:,} documents, {tokens:,} tokens: intact"
        return Findings(tuple(counts.format(**row) for row in rows), rows)


class Merge(Quiet):
    """Merge corpora that have the same tokenizer.

    Training splits are merged with training splits, held-out splits with held-out splits.

    Raises:
        ConfigError: The folders do not belong together, or `out` exists.
        DataError: A folder has no corpus.

    Example:
        >>> from biphasic import corpus
        >>> options = {"tokenizer": "corpora/mine/tokenizer", "heldout_fraction": 0.1}
        >>> more = corpus.build(["more.jsonl"], out="corpora/more", **options)
        >>> corpus.merge(["corpora/mine", "corpora/more"], "corpora/both").folder.name
        'both'
    """

    folders: Sequence[Path | str]
    """Folders made with one tokenizer, in the order to merge."""
    out: Path | str = option(flag="--out")
    """Folder for the merged corpus."""

    def __call__(self) -> BuiltCorpus:
        from biphasic.data.building.build import BuiltCorpus
        from biphasic.data.building.built import merge_builds, merge_corpora

        parts, target = [expanded(folder) for folder in self.folders], expanded(self.out)
        kinds = {_is_build(folder) for folder in parts}
        if not kinds:
            raise ConfigError("folders: is empty; give the corpora to merge")
        if len(kinds) > 1:
            raise ConfigError("merge: give either built folders or single corpora, not both")
        if kinds == {True}:
            merge_builds(parts, target, say=self.say)
        else:
            merge_corpora(parts, target)
        return BuiltCorpus(target)


def _is_build(folder: Path) -> bool:
    """Return True for a built folder, False for a single corpus; raise for others."""
    from biphasic.data.building.build import RECORD, SPLITS

    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if _is_corpus(folder):
        return False
    if (folder / RECORD).is_file() or any(_is_corpus(folder / split) for split in SPLITS):
        return True
    raise DataError(f"{folder}: no corpus; give a folder made by 'biphasic corpus build'")


def _is_corpus(folder: Path) -> bool:
    """Return whether this is a corpus, possibly damaged."""
    return any((folder / name).is_file() for name in ("corpus.json", "lengths.npy"))


build = Function(Build)
inspect = Function(Inspect)
verify = Function(Verify)
merge = Function(Merge)
