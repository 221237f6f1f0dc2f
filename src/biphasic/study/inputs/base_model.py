"""Finished models that recipes begin with: found, and checked before any work."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.model.checks.contract import check_contract
from biphasic.model.checks.limits import model_limits
from biphasic.model.loading.footprint import check_memory
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.model.pretrained import load_pretrained
from biphasic.training.recipe import PretrainedModel, Recipe


def locate_pretrained(recipes: Iterable[Recipe], tokenizer: TextTokenizer) -> LocalModel | None:
    """Find the finished model that recipes begin with; None where they begin with new ones.

    Args:
        recipes: They share a model.
        tokenizer: What made their text.

    Raises:
        ConfigError: The recipes begin with different finished models, or rows are too long.
        DataError: There is no such model.
        ModelError: The tokenizer is not the model's.
    """
    beginning = [recipe for recipe in recipes if isinstance(recipe.model, PretrainedModel)]
    models = [recipe.model for recipe in beginning if isinstance(recipe.model, PretrainedModel)]
    if not models:
        return None
    model, *others = models
    if any(other != model for other in others):
        raise ConfigError("recipes that share their text must begin with the same finished model")
    local = fetch_model(model.pretrained, revision=model.revision)
    check_vocabulary(local.folder, tokenizer, name=model.pretrained)
    for recipe in beginning:
        check_positions(recipe, local.folder)
    return local


def check_vocabulary(model: Path, tokenizer: TextTokenizer, *, name: str) -> None:
    """Check that text was made for a model: every token of the model's means the same here.

    Raises:
        ModelError: A token has another id, or the vocabulary is far larger than the model's.
    """
    if (model / "tokenizer.json").is_file():
        here = tokenizer.vocabulary()
        for token, token_id in TextTokenizer.load(model).vocabulary().items():
            if here.get(token) != token_id:
                found = "is missing from" if token not in here else f"has id {here[token]} in"
                raise ModelError(
                    f"{name}: token {token!r} has id {token_id} in the model's tokenizer and "
                    f"{found} the corpus's; build the corpus with '--tokenizer {name}'"
                )
    num_embeddings = model_limits(model).num_embeddings
    # One more: the mask token that decoders lack.
    if tokenizer.vocab_size > num_embeddings + 1:
        raise ModelError(
            f"{name}: the tokenizer has {tokenizer.vocab_size} entries, the model "
            f"{num_embeddings}; they do not belong together"
        )


def check_positions(recipe: Recipe, model: Path) -> None:
    """Check that a model can read rows as long as a recipe begins with.

    Raises:
        ConfigError: It has fewer positions, and no phase extends them.
    """
    positions = model_limits(model).positions
    if positions is not None and recipe.max_seqlen > positions:
        raise ConfigError(
            f"max_seqlen {recipe.max_seqlen} exceeds the model's {positions} positions; lower it, "
            "or extend the context in a phase of a recipe for 'biphasic pretrain' "
            "(phases.N.max_seqlen, with rope_theta)"
        )


def check_model(model: LocalModel, recipe: Recipe, *, name: str) -> None:
    """Check that a model can train as a recipe says, before any text is made for it.

    Raises:
        ConfigError: Rows are longer than it reads.
        DataError: It has no tokenizer.
        ModelError: It does not fit into memory, cannot be loaded with its language-model head, or
            breaks the attention contract in a layer that is named.
    """
    check_vocabulary(model.folder, TextTokenizer.load(model.folder), name=name)
    check_positions(recipe, model.folder)
    check_memory(model.folder, use=recipe.precision)
    loaded = load_pretrained(model.folder)
    directions = (phase.directions for phase in recipe.phases)
    for causal in sorted(frozenset[bool]().union(*directions)):
        check_contract(loaded, causal=causal)
