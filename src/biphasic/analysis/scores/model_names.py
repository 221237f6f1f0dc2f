"""Parses the factors of a model from its name: `610m-clm-10k-mlm40-42k`.

Studies name arms by this rule (docs/studies.md), like the reference study its public models. A name
has the start of training, each objective and its last step, `dec42k` after the decay of a schedule,
and at the end the step of an intermediate state.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from biphasic.analysis.scores.table import ModelInfo

_SIZE = re.compile(r"\d+(\.\d+)?[mb]", re.IGNORECASE)
_PHASE = re.compile(r"(?P<objective>clm|mlm)(?P<rate>\d+(?:\.\d+)?)?-(?P<dec>dec)?(?P<end>\d+k?)")
_STEP = re.compile(r"\d+")


@dataclass(frozen=True)
class _Phase:
    objective: str
    rate: float | None
    start: int
    end: int
    decays: bool


def model_from_name(name: str) -> ModelInfo:
    """Return a model with the factors in its name; none if the name follows another rule."""
    # Text before the last `/` of a name is an owner.
    text = name.rsplit("/", 1)[-1].lower()
    size, _, rest = text.partition("-")
    phases, on_the_way = _phases(rest) if _SIZE.fullmatch(size) else ([], None)
    if not phases:
        return ModelInfo(name, name)
    total = on_the_way if on_the_way is not None else phases[-1].end
    begun = [phase for phase in phases if phase.start < min(phase.end, total)]
    steps: Counter[str] = Counter()
    for phase in begun:
        steps[phase.objective] += min(phase.end, total) - phase.start
    start, continued = _continuation(phases, total)
    return ModelInfo(
        name=name,
        label=name,
        size=size.upper(),
        parameters=round(float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]),
        objective=_family(begun),
        mask_rate=next((p.rate for p in reversed(begun) if p.objective == "mlm"), None),
        clm_steps=steps["clm"],
        mlm_steps=steps["mlm"],
        total_steps=total,
        start=start,
        continued_steps=continued,
        is_final=on_the_way is None,
    )


def _phases(text: str) -> tuple[list[_Phase], int | None]:
    """Parse a name; return no phases if any part of it does not match."""
    phases: list[_Phase] = []
    while match := _PHASE.match(text):
        rate = float(match["rate"]) / 100 if match["rate"] else None
        is_whole = (match["objective"] == "mlm") == (rate is not None)
        end = int(match["end"].removesuffix("k")) * (1000 if match["end"].endswith("k") else 1)
        start = phases[-1].end if phases else 0
        if not is_whole or (phases and end <= start):
            return [], None
        phases.append(_Phase(match["objective"], rate, start, end, bool(match["dec"])))
        text = text[match.end() :].removeprefix("-")
    if not text:
        return phases, None
    is_step = phases and _STEP.fullmatch(text) and 0 < int(text) <= phases[-1].end
    return (phases, int(text)) if is_step else ([], None)


def _family(phases: list[_Phase]) -> str:
    return "+".join(name for name, _ in groupby(phase.objective.upper() for phase in phases))


def _continuation(phases: list[_Phase], total: int) -> tuple[str | None, int]:
    for index in reversed(range(len(phases) - 1)):
        if phases[index].decays and total > phases[index].end:
            return _family(phases[: index + 1]), total - phases[index].end
    return None, 0
