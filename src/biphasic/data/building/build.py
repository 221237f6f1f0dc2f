"""Builds a corpus from its settings: tokenizer, training and held-out documents.

The parts are created in this order, so an interrupted build can resume:

- `.building/`: the build's settings and finished shards; deleted at the end;
- `tokenizer/`: the given one, or one trained on a sample of the training text;
- `train/`, `heldout/`: corpora, assembled from the shards;
- `plugins/`: the code of sources that are plugins, if any;
- `built.json`: settings and counts; written last.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from biphasic.amounts import size
from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.gather import (
    MOST_BYTES_PER_TOKEN,
    SPLITS,
    Blend,
    BuildReport,
    Gathered,
    token_quotas,
)
from biphasic.data.building.mask_token import (
    count_special_tokens,
    refuse_if_present,
    with_mask_token,
)
from biphasic.data.building.selection import NO_TASKS, Selection, TaskTexts, digest_of
from biphasic.data.corpus import DETAILS, REMEDY, Corpus, assemble_corpus
from biphasic.data.text.near_duplicates import COMPARISON_VERSION
from biphasic.data.text.source import TextSource, is_one_document
from biphasic.data.text.sources import (
    SourceConfig,
    files_skipped,
    read_documents,
    source_origin,
)
from biphasic.data.tokens.shards import BLOCK_BYTES, token_dtype
from biphasic.data.tokens.tokenizer import (
    TextTokenizer,
    load_tokenizer,
    train_tokenizer,
    write_tokenizer,
)
from biphasic.errors import ConfigError, DataError, naming, reading
from biphasic.files import read_json, remove_partials, write_json
from biphasic.locks import LOCK, hold
from biphasic.plugins import keep_files, named_plugins
from biphasic.records import FEW_HELDOUT
from biphasic.shown import Shown
from biphasic.store import CORPUS, TOKENIZER, ArtifactType, is_complete

_MORE_HELDOUT = (
    "add more text, or raise heldout_fraction (in a corpus file or 'corpus' of a study, or by "
    "--heldout-fraction of 'biphasic corpus build'; docs/corpora.md)"
)
BUILD_VERSION = 1  # increase by hand whenever the same settings would give a different corpus
SAMPLE_BYTES = 100_000_000  # maximum text for training a tokenizer
# Maximum text that the sample is drawn from: the beginning of each source.
_CONSIDERED_BYTES = 1_000_000_000
_MOST_OF_ONE = 16  # a single document gives at most one part in this many of the sample
RECORD = "built.json"
_WORK, _BEGUN = ".building", "begun.json"


@dataclass(frozen=True)
class CorpusFolders:
    """Folders of a finished corpus."""

    tokenizer: Path
    train: Path
    heldout: Path

    @classmethod
    def below(cls, folder: Path) -> CorpusFolders:
        """Return the folders of a corpus built in `folder`."""
        return cls(folder / "tokenizer", folder / "train", folder / "heldout")


def build_corpus(
    config: CorpusConfig,
    folder: Path,
    *,
    num_workers: int | None = None,
    say: Callable[[str], None],
    progress: BuildReport | None = None,
    block_bytes: int = BLOCK_BYTES,
    check_tokenizer: Callable[[TextTokenizer], None] = lambda _: None,
    tasks: TaskTexts = NO_TASKS,
) -> CorpusFolders:
    """Build a corpus, or find it complete.

    The folder gets `tokenizer/`, `train/` and `heldout/`. `num_workers` processes tokenize, one
    core each, by default as many as there are cores; the result does not depend on their number.
    `check_tokenizer` may refuse the tokenizer before any text is tokenised. `tasks` are those of
    the settings' `against`.
    """
    if config.folder is not None:
        raise ConfigError(f"'folder' names a finished corpus ({config.folder}); nothing to build")
    for source in config.sources:  # the next build would read the output of this one
        root = source.folder(config.context)
        if root and folder.resolve().is_relative_to(root.resolve()):
            raise ConfigError(f"{folder}: inside the source {root}; choose a folder outside of it")
    # Once, at the start: a dataset that changes during the build must not be read in two versions.
    config = config.at_commits()
    check_columns(config)
    origin = corpus_origin(config, tasks)
    folders = CorpusFolders.below(folder)
    with building(folder, origin, say=say) as work:
        if work:
            keep_files(folder, config)
            open_sources(config.sources[1:], config)  # the last may be read hours later
            is_in_task = tasks.load()
            if not is_complete(folders.tokenizer):
                tokenizer = _tokenizer(config, work, is_in_task, say=say)
                write_tokenizer(tokenizer, folders.tokenizer)
            check_tokenizer(TextTokenizer.load(folders.tokenizer))
            say("tokenising")
            blend = Blend(
                config, work, folders.tokenizer, block_bytes=block_bytes, is_in_task=is_in_task
            )
            sources = blend.gather(num_workers=num_workers or num_cores(), report=progress)
            say("assembling the corpora")
            plugins = named_plugins(config)
            code = {"plugins": plugins} if plugins else {}
            special = _assemble(sources, folders, {**origin, **code}, say=say)
            counts = {
                source.name: {
                    **{split: source.counts(split) for split in SPLITS},
                    "left_out": source.left_out_counts(),
                    **({"with_nul": number} if (number := source.num_with_nul()) else {}),
                }
                for source in sources
            }
            ended = {n: reach.ended_by for n, reach in blend.reaches.items() if reach.ended_by}
            ends = {"ended_by": ended} if ended else {}
            record = {"origin": origin, "sources": counts, **ends, **special, **code}
            write_json(folder / RECORD, record)
    return folders


def check_columns(config: CorpusConfig) -> None:
    """Refuse the column of a source that has none."""
    for source in config.sources:
        if isinstance(source, SourceConfig) and source.column != "text" and (path := source.path):
            if source.has_pairs:
                raise DataError(f"{path}: texts of pairs have no columns; omit 'column'")
            if is_one_document(path) and path.is_file():
                raise DataError(f"{path}: one document, without columns; omit 'column'")


def open_sources(sources: Iterable[TextSource], config: CorpusConfig) -> None:
    """Read the first document of each source, to find what is wrong with it."""
    for source in sources:
        if not getattr(source, "only", None):  # whose first document may be the last of a table
            next(read_documents(source, config.context), None)


@contextmanager
def building(
    folder: Path, origin: dict[str, Any], *, say: Callable[[str], None]
) -> Iterator[Path | None]:
    """Lock a folder and yield its working folder; None if it is built. The record comes last."""
    with hold(folder / LOCK, remedy="choose another folder"):
        # Under the lock, as another process may finish the build while this one waits.
        yield None if is_built_from(folder, origin) else _begin(folder, origin, say=say)
        # Its shards are as large as the text: what keeps them from being deleted is an error.
        with suppress(FileNotFoundError):
            shutil.rmtree(folder / _WORK)


def is_built(folder: Path) -> bool:
    """Return whether a folder has a finished corpus; a failed build leaves parts, but no record."""
    return (folder / RECORD).is_file() and all(map(is_complete, _kinds(folder)))


def is_built_from(folder: Path, origin: dict[str, Any]) -> bool:
    """Return whether a folder holds a finished corpus of this origin, and verify it."""
    if not (folder / RECORD).is_file():
        return False
    record = read_json(folder / RECORD, remedy=_remedy(folder))
    made_from = record.get("origin") if isinstance(record, dict) else None
    with reading(folder / RECORD, DataError, remedy=_remedy(folder), failure="damaged"):
        is_same = isinstance(made_from, dict) and decisive(made_from) == decisive(origin)
    if not is_same:
        raise ConfigError(
            f"{folder}: holds a corpus made from other sources or settings; choose another folder, "
            "or delete it"
        )
    if not is_built(folder):
        return False
    for part, kind in _kinds(folder).items():
        kind.open(part, remedy=_remedy(folder)).verify()
    return True


def _kinds(folder: Path) -> dict[Path, ArtifactType]:
    """Return the parts of a build, each with its type."""
    folders = CorpusFolders.below(folder)
    return {folders.tokenizer: TOKENIZER, folders.train: CORPUS, folders.heldout: CORPUS}


def decisive(origin: dict[str, Any]) -> dict[str, Any]:
    """Return an origin as if its folders skipped no files, whose number decides nothing."""
    # The file manager of macOS adds a hidden file to each folder that it shows.
    sources = [
        {**source, "num_ignored": 0} if "num_ignored" in source else source
        for source in origin.get("sources", ())
    ]
    return {**origin, "sources": sources}


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of a finished build: `origin`, and counts by `sources`."""
    if not (folder / RECORD).is_file():
        raise DataError(f"{folder}: no finished corpus (no {RECORD}); build or resume it")
    record = read_json(folder / RECORD, remedy=_remedy(folder))
    parts = [record.get(key) if isinstance(record, dict) else None for key in ("origin", "sources")]
    if not all(isinstance(part, dict) for part in parts):
        raise DataError(f"{folder / RECORD}: damaged: no 'origin' and 'sources'; {_remedy(folder)}")
    with reading(folder / RECORD, DataError, remedy=_remedy(folder), failure="damaged"):
        # What readers take from it.
        list(_notes(record))
        list(heldout_fractions(record["origin"]))
    return record


def notes_on(folder: Path) -> Iterator[str]:
    """Yield by source what a finished build skipped, and how many documents hold NUL characters."""
    yield from _notes(read_record(folder))


def _notes(record: Mapping[str, Any]) -> Iterator[str]:
    for name, counts in record["sources"].items():
        if reasons := _reasons(counts["left_out"]):
            yield f"{name}: documents skipped: {reasons}"
        if number := counts.get("with_nul"):
            yield (
                f"warning: {name}: documents with NUL characters: {number:,}. They are kept as "
                "text; often they come from a wrong encoding or a binary file"
            )
    yield from files_skipped(_sources(record["origin"]))


def heldout_fractions(origin: dict[str, Any]) -> Iterator[float]:
    """Yield the fractions that a build, or each part of a merged one, holds out."""
    for part in origin.get("merged", ()):
        yield from heldout_fractions(part)
    if "settings" in origin:
        yield origin["settings"]["heldout_fraction"]


def _sources(origin: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the origins of all sources, those of merged corpora included."""
    yield from origin.get("sources", ())
    for merged in origin.get("merged", ()):
        yield from _sources(merged)


def _remedy(folder: Path) -> str:
    return f"restore it, or delete the folder {folder} and build the corpus again"


def corpus_origin(config: CorpusConfig, tasks: TaskTexts = NO_TASKS) -> dict[str, Any]:
    """Return everything that determines a corpus: sources, settings, code, but no paths."""
    sources = [
        {**source_origin(source, config.context), "share": source.share}
        for source in config.sources
    ]
    if len(config.against) != len(tasks.origin):
        raise ValueError("the tasks of 'against' are not given")
    compares = {"comparison": COMPARISON_VERSION} if config.deduplicate or config.against else {}
    against = {"against": [[*task] for task in tasks.origin]} if config.against else {}
    share = {"share": config.share.model_dump()} if config.share else {}
    return {
        "sources": sources,
        **share,
        **against,
        **compares,
        "settings": config.model_dump(
            include={
                "max_tokens",
                "max_documents",
                "min_characters",
                "max_characters",
                "deduplicate",
                "heldout_fraction",
            }
        ),
        "tokenizer": _tokenizer_origin(config),
        # Releases of this package may split text into other tokens, or train other vocabularies.
        "tokenizers": importlib.metadata.version("tokenizers"),
        "build_version": BUILD_VERSION,
    }


def _tokenizer_origin(config: CorpusConfig) -> dict[str, Any]:
    """Return what determines a corpus's tokenizer, beside the text that it is trained on."""
    if config.tokenizer:
        return {"sha256": with_mask_token(load_tokenizer(config.tokenizer))[0].sha256}
    return {"kind": "byte-level BPE", "vocab_size": config.vocab_size or DEFAULT_VOCAB_SIZE}


def _tokenizer(
    config: CorpusConfig,
    work: Path,
    is_in_task: Callable[[str], bool],
    *,
    say: Callable[[str], None],
) -> TextTokenizer:
    """Load the requested tokenizer, or train one."""
    if config.tokenizer:
        loaded = load_tokenizer(config.tokenizer)
        if loaded.warning:
            say(f"warning: {loaded.warning}")
        tokenizer, reason = with_mask_token(loaded)
        say(f"mask token {tokenizer.special_tokens['mask']} (id {tokenizer.mask_id}): {reason}")
        return tokenizer
    say("reading text for training a tokenizer")
    texts = sample_training_text(config, work, is_in_task)
    num_bytes = sum(len(text.encode()) for text in texts)
    vocab_size = config.vocab_size or DEFAULT_VOCAB_SIZE
    say(f"training a tokenizer of {vocab_size:,} entries on {size(num_bytes)} of text")
    return train_tokenizer(texts, vocab_size=vocab_size)


def sample_training_text(
    config: CorpusConfig, folder: Path, is_in_task: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Draw text from the training documents of a corpus's sources, by their shares."""
    sample = TextSample(SAMPLE_BYTES)
    num_bytes = _CONSIDERED_BYTES
    if config.max_tokens is not None:
        num_bytes = min(num_bytes, config.max_tokens * MOST_BYTES_PER_TOKEN)
    quotas = token_quotas([source.share or 1.0 for source in config.sources], num_bytes)
    num_heldout = 0

    def training_texts(source: TextSource) -> Iterator[str]:
        nonlocal num_heldout
        for document, split in selection.select(read_documents(source, config.context)):
            if split == "train":
                yield document.text
            else:
                num_heldout += 1

    with naming(folder), Selection(config, folder, is_in_task) as selection:
        for source, quota in zip(config.sources, quotas, strict=True):
            sample.extend(islice(training_texts(source), config.max_documents), max_bytes=quota)
    if not (texts := sample.texts()):
        names = [source.short_name for source in config.sources]
        raise _no_training(names, {**selection.left_out, "held_out": num_heldout})
    return texts


def _no_training(names: Sequence[str], left_out: Mapping[str, int]) -> DataError:
    why = f" ({reasons})" if (reasons := _reasons(left_out)) else ""
    return DataError(
        f"{', '.join(names)}: no training document{why}; add text, or change what is left out"
    )


def _reasons(left_out: Mapping[str, int]) -> str:
    """Describe numbers of documents by the reasons why they are left out."""
    counts = (f"{n:,} {reason.replace('_', ' ')}" for reason, n in left_out.items() if n)
    return ", ".join(counts)


class TextSample:
    """Keeps a sample of texts chosen by hash, in their original order; it thins as more are added.

    Only the beginning of a long text is considered, as it could displace all others. The sample
    depends only on the texts; all are kept while they fit.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start empty; `max_bytes` counts UTF-8."""
        self._max_bytes = max_bytes
        self._kept: list[tuple[float, str]] = []
        self._num_bytes = 0
        self._rate = 1.0

    def extend(self, texts: Iterable[str], *, max_bytes: int) -> None:
        """Add texts, at most `max_bytes` of them."""
        for text in texts:
            # The other half of the digest selects held-out texts; the two must be independent.
            place = int.from_bytes(digest_of(text)[8:], "big") / 2**64
            considered, size = _beginning(text, self._max_bytes // _MOST_OF_ONE)
            max_bytes -= size
            if place < self._rate:
                self._kept.append((place, considered))
                self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                # Texts kept at a rate are a part of those at twice the rate, so nothing has to be
                # read again.
                self._rate /= 2
                self._kept = [(place, text) for place, text in self._kept if place < self._rate]
                self._num_bytes = sum(len(text.encode()) for _, text in self._kept)
            if max_bytes <= 0:
                return

    def texts(self) -> list[str]:
        """Return the sample."""
        return [text for _, text in self._kept]


def _beginning(text: str, max_bytes: int) -> tuple[str, int]:
    """Return the beginning of a text that fits, and its size in bytes."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text, len(encoded)
    # The cut may divide a character, whose bytes are dropped.
    cut = encoded[:max_bytes].decode(errors="ignore")
    return cut, len(cut.encode())


def _begin(folder: Path, origin: dict[str, Any], *, say: Callable[[str], None]) -> Path:
    """Keep the reusable parts of an interrupted build, and return the working folder."""
    # Shards are always reusable: their names are hashes of their inputs. A corpus is assembled
    # again, because its sources may have changed although the settings did not.
    work = folder / _WORK
    folders = CorpusFolders.below(folder)
    path, remedy = work / _BEGUN, _remedy(folder)
    begun = read_json(path, remedy=remedy) if path.is_file() else None
    with reading(path, DataError, remedy=remedy, failure="damaged"):
        is_same = begun is not None and decisive(begun) == decisive(origin)
    is_ours = begun is not None or (folder / RECORD).is_file()
    for part in _kinds(folder):
        if part.exists() and not is_ours:
            raise ConfigError(f"{part}: already exists, not from a build; choose an empty folder")
        if part.exists() and (part != folders.tokenizer or not is_same):
            shutil.rmtree(part)
    if begun is not None and not is_same:
        say(
            f"{folder.name}: sources or settings differ from the interrupted build's; starting anew"
        )
    remove_partials(folder)
    work.mkdir(exist_ok=True)
    remove_partials(work)
    # Before any part, so that the next build knows from which settings the parts are.
    write_json(work / _BEGUN, origin)
    return work


def _assemble(
    sources: Sequence[Gathered],
    folders: CorpusFolders,
    provenance: dict[str, Any],
    *,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Assemble the shards of all sources; return counts of special tokens, for the record."""
    tokenizer = TextTokenizer.load(folders.tokenizer)
    special, num_tokens = Counter[str](), 0
    for split, folder in zip(SPLITS, (folders.train, folders.heldout), strict=True):
        counts = {source.name: source.counts(split) for source in sources}
        number = sum(count["documents"] for count in counts.values())
        if split == "train" and not number:
            left_out = Counter[str]()
            for source in sources:
                left_out.update(source.left_out_counts())
                left_out["held_out"] += source.counts("heldout")["documents"]
            raise _no_training([*counts], left_out)
        for name, count in counts.items() if split == "train" else ():
            if not count["documents"]:
                say(f"warning: {name}: gives no training document; check its path and 'only'")
        if split == "heldout" and not number:
            raise DataError(f"no document is held out; {_MORE_HELDOUT}")
        if split == "heldout" and number < FEW_HELDOUT:
            say(
                f"warning: documents held out: {number}. Held-out losses will be unreliable; "
                f"{_MORE_HELDOUT}"
            )
        assemble_corpus(
            folder,
            (part for source in sources for part in source.parts(split)),
            tokenizer_sha256=tokenizer.sha256,
            dtype=token_dtype(tokenizer.vocab_size),
            vocab_size=tokenizer.vocab_size,
            provenance={**provenance, "split": split, "by_source": counts},
        )
        corpus = Corpus(folder)
        try:
            refuse_if_present(corpus, tokenizer.mask_id)
        except DataError:
            shutil.rmtree(folder)  # complete, but invalid
            raise
        special.update(count_special_tokens(corpus, tokenizer))
        num_tokens += corpus.num_tokens
    if not special:
        return {}
    if lost := special[unknown] if (unknown := tokenizer.unknown_token) else 0:
        say(
            f"warning: text that the tokenizer has no token for is {unknown}: {lost:,} of "
            f"{num_tokens:,} tokens"
        )
    spelled = [f"{token} ({n:,} times)" for token, n in special.items() if token != unknown]
    if spelled:
        say(f"documents contain special tokens of the tokenizer as text: {', '.join(spelled)}")
    return {"special_in_text": dict(special)}


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        # A scheduler may give a process fewer cores than the machine has.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, repr=False)
class BuiltCorpus(Shown):
    """The result of `corpus.build` and `corpus.merge`.

    Attributes:
        folder: Folder of the corpus.
        notes: How it was made, and what was left out.
    """

    folder: Path
    notes: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each split."""
        details = [
            (part, read_json(part / DETAILS, remedy=REMEDY)) for part in parts_of(self.folder)
        ]
        return [
            {
                "split": part.name,
                "documents": detail["num_documents"],
                "tokens": detail["num_tokens"],
            }
            for part, detail in details
        ]

    def lines(self) -> Iterator[str]:
        """Return counts, what was left out, and the folder."""
        for row in self.table():
            yield f"{row['split']}: {row['documents']:,} documents, {row['tokens']:,} tokens"
        yield from self.notes
        yield f"corpus: {self.folder}"


def parts_of(folder: Path) -> list[Path]:
    """Return the corpora in a folder: train and heldout, or the folder itself."""
    parts = [folder / split for split in SPLITS if (folder / split).is_dir()]
    return parts or [folder]
