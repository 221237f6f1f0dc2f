"""Settings with all defaults, as `--print-config` prints them.

The YAML can be loaded again. Settings that do not belong in such a file are printed as comments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from biphasic.config import dump_settings
from biphasic.data.building.config import CorpusConfig
from biphasic.records import Convention
from biphasic.study.spec.study import (
    PAPER,
    FinetuningConfig,
    StudyConfig,
    TaskConfig,
    finetuning_of,
)
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe

_PER_MODEL = """\
finetuning.protocol.max_seqlen is not set, so it is the model's maximum. Settings in a task's
description override finetuning.protocol."""


def recipe_text(recipe: Recipe, *, corpus: CorpusConfig, compute: ComputeConfig) -> str:
    """Return a recipe file, with the corpus and `compute` as comments."""
    others = {"corpus": _plain(corpus), "compute": _plain(compute)}
    return dump_settings(_plain(recipe)) + _comment(dump_settings(others))


def study_text(config: StudyConfig) -> str:
    """Return a study file with includes, axes and overrides applied."""
    return _with_finetuning(_plain(config), config.finetuning)


def evaluation_text(
    tasks: Sequence[TaskConfig],
    *,
    learning_rates: Sequence[float] | None,
    extend: int | None,
    seeds: Sequence[int] | None,
    protocol: Mapping[str, Any],
    is_paper: bool,
    convention: Convention,
) -> str:
    """Return the settings of an evaluation, as in a study file."""
    finetuning = finetuning_of(
        learning_rates, extend, seeds, protocol=PAPER if is_paper else protocol
    )
    content = {
        "tasks": [_plain(task.model_copy(update={"protocol": dict(protocol)})) for task in tasks],
        "finetuning": _plain(finetuning),
        "convention": convention,
    }
    return _with_finetuning(content, finetuning)


def _with_finetuning(content: dict[str, Any], config: FinetuningConfig) -> str:
    """Return the text of settings, without a length that follows the model."""
    protocol = config.protocol
    if isinstance(protocol, str) or "max_seqlen" in protocol.model_fields_set:
        return dump_settings(content)
    del content["finetuning"]["protocol"]["max_seqlen"]
    return dump_settings(content) + _comment(_PER_MODEL)


def _plain(config: Any) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())
