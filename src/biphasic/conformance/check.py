"""Checks the classes of one file, or one installed class, by the rules of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


class _Objective(Config):
    settings: AnyObjective


class _Optimizer(Config):
    settings: AnyOptimizer


class _Executor(Config):
    settings: AnyExecutor


class _Source(Config):
    settings: AnySource


@dataclass(frozen=True)
class _Kind:
    """How plugins of a group are checked; `key` names one in settings."""

    base: type
    key: str
    holder: type[Config]
    check: Callable[[Any], None]
    num_rules: int


_KINDS: Mapping[Group, _Kind] = {
    "objectives": _Kind(
        ObjectiveConfig, "objective", _Objective, objectives.check_objective, len(objectives.RULES)
    ),
    "optimizers": _Kind(
        OptimizerConfig, "name", _Optimizer, optimizers.check_optimizer, len(optimizers.RULES)
    ),
    "executors": _Kind(
        ExecutorConfig, "executor", _Executor, executors.check_executor, len(executors.RULES)
    ),
    "sources": _Kind(TextSource, "source", _Source, sources.check_source, len(sources.RULES)),
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
        checked = parse_config(kind.holder, raw, where=named).settings  # type: ignore[attr-defined]
        if checked.plugin is None:
            raise ConfigError(f"{named}: is one of ours, which is used instead; rename yours")
        kind.check(checked)
        yield f"{shown(checked.plugin.reference)}: keeps all {kind.num_rules} rules of {group}"


def _references(named: str) -> Iterator[tuple[Group, str]]:
    file, colon, name = named.rpartition(":")
    for group, kind in _KINDS.items():
        if named in installed_names(group):
            yield group, named
        elif ".py" in named:
            for each in classes_of(file if colon else named, kind.base):
                if not colon or each == name:
                    yield group, f"{file if colon else named}:{each}"
