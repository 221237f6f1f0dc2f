"""Checks the classes of one file, or one installed class, by the rules of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import create_model

from biphasic.config import Config, parse_config
from biphasic.conformance import executors, objectives, optimizers, sources
from biphasic.data.text.source import TextSource
from biphasic.data.text.sources import AnySource
from biphasic.errors import ConfigError
from biphasic.execution.executor import ExecutorConfig
from biphasic.execution.registry import AnyExecutor
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.registry import AnyObjective
from biphasic.plugins import Group, classes_of, installed_names, shown
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.optimizers.registry import AnyOptimizer


@dataclass(frozen=True)
class _Kind:
    """How plugins of a group are checked; `key` names one in settings."""

    base: type
    key: str
    settings: Any  # the type that reads them
    check: Callable[[Any], None]
    rules: Mapping[str, Any]


_KINDS: Mapping[Group, _Kind] = {
    "objectives": _Kind(
        ObjectiveConfig, "objective", AnyObjective, objectives.check_objective, objectives.RULES
    ),
    "optimizers": _Kind(
        OptimizerConfig, "name", AnyOptimizer, optimizers.check_optimizer, optimizers.RULES
    ),
    "executors": _Kind(
        ExecutorConfig, "executor", AnyExecutor, executors.check_executor, executors.RULES
    ),
    "sources": _Kind(TextSource, "source", AnySource, sources.check_source, sources.RULES),
}


def check_plugins(named: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Check the plugins that `FILE`, `FILE:CLASS` or an installed name means; yield their lines.

    Raises:
        ConfigError: One of them breaks a rule, which the message names, or there is none.
    """
    references = list(_references(named))
    if not references:
        bases = " or ".join(kind.base.__name__ for kind in _KINDS.values())
        raise ConfigError(
            f"{named}: no class of the base {bases}; a kind of task is checked with --task FOLDER"
        )
    for group, reference in references:
        kind = _KINDS[group]
        raw = {"settings": {kind.key: reference, **settings}}
        holder = create_model("Holder", __base__=Config, settings=(kind.settings, ...))
        checked = parse_config(holder, raw, where=named).settings  # type: ignore[attr-defined]
        if checked.plugin is None:
            raise ConfigError(f"{named}: is one of ours, which is used instead; rename yours")
        kind.check(checked)
        yield f"{shown(checked.plugin.reference)}: keeps all {len(kind.rules)} rules of {group}"


def _references(named: str) -> Iterator[tuple[Group, str]]:
    file, colon, name = named.rpartition(":")
    for group, kind in _KINDS.items():
        if named in installed_names(group):
            yield group, named
        elif ".py" in named:
            for each in classes_of(file if colon else named, kind.base):
                if not colon or each == name:
                    yield group, f"{file if colon else named}:{each}"
