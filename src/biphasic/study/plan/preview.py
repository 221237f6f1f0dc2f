"""Previews: plans of a study whose data may still be missing.

Plans need hashes of corpora and tasks. A preview uses the data in the store. For data that are
still to be fetched or built it uses a placeholder: a hash of their description in the study.
Sharing does not depend on it, because arms with the same text get the same placeholder. Nothing
here connects to the hub.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.data.building.build import (
    RECORD,
    corpus_origin,
    decisive,
    read_record,
    tokenizer_origin,
)
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.verify import read_tokenizer
from biphasic.data.corpus import DETAILS
from biphasic.data.pairs.folder import Pairs
from biphasic.data.text.hub import COMMIT, find_copy
from biphasic.data.text.source import TextSource
from biphasic.data.text.sources import HubSource, SourceConfig
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import BiphasicError, ConfigError, DataError
from biphasic.files import canonical_json, digest, read_json
from biphasic.model.loading.hub import LocalModel, find_model
from biphasic.plugins import references_in, shown
from biphasic.store import STATE, Store, is_complete
from biphasic.study.inputs.corpus import (
    locate_corpus,
    phase_corpora,
    phase_pairs,
    pretrained_model,
    tasks_of,
)
from biphasic.study.inputs.tasks import TaskResolver
from biphasic.study.plan.plan import NO_CORPUS, Plan, plan_study
from biphasic.study.study import Study
from biphasic.tasks.source import is_mteb, published_source
from biphasic.training.lineage import DataFingerprint
from biphasic.training.recipe import PretrainedModel, Recipe

# Entries assumed of a tokenizer that was not fetched: those of Llama 3, as in the study.
GIVEN_VOCABULARY = 128_256


def preview_study(study: Study) -> Plan:
    """Plan a study, with placeholders for data that can still be fetched or built."""
    assumed: list[str] = []
    problems: list[str] = []
    fingerprint, encoders = NO_CORPUS, dict[str, LocalModel]()
    try:
        if study.config.reads_corpus:
            fingerprint = _fingerprint(study, assumed)
        for arm in study.config.arms:
            if arm.encoder is not None:
                encoders[arm.name] = _local_model(arm.encoder, assumed)
    except (ConfigError, DataError) as error:
        problems.append(str(error))
    resolver = TaskResolver.of(study)
    tasks = resolver.look(study.config.tasks, assumed=assumed, problems=problems)
    if problems:
        raise DataError("; ".join(problems))
    known = Store(study.store).walk(STATE)
    return plan_study(
        study, fingerprint, tasks, encoders=encoders, known=known, assumed=tuple(assumed)
    )


def _fingerprint(study: Study, assumed: list[str]) -> DataFingerprint:
    corpus, recipes = study.config.corpus, [*study.recipes.values()]
    folder = _corpus_folder(corpus, study.store)
    if folder is None:
        tokenizer, vocab_size = _tokenizer_to_be(corpus, assumed)
        described = corpus.model_dump(mode="json", exclude_defaults=True)
        corpus_hash = digest({"stand-in": "corpus", "described": described})
        titles = ", ".join(s.short_name if s.plugin else s.source for s in corpus.sources)
        why = "not tokenised here yet, or its files were changed or copied since"
        assumed.append(f"corpus: {titles}, {_edited_code(corpus, study.store) or why}")
    else:
        loaded = read_tokenizer(folder / "tokenizer")
        tokenizer, vocab_size = loaded.sha256, loaded.vocab_size
        corpus_hash = content_hash(folder)
    model = pretrained_model(recipes)
    local = model and _local_model(model, assumed)
    return DataFingerprint(
        corpus_hash=corpus_hash,
        tokenizer_sha256=tokenizer,
        vocab_size=vocab_size,
        pretrained=local and local.identity,
        corpora=phase_data(recipes),
        fused=local is not None and local.is_fused,
    )


def _corpus_folder(corpus: CorpusConfig, store: Path) -> Path | None:
    """Return the folder of a finished corpus; None if it is still to be built."""
    if _is_local(corpus):
        folder = locate_corpus(corpus, store)
        return folder if (folder / RECORD).is_file() else None
    # The hub's newest commit is unknown here, so any corpus built from the dataset is used.
    built = [record.parent for record in (store / "data").glob(f"*/{RECORD}")]
    matching = [folder for folder in built if _is_built_from(corpus, folder)]
    return matching[0] if len(matching) == 1 else None


def _is_local(corpus: CorpusConfig) -> bool:
    """Return whether what determines a corpus is known without the hub."""
    is_local = corpus.tokenizer is None or Path(corpus.tokenizer).is_dir()
    is_local = is_local and not any(is_mteb(t) or published_source(t) for t in corpus.against)
    return is_local and all(find_copy(h.dataset, corpus.copies) for h in _hubs(corpus))


def _edited_code(corpus: CorpusConfig, store: Path) -> str:
    """Say which other code of its sources made a corpus that is here, if any."""
    now = references_in(corpus.model_dump(mode="json"))
    if not now or not _is_local(corpus):
        return ""
    origin = _without_code(decisive(corpus_origin(corpus, tasks_of(corpus, store))))
    for path in (store / "data").glob(f"*/{RECORD}"):
        record = read_record(path.parent)
        named = [name for names in record.get("plugins", {}).values() for name in names]
        old = [shown(name) for name in named if name not in now]
        if old and _without_code(decisive(record["origin"])) == origin:
            return f"read here by other code, of {' and '.join(old)}; text and arms are made again"
    return ""


def _without_code(origin: Any) -> str:
    """Return what determines a corpus as text, without the hashes of code."""
    return re.sub(r'"code":"[0-9a-f]{64}"', '"code":""', canonical_json(origin))


def _is_built_from(corpus: CorpusConfig, folder: Path) -> bool:
    """Return whether these settings made a corpus, as far as they are known without the hub."""
    origin, hubs = read_record(folder)["origin"], _hubs(corpus)
    sources, settings = origin.get("sources", []), origin.get("settings")  # merged ones have none
    if not len(hubs) == len(corpus.sources) == len(sources):
        return False
    if len(corpus.against) != len(origin.get("against", ())):
        return False
    known = map(_known_origin, corpus.sources, hubs)
    return (
        all(part.items() <= whole.items() for part, whole in zip(known, sources, strict=True))
        and settings == corpus.model_dump(include=set(settings or ()))
        and _may_have_tokenised(corpus, origin["tokenizer"])
        and is_complete(folder / "train")
    )


def _known_origin(source: TextSource, hub: HubSource) -> dict[str, Any]:
    """Return what determines a dataset's text, without a commit that only the hub knows."""
    known = {
        "dataset": hub.dataset,
        "config": hub.config,
        "split": hub.split,
        "column": hub.column,
        "share": source.share,
        "license": source.license,
    }
    is_commit = bool(hub.revision and COMMIT.fullmatch(hub.revision))
    return {**known, "revision": hub.revision} if is_commit else known


def _may_have_tokenised(corpus: CorpusConfig, recorded: dict[str, Any]) -> bool:
    """Return whether the tokenizer of a corpus is the one of its settings, if that is here."""
    if corpus.tokenizer is None or Path(corpus.tokenizer).is_dir():
        return tokenizer_origin(corpus) == recorded
    return "sha256" in recorded


def _hubs(corpus: CorpusConfig) -> list[HubSource]:
    """Return the hub datasets of a corpus, each with the column that is read."""
    sources = [source for source in corpus.sources if isinstance(source, SourceConfig)]
    return [replace(s.hub, column=s.hub.column or s.column) for s in sources if s.hub]


def _tokenizer_to_be(corpus: CorpusConfig, assumed: list[str]) -> tuple[str, int]:
    """Return the identity and the vocabulary size of a tokenizer without a finished corpus."""
    if corpus.tokenizer is None:
        size = corpus.vocab_size or DEFAULT_VOCAB_SIZE
        return digest({"stand-in": "tokenizer", "vocab_size": size}), size
    if Path(corpus.tokenizer).is_dir():
        loaded = TextTokenizer.load(Path(corpus.tokenizer))
        return loaded.sha256, loaded.vocab_size
    assumed.append(f"tokenizer: {corpus.tokenizer}, assumed to have {GIVEN_VOCABULARY:,} entries")
    return digest({"stand-in": "tokenizer", "name": corpus.tokenizer}), GIVEN_VOCABULARY


def content_hash(folder: Path) -> str:
    """Return the hash of the training text of a finished corpus."""
    path = folder / "train" / DETAILS
    remedy = f"delete the folder {folder} and build the corpus again"
    try:
        return str(read_json(path, remedy=remedy)["content_hash"])
    except (KeyError, TypeError):
        raise DataError(f"{path}: damaged: no content hash; {remedy}") from None


def phase_data(recipes: Sequence[Recipe]) -> dict[str, str]:
    """Return the content hashes of what single phases read, corpora and pairs, by folder."""
    pairs = {str(folder): Pairs(folder).content_hash for folder in phase_pairs(recipes)}
    return {**pairs, **{str(folder): content_hash(folder) for folder in phase_corpora(recipes)}}


def _local_model(model: PretrainedModel, assumed: list[str]) -> LocalModel:
    """Return a model that is here, or a placeholder for one that is still to be fetched."""
    try:
        found = find_model(model.pretrained, revision=model.revision)
    except BiphasicError as error:
        raise DataError(str(error)) from None
    if found is not None:
        return found
    assumed.append(f"model: {model.pretrained}, not fetched yet")
    identity = digest({"stand-in": "model", "described": model.model_dump_json()})
    return LocalModel(Path(model.pretrained), identity, model.revision)
