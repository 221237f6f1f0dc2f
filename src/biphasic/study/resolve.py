"""Resolution of a study: its corpus, tasks, encoders and recipes, and the plan that follows.

Plans need hashes of corpora and tasks. To run, a study builds and fetches what is missing. To plan,
placeholders replace what is missing: a hash of its description in the study. Sharing does not
depend on them, because arms with the same text get the same placeholder, and nothing connects to
the hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.data.building.build import RECORD, corpus_origin, decisive, is_built, read_record
from biphasic.data.building.built import read_tokenizer
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import DETAILS
from biphasic.data.pairs import Pairs
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import BiphasicError, ConfigError, DataError, ModelError
from biphasic.execution.job import save_job
from biphasic.files import canonical_json, digest, read_json
from biphasic.model.loading.hub import LocalModel, fetch_model, find_model
from biphasic.model.shape import Architecture
from biphasic.plugins import keep_files, references_in, shown
from biphasic.progress import progress_bar, say_on
from biphasic.store import RESULT, STATE, Store
from biphasic.study.inputs.corpus import (
    CorpusJob,
    DataPaths,
    as_run,
    corpus_of,
    is_local,
    locate_corpus,
    phase_corpora,
    phase_pairs,
    prepare_corpus,
    pretrained_model,
    recall,
    remember,
    tasks_of,
)
from biphasic.study.inputs.tasks import Missing, PlannedTask, TaskResolver, count_in_text
from biphasic.study.plan.finetuning import check_lengths, compute_baselines, other_reading
from biphasic.study.plan.finished import Finished, plan_notes, without_other_code
from biphasic.study.plan.plan import NO_CORPUS, Plan, plan_study
from biphasic.study.settings.arms import ArmConfig
from biphasic.study.study import Study
from biphasic.training.lineage import DataFingerprint, TrainingData
from biphasic.training.recipe import PretrainedModel, Recipe
from biphasic.training.state import Checkpoints

# Entries assumed of a tokenizer that was not fetched: those of Llama 3, as in the study.
GIVEN_VOCABULARY = 128_256


@dataclass(frozen=True)
class ResolvedStudy:
    """A study with its data, so that it can be planned, and run unless some are `assumed`."""

    study: Study
    fingerprint: DataFingerprint
    tasks: tuple[PlannedTask, ...]
    encoders: Mapping[str, LocalModel]  # Finished encoders of arms, by name.
    paths: DataPaths
    data: TrainingData | None = None  # None if all arms are finished encoders, or without building.
    assumed: tuple[str, ...] = ()  # A sentence for each placeholder.

    @cached_property
    def plan(self) -> Plan:
        """Everything that the study computes; it continues from states that are here."""
        known = Store(self.study.store).walk(STATE)
        settings: dict[str, Any] = {"encoders": self.encoders, "known": known}
        return plan_study(
            self.study, self.fingerprint, self.tasks, **settings, assumed=self.assumed
        )

    def compute_baselines(self, *, console: Console) -> None:
        """Compute the floors and references without results in the store."""
        store = self.study.store
        known = Store(store).walk(RESULT)
        # One listing of the folder, in place of a look for each.
        if missing := [one for one in self.plan.baselines if one.id not in known]:
            with progress_bar(console, "computing floors and references"):
                compute_baselines(missing, store, self.paths.tokenizer)


def resolve(
    study: Study, *, missing: Missing, console: Console | None = None, fresh: bool = False
) -> ResolvedStudy:
    """Find a study's data; build or fetch `missing` ones and check all inputs, or assume them."""
    if missing == "placeholder":
        return _assumed(study)
    return _built(study, console or Console(quiet=True), fresh=fresh)


def _assumed(study: Study) -> ResolvedStudy:
    """Find data that are here, with placeholders for those that can be fetched or built."""
    assumed: list[str] = []
    problems: list[str] = []
    # Encoders and tasks are looked at before either fails: people mend all at once.
    # Empty values, with which the second `try` can go on after the first has failed.
    fingerprint, encoders, tasks = NO_CORPUS, dict[str, LocalModel](), tuple[PlannedTask, ...]()
    try:
        if study.config.reads_corpus:
            fingerprint = _fingerprint(study, assumed)
        for arm in study.config.arms:
            if arm.encoder is not None:
                encoders[arm.name] = _local_model(arm.encoder, assumed)
    except (ConfigError, DataError) as error:
        problems.append(str(error))
    try:
        tasks = TaskResolver(study).resolve(missing="placeholder", assumed=assumed)
    except DataError as error:
        problems.append(str(error))
    if problems:
        raise DataError("; ".join(problems))
    paths = DataPaths.of(study.store / "data")
    return ResolvedStudy(study, fingerprint, tasks, encoders, paths, assumed=tuple(assumed))


def _built(study: Study, console: Console, *, fresh: bool) -> ResolvedStudy:
    """Build or fetch missing data, and check all inputs of the study's jobs."""
    config, store, say = study.config, study.store, say_on(console)
    # Before the tasks, which take time: a missing source fails early.
    recipes = [*study.recipes.values()]
    given = corpus_of(config.corpus, recipes)
    settings = given.at_commits()
    corpus = locate_corpus(settings, store)
    with progress_bar(console, "finding finished encoders"):
        models = {arm.name: arm.encoder for arm in config.arms if arm.encoder}
        encoders = {n: fetch_model(m.pretrained, revision=m.revision) for n, m in models.items()}
    with progress_bar(console, "finding the tasks"):
        tasks = TaskResolver(study, say=say).resolve(missing="build", assumed=[])
    if config.reads_corpus and config.corpus.folder is None and not is_built(corpus):
        # 'job run' can resume it by its identity after an interruption.
        save_job(CorpusJob.of(settings, corpus, store))
    notes = [
        note
        for arm in config.arms
        if arm.encoder
        for note in check_encoder(encoders[arm.name], tasks, arm=arm)
    ]
    if any(task.training.protocol.lora for task in tasks):
        from biphasic.study.inputs.models import check_lora  # noqa: PLC0415 - loads torch

        bodies: list[Path | Architecture] = [encoder.folder for encoder in encoders.values()]
        for recipe in recipes:
            body = recipe.architecture
            if isinstance(model := recipe.model, PretrainedModel):
                body = fetch_model(model.pretrained, revision=model.revision).folder
            if body and body not in bodies:
                bodies.append(body)
        check_lora((task.training.outline for task in tasks), bodies)
    _check_fit(study.recipes)
    keep_files(store, config, *recipes)  # workers import plugins from there
    paths, data = DataPaths.of(corpus), None
    if config.reads_corpus:
        paths = prepare_corpus(settings, corpus, store, console=console, recipes=recipes)
        if given.folder is None and not is_local(given):
            remember(store, given, corpus)  # plans look it up without asking the hub
    with progress_bar(console, "checking text, tasks and states"):
        if config.reads_corpus:
            paths = paths.extended(recipes)
            # A damaged record should end the command now.
            paths.origin()  # read by the report, hours later
            data = paths.open()
            check_lengths((task.outline for task in tasks), data.tokenizer)
        fingerprint = data.fingerprint if data else NO_CORPUS
        resolved = ResolvedStudy(study, fingerprint, tasks, encoders, paths, data)
        check_inputs(resolved.plan)
    if data is not None:
        label = "looking for test examples in the training corpus"
        with progress_bar(console, label, unit="documents") as report:
            notes += filter(None, [count_in_text(store, data, tasks, report=report)])
    notes += plan_notes(resolved.plan)

    def plan() -> Plan:
        nonlocal resolved
        # A new object, since `plan` is cached in the old one.
        resolved = replace(resolved)  # its plan may continue from another state now
        return resolved.plan

    without_other_code(plan, fresh=fresh, say=say, note=notes.append)
    for sentence in notes:
        say(sentence)
    return resolved


def _check_fit(recipes: Mapping[str, Recipe]) -> None:
    """Check later phases before earlier ones are trained."""
    if any(of.reading or of.freeze or of.lora for r in recipes.values() for of in r.phases):
        from biphasic.study.inputs.models import check_fit  # noqa: PLC0415 - loads torch

        check_fit(recipes)


def check_encoder(
    encoder: LocalModel, tasks: Sequence[PlannedTask], *, arm: ArmConfig
) -> list[str]:
    """Check that the finished encoder of an arm can read all inputs; return notes on them."""
    from biphasic.model.contract import model_limits  # noqa: PLC0415 - loads torch
    from biphasic.study.inputs.models import own_tokenizer  # noqa: PLC0415 - loads torch

    try:
        limits = model_limits(encoder.folder)
        tokenizer = own_tokenizer(encoder.folder, limits)
        check_lengths(
            (task.outline for task in tasks),
            tokenizer,
            positions=limits.positions,
            layers=limits.num_layers,
        )
    except (ConfigError, ModelError) as error:
        raise type(error)(f"arm '{arm.name}': {error}") from None
    notes = {
        task.info.name: other_reading(
            encoder.folder, task.attending(arm.attention), setting="protocol."
        )
        for task in tasks
    }
    return [f"arm '{arm.name}' on {task}: {note}" for task, note in notes.items() if note]


def check_inputs(plan: Plan) -> None:
    """Verify the inputs of missing jobs and of the report before any job runs."""
    # Only sizes of states that no missing job reads are checked; `study verify` checks their
    # hashes.
    finished, store = Finished.of(plan), plan.store
    missing = finished.missing_segments()
    needed = {segment.parent for segment in missing}
    needed |= {group.state for group in finished.missing_groups()}
    planned = {segment.id for segment in plan.segments}
    for identity in sorted(identity for identity in needed | planned if identity):
        if identity in finished.states:
            Store(store).get(STATE, identity).verify(hashes=identity in needed)
    for segment in missing:
        progress = Checkpoints.of(store, segment.id, start=segment.start)
        latest = progress.latest_step()
        if latest is not None:
            progress.verify(latest)
    for name in finished.results.intersection(plan.result_ids()):
        Store(store).get(RESULT, name).verify()


def _fingerprint(study: Study, assumed: list[str]) -> DataFingerprint:
    recipes = [*study.recipes.values()]
    corpus = corpus_of(study.config.corpus, recipes)
    store = study.store
    if folder := _built_folder(corpus, store):
        loaded = read_tokenizer(folder / "tokenizer")
        tokenizer, vocab_size = loaded.sha256, loaded.vocab_size
        corpus_hash = content_hash(folder)
    else:
        tokenizer, vocab_size = _tokenizer_to_be(corpus, assumed)
        corpus_hash = _corpus_to_be(corpus, "corpus", store, assumed)
    corpora = phase_data(recipes, folder, store, assumed)
    model = pretrained_model(recipes)
    local = model and _local_model(model, assumed)
    return DataFingerprint(
        corpus_hash=corpus_hash,
        tokenizer_sha256=tokenizer,
        vocab_size=vocab_size,
        pretrained=local and local.identity,
        corpora=corpora,
        fused=local is not None and local.is_fused,
    )


def _built_folder(corpus: CorpusConfig, store: Path) -> Path | None:
    """Return the folder of a corpus; None if it is not built, or if only the hub knows which."""
    folder = locate_corpus(corpus, store) if is_local(corpus) else recall(store, corpus)
    return folder if folder and is_built(folder) else None


def _corpus_to_be(corpus: CorpusConfig, title: str, store: Path, assumed: list[str]) -> str:
    """Return a placeholder for the content hash of a corpus that is not built."""
    titles = ", ".join(s.short_name if s.plugin else s.source for s in corpus.sources)
    why = "not tokenised here yet, or its files were changed or copied since"
    assumed.append(f"{title}: {titles}, {_edited_code(corpus, store) or why}")
    described = corpus.model_dump(mode="json", exclude_defaults=True)
    return digest({"stand-in": "corpus", "described": described})


def _edited_code(corpus: CorpusConfig, store: Path) -> str:
    """Say which other code of its sources made a corpus that is here, if any."""
    now = references_in(corpus.model_dump(mode="json"))
    if not now or not is_local(corpus):
        return ""
    origin = _without_code(decisive(corpus_origin(corpus, tasks_of(corpus, store))))
    for path in (store / "data").glob(f"*/{RECORD}"):
        record = read_record(path.parent)
        named = [name for names in record.get("plugins", {}).values() for name in names]
        old = [shown(name) for name in named if name not in now]
        if old and _without_code(decisive(record["origin"])) == origin:
            was = f"was built with other code of {' and '.join(old)}"
            return f"{was}; the corpus is built again, and its arms are trained again"
    return ""


def _without_code(origin: Any) -> str:
    """Return what determines a corpus as text, without the hashes of code."""
    # In the text, as hashes of code stand at several depths of an origin.
    return re.sub(r'"code":"[0-9a-f]{64}"', '"code":""', canonical_json(origin))


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


def phase_data(
    recipes: Sequence[Recipe], run: Path | None, store: Path, assumed: list[str]
) -> dict[str, str]:
    """Return the content hashes of what single phases read, pairs and corpora, by name."""
    # `run` is the folder of the run's corpus, if it is built: phases have its tokenizer.
    hashes = {str(folder): Pairs(folder).content_hash for folder in phase_pairs(recipes)}
    for name, own in phase_corpora(recipes).items():
        if isinstance(own, Path):
            hashes[name] = content_hash(own)
        elif run and (built := _built_folder(as_run(own, run / "tokenizer"), store)):
            hashes[name] = content_hash(built)
        else:
            hashes[name] = _corpus_to_be(own, "corpus of a phase", store, assumed)
    return hashes


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
