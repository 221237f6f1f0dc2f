"""Pretrained models that recipes begin with, and states whose runs they continue.

A continuation has the rows, the optimizer and the schedule of the state's run. This applies to a
state on its own text: rows it has read must not repeat, and all arms of a comparison must read the
same new rows. On other text a state is an ordinary pretrained model.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from biphasic.config import parse_config
from biphasic.data.pairs import Pairs
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError, ModelError
from biphasic.files import read_json_object
from biphasic.model.compute.device import compute_device
from biphasic.model.compute.forward import first_position
from biphasic.model.contract import ModelLimits, check_contract, model_limits
from biphasic.model.loading.build import (
    architecture_config,
    empty_body,
    load_pretrained,
    new_model,
)
from biphasic.model.loading.configurations import extend_config
from biphasic.model.loading.footprint import Use, check_memory, free_memory, required_memory
from biphasic.model.loading.hub import LocalModel, claimed_identity, fetch_model
from biphasic.model.loading.reading import read_config
from biphasic.model.lora import lora_targets, require_peft
from biphasic.model.shape import Architecture
from biphasic.objectives.lr import LearningRateConfig
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import uses_of_head
from biphasic.store import STATE, Store, complete_folder, is_complete
from biphasic.study.settings.tuned_rates import with_last_schedule
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import DataFingerprint, Lineage
from biphasic.training.recipe import Precision, PretrainedModel, Recipe
from biphasic.training.run import check_phases_with


def fetch_pretrained(
    model: PretrainedModel, recipes: Iterable[Recipe], tokenizer: TextTokenizer
) -> LocalModel:
    """Return a pretrained model, after checking that recipes which begin with it can train it."""
    local = fetch_model(model.pretrained, revision=model.revision)
    check_vocabulary(local.folder, tokenizer, name=model.pretrained)
    for recipe in recipes:
        if recipe.model == model:
            check_positions(recipe, local.folder)
    return local


def own_tokenizer(encoder: Path, limits: ModelLimits) -> TextTokenizer:
    """Return the tokenizer of a finished encoder, after checking that the model can read it."""
    tokenizer = TextTokenizer.load(encoder)
    if tokenizer.vocab_size > limits.num_embeddings:
        raise ModelError(
            f"the tokenizer has {tokenizer.vocab_size} entries, but the model has only "
            f"{limits.num_embeddings}; use the model's own tokenizer"
        )
    return tokenizer


def check_vocabulary(model: Path, tokenizer: TextTokenizer, *, name: str) -> None:
    """Check that a corpus's tokenizer gives every token of a model the same id."""
    if difference := token_difference(model, tokenizer):
        raise ModelError(
            f"{name}: {difference} the corpus's; build the corpus with '--tokenizer {name}'"
        )
    num_embeddings = model_limits(model).num_embeddings
    # Decoders may lack the mask token.
    if tokenizer.vocab_size > num_embeddings + 1:
        raise ModelError(
            f"{name}: the corpus's tokenizer has {tokenizer.vocab_size} entries, but the model "
            f"has {num_embeddings}; build the corpus with '--tokenizer {name}'"
        )


def check_vocabulary_size(model: Path, trained: int, *, name: str) -> None:
    """Check that a tokenizer of this size, which is not trained yet, can have a model's tokens."""
    if not (model / "tokenizer.json").is_file():
        return
    needed = TextTokenizer.load(model).vocab_size
    if needed > trained:
        raise ModelError(
            f"{name}: its tokenizer has {needed:,} entries, but the corpus trains one of "
            f"{trained:,}; build a corpus with '--tokenizer {name}', and name it with --corpus"
        )


def token_difference(model: Path, tokenizer: TextTokenizer) -> str:
    """Describe a token of a model that another tokenizer does not give the same id, if any."""
    if not (model / "tokenizer.json").is_file():
        return ""
    ids = tokenizer.vocabulary()
    for token, token_id in TextTokenizer.load(model).vocabulary().items():
        if ids.get(token) != token_id:
            difference = "is missing from" if token not in ids else f"has id {ids[token]} in"
            return f"token {token!r} has id {token_id} in the model's tokenizer, but {difference}"
    return ""


def check_positions(recipe: Recipe, model: Path) -> None:
    """Check that a model has enough positions for a recipe's rows."""
    positions = model_limits(model).positions
    if positions is not None and recipe.max_seqlen > positions:
        raise ConfigError(
            f"max_seqlen {recipe.max_seqlen} exceeds the model's {positions} positions; lower it, "
            "or extend the context in a phase of a recipe for 'biphasic pretrain' "
            "(phases.N.max_seqlen, with rope_theta)"
        )
    body = empty_body(model)
    for placed in recipe.placed_phases:
        config, first = deepcopy(body.config), first_position(body)
        try:
            extend_config(
                config, first=first, max_seqlen=placed.longest, rope_theta=placed.rope_theta
            )
        except ModelError as error:
            raise ConfigError(f"phases.{placed.index}: {error}") from None


def check_lora(
    tasks: Iterable[tuple[str, str | None, FinetuneProtocol]],
    encoders: Iterable[Path | Architecture],
) -> None:
    """Check that fine-tuning can add the LoRA of protocols to encoders, before any work."""
    asked = {lora: name for name, _, protocol in tasks if (lora := protocol.lora)}
    if asked:
        require_peft()
    for encoder in encoders if asked else ():
        body = (
            empty_body(encoder) if isinstance(encoder, Path) else _empty(encoder, with_head=False)
        )
        for lora, name in asked.items():
            try:
                lora_targets(body, lora)
            except (ConfigError, ModelError) as error:
                raise type(error)(f"task '{name}': protocol.{error}") from None


def check_fit(recipes: Mapping[str, Recipe]) -> None:
    """Check that the models of arms fit their pairs, and have the parameters that phases name."""
    pairs: dict[Path, Pairs] = {}  # opening them takes time: their hashes are verified
    checked: list[tuple[ObjectiveConfig, PretrainedModel | Architecture | None]] = []
    for arm, recipe in recipes.items():
        model = recipe.model if isinstance(recipe.model, PretrainedModel) else recipe.architecture
        try:
            for phase in recipe.phases:
                if phase.reading is None or (phase, model) in checked:
                    continue
                checked.append((phase, model))
                if (folder := phase.reading.folder) not in pairs:
                    pairs[folder] = Pairs(folder)
                phase.check_pairs(pairs[folder], width=_width(recipe))
            if recipe.architecture and any(phase.freeze or phase.lora for phase in recipe.phases):
                check_phases_with(_empty(recipe.architecture, with_head=True), recipe)
        except ConfigError as error:
            raise ConfigError(f"arm '{arm}': {error}" if arm else str(error)) from None


def _width(recipe: Recipe) -> int:
    """Return the width of a recipe's model."""
    shape: Any = recipe.architecture
    if isinstance(model := recipe.model, PretrainedModel):
        shape = read_config(fetch_model(model.pretrained, revision=model.revision).folder)
    return shape.hidden_size


def _empty(architecture: Architecture, *, with_head: bool) -> PreTrainedModel:
    ids = {"bos": 0, "eos": 0, "pad": 0, "mask": 0}
    config = architecture_config(architecture, vocab_size=1, max_seqlen=1, special_ids=ids)
    with torch.device("meta"):
        return new_model(config, init_seed=0, with_head=with_head)


def check_model(model: LocalModel, recipe: Recipe, compute: ComputeConfig, *, name: str) -> None:
    """Check that a recipe can train a model, and its tokenizer, before its corpus is built."""
    check_vocabulary(model.folder, TextTokenizer.load(model.folder), name=name)
    is_lora = all(phase.lora for phase in recipe.phases)
    by_lora: dict[Precision, Use] = {"fp32": "fp32 by LoRA", "bf16": "bf16 by LoRA"}
    use: Use = by_lora[recipe.precision] if is_lora else recipe.precision
    # Each GPU holds a part; on a CPU, all parts are in one memory.
    is_divided = compute.shard != "none" and compute.processes > 1
    if is_divided and compute_device().type == "cuda":
        use = "load"
    check_memory(model.folder, use=use)
    check_training(model, [recipe])


def check_training(model: LocalModel, recipes: Sequence[Recipe]) -> None:
    """Check that recipes can train a model, on this machine or another one."""
    # A model that does not fit into this machine's memory is trained on another one.
    for recipe in recipes:
        check_positions(recipe, model.folder)
    if required_memory(model.folder, use="load") > free_memory():
        return
    phases = [phase for recipe in recipes for phase in recipe.phases]
    loaded = load_pretrained(model.folder, head_for=uses_of_head(phases))
    for recipe in recipes:
        check_phases_with(loaded, recipe)
    for causal in sorted(frozenset[bool]().union(*(phase.directions for phase in phases))):
        check_contract(loaded, causal=causal, weights=model.identity)


@dataclass(frozen=True)
class Continuation:
    """A state, and the recipe that ends with it."""

    # The recipe is to be extended by further phases.

    folder: Path
    identity: str
    recipe: Recipe

    @property
    def steps(self) -> int:
        """Updates before the state."""
        return self.recipe.total_steps

    @property
    def schedule(self) -> LearningRateConfig:
        """Learning-rate schedule of the last update before the state."""
        return self.recipe.placed_phases[-1].schedule

    def require(self, recipe: Recipe, fingerprint: DataFingerprint) -> None:
        """Check that an extended recipe passes through the state."""
        if Lineage(recipe, fingerprint).identities[self.steps] != self.identity:
            raise DataError(
                f"{self.folder}: cannot be resumed: the pretrained model of its run, or the corpus "
                "of a phase, has changed since; restore it, or adapt an export of the state"
            )

    def bring_into(self, store: Path) -> None:
        """Copy the state into a store, unless the store has it."""
        target = Store(store).folder(STATE, self.identity)
        if is_complete(target):
            return
        manifest = STATE.open(self.folder, remedy="copy the state again").verify().manifest
        names = manifest.pop("files")
        with complete_folder(target, **manifest) as partial:
            for name in names:
                shutil.copyfile(self.folder / name, partial / name)


def is_state(model: LocalModel) -> bool:
    """Return whether a model is an intact state of a run."""
    return claimed_identity(model.folder) == model.identity


def find_continuation(model: LocalModel, fingerprint: DataFingerprint) -> Continuation | None:
    """Return the continuation of a state's run; None if the model is no state, or of other text."""
    # Other inputs of the run, its pretrained model and the corpora of phases, are those of the
    # state.
    if not is_state(model):
        return None
    state = read_json_object(model.folder / "state.json")
    ground = state.get("ground") or {}
    fingerprint = replace(
        fingerprint,
        pretrained=ground.get("pretrained"),
        corpora=ground.get("corpora") or {},
        fused=model.is_fused,
    )
    try:
        recipe = parse_config(Recipe, state["recipe"], where=str(model.folder / "state.json"))
    except ConfigError:
        return None  # another version wrote it, with other settings
    for candidate in _ending_at(recipe, int(state["step"])):
        if Lineage(candidate, fingerprint).identities[-1] == model.identity:
            return Continuation(model.folder, model.identity, candidate)
    return None


def _ending_at(recipe: Recipe, step: int) -> Iterator[Recipe]:
    """Yield recipes that may end with the state after `step` updates."""
    if not step:
        return
    phases = [
        placed.phase.model_copy(update={"steps": min(placed.phase.steps, step - placed.start)})
        for placed in recipe.placed_phases
        if placed.start < step
    ]
    skipped = tuple(skip for skip in recipe.skip_steps if skip < step)
    whole = recipe.model_copy(update={"phases": tuple(phases), "skip_steps": skipped})
    # Before its decay, a run has the same rates as one without decay.
    for candidate in (whole, with_last_schedule(whole, decay_steps=0)):
        with suppress(ConfigError):
            candidate.check()
            yield candidate
