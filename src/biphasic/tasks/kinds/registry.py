"""The kinds of tasks. Add new ones here.

See docs/tasks.md and docs/formats.md.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from biphasic.config import nearest
from biphasic.tasks.kinds.classification import Classification, MultiLabel
from biphasic.tasks.kinds.kind import TaskKind
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs
from biphasic.tasks.kinds.questions import QuestionAnswering
from biphasic.tasks.kinds.regression import Regression
from biphasic.tasks.kinds.retrieval import Retrieval, ZeroShot
from biphasic.tasks.kinds.similarity import Similarity
from biphasic.tasks.kinds.tagging import Tagging

KINDS: dict[str, TaskKind] = {
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
}  # each kind by its name


def _known(name: str) -> str:
    if name not in KINDS:
        raise ValueError(f"unknown value '{name}'{nearest(name, KINDS)}")
    return name


KindName = Annotated[str, AfterValidator(_known)]  # type of settings and records that name a kind


def kinds_with(setting: str) -> tuple[str, ...]:
    """Return the kinds that have a setting."""
    return tuple(name for name, kind in KINDS.items() if setting in kind.settings)
