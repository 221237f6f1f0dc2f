"""The kinds of tasks. Add new ones of ours here.

See docs/tasks.md and docs/formats.md; docs/plugins.md for those of other people.
"""

from __future__ import annotations

from collections import UserDict
from typing import Annotated

from pydantic import AfterValidator

from biphasic.config import nearest
from biphasic.plugins import find_plugin, is_plugin
from biphasic.tasks.kinds.kind import TaskKind
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs
from biphasic.tasks.kinds.questions import QuestionAnswering
from biphasic.tasks.kinds.retrieval import Retrieval, ZeroShot
from biphasic.tasks.kinds.similarity import Regression, Similarity
from biphasic.tasks.kinds.tagging import Tagging
from biphasic.tasks.kinds.text import Classification, MultiLabel


class _Kinds(UserDict[str, TaskKind]):
    """Kinds by name: iterates over ours, and finds those of plugins when they are named."""

    def __contains__(self, name: object) -> bool:
        return name in self.data or (isinstance(name, str) and is_plugin("task_kinds", name))

    def __missing__(self, name: str) -> TaskKind:
        if not is_plugin("task_kinds", name):
            raise KeyError(name)
        # Not kept in `data`: iterating gives our kinds alone, so a plugin is never offered unasked.
        plugin = find_plugin("task_kinds", name, TaskKind, ours=self.data)
        kind = plugin.type()
        kind.plugin = plugin
        return kind


KINDS = _Kinds(
    {
        kind.name: kind
        for kind in (
            Classification(),
            MultiLabel(),
            Regression(),
            Tagging(),
            QuestionAnswering(),
            Retrieval(),
            ZeroShot(),
            MinimalPairs(),
            Similarity(),
        )
    }
)  # each kind by its name


def known_kind(name: str) -> str:
    """Return the name of a kind, with the hash of its code if it is a plugin."""
    if name not in KINDS:
        raise ValueError(f"unknown value '{name}'{nearest(name, KINDS)}")
    plugin = KINDS[name].plugin
    return name if plugin is None else plugin.reference


KindName = Annotated[str, AfterValidator(known_kind)]  # type of what names a kind


def kinds_with(setting: str) -> tuple[str, ...]:
    """Return the kinds that have a setting."""
    return tuple(name for name, kind in KINDS.items() if setting in kind.examples.settings)


def name_in_kind(name: str, kind: str) -> str:
    """Return the name of a task in a derived kind: it tells it from the same data in the other."""
    return f"{name}-{kind}" if KINDS[kind].derived_from else name
