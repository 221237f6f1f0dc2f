"""Pretrained models that recipes begin with: locate and check them before training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.model.checks.contract import check_contract
from biphasic.model.checks.limits import model_limits
from biphasic.model.loading.build import load_pretrained
from biphasic.model.loading.footprint import check_memory
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.training.recipe import PretrainedModel, Recipe


def fetch_pretrained(
    model: PretrainedModel, recipes: Iterable[Recipe], tokenizer: TextTokenizer
) -> LocalModel:
    """Return a pretrained model, after checking that recipes which begin with it can train it.

    Raises:
        ConfigError: Rows are too long.
        DataError: The model does not exist.
        ModelError: The tokenizer does not match the model.
    """
    local = fetch_model(model.pretrained, revision=model.revision)
    check_vocabulary(local.folder, tokenizer, name=model.pretrained)
    for recipe in recipes:
        if recipe.model == model:
            check_positions(recipe, local.folder)
    return local


def check_vocabulary(model: Path, tokenizer: TextTokenizer, *, name: str) -> None:
    """Check that a corpus's tokenizer gives every token of a model the same id.

    Raises:
        ModelError: A token has another id, or the vocabulary is too large for the model.
    """
    if (model / "tokenizer.json").is_file():
        ids = tokenizer.vocabulary()
        for token, token_id in TextTokenizer.load(model).vocabulary().items():
            if ids.get(token) != token_id:
                difference = "is missing from" if token not in ids else f"has id {ids[token]} in"
                raise ModelError(
                    f"{name}: token {token!r} has id {token_id} in the model's tokenizer, but "
                    f"{difference} the corpus's; build the corpus with '--tokenizer {name}'"
                )
    num_embeddings = model_limits(model).num_embeddings
    # Decoders may lack the mask token.
    if tokenizer.vocab_size > num_embeddings + 1:
        raise ModelError(
            f"{name}: the corpus's tokenizer has {tokenizer.vocab_size} entries, but the model "
            f"has {num_embeddings}; build the corpus with '--tokenizer {name}'"
        )


def check_positions(recipe: Recipe, model: Path) -> None:
    """Check that a model has enough positions for a recipe's rows.

    Raises:
        ConfigError: It has too few positions.
    """
    positions = model_limits(model).positions
    if positions is not None and recipe.max_seqlen > positions:
        raise ConfigError(
            f"max_seqlen {recipe.max_seqlen} exceeds the model's {positions} positions; lower it, "
            "or extend the context in a phase of a recipe for 'biphasic pretrain' "
            "(phases.N.max_seqlen, with rope_theta)"
        )


def check_model(model: LocalModel, recipe: Recipe, *, name: str) -> None:
    """Check that a recipe can train a model, before its corpus is built.

    Raises:
        ConfigError: Rows are longer than the model's positions.
        DataError: The model has no tokenizer.
        ModelError: The model does not fit into memory, cannot be loaded with its language-model
            head, or breaks the attention contract; the message names the layer.
    """
    check_vocabulary(model.folder, TextTokenizer.load(model.folder), name=name)
    check_positions(recipe, model.folder)
    check_memory(model.folder, use=recipe.precision)
    loaded = load_pretrained(model.folder)
    directions = (phase.directions for phase in recipe.phases)
    for causal in sorted(frozenset[bool]().union(*directions)):
        check_contract(loaded, causal=causal, weights=model.identity)
