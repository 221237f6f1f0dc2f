"""Writing tuned rates into a study file without changing its other lines.

YAML libraries lose comments and layout. This module edits text instead: it replaces or adds only
the block of `tuned_rates`, at the place that a parser finds, and loads the result before writing
it to check that nothing else changed.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from biphasic.errors import ConfigError
from biphasic.files import write_text
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.study.spec.load import load_study
from biphasic.study.spec.study import StudyConfig
from biphasic.study.spec.tuned_rates import ObjectiveRate, TunedRate
from biphasic.training.recipe import PretrainedModel
from biphasic.yaml_text import dump_settings

KEY = "tuned_rates"
_AFTER = "recipe"
_MARK = "# Chosen by `biphasic study tune`"


def write_tuned(
    file: Path, target: Path, config: StudyConfig, rates: Sequence[TunedRate], *, curve: Path
) -> list[str]:
    """Write a study file with tuned rates; return the changes as the lines of a diff."""
    with file.open(encoding="utf-8", newline="") as stream:
        before = stream.read()
    folder = target.resolve().parent
    named = Path(os.path.relpath(curve.resolve(), folder)).as_posix()
    try:
        after = tuned_text(before, [_as_written(rate, folder) for rate in rates], curve=named)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    if after != before or file.resolve() != target.resolve():
        if load_study(target, text=after) != config.model_copy(update={KEY: tuple(rates)}):
            raise ConfigError(
                f"{target}: not written, because it would be another study: paths in a study file "
                "are relative to its folder; choose a file in the same folder, or omit --out"
            )
        write_text(target, after)
    lines = (before.splitlines(), after.splitlines())
    return list(difflib.unified_diff(*lines, str(file), str(target), lineterm="", n=2))


def tuned_text(text: str, rates: Sequence[TunedRate], *, curve: str) -> str:
    """Return the text of a study file with tuned rates in place of those that it has."""
    places = _places(text)
    if not places:
        entries = ", ".join(map(_entry, rates))
        raise ConfigError(
            f"cannot edit a file without one setting per line; add this line: {KEY}: [{entries}]"
        )
    newline = "\r\n" if "\r\n" in text else "\n"
    first, _ = next(iter(places.values()))
    indent = text[text.rfind("\n", 0, first) + 1 : first].lstrip("\ufeff")
    lines = [f"{_MARK}; the losses at all rates: {curve}", f"{KEY}:"]
    lines += [f"  - {_entry(rate)}" for rate in rates]
    block = newline.join(indent + line for line in lines)
    if KEY in places:
        start, end = places[KEY]
        start = text.rfind("\n", 0, start) + 1
        above = text.rfind("\n", 0, max(start - 1, 0)) + 1
        if start and text[above:start].strip().startswith(_MARK):
            start = above  # our comment is replaced too
        rest = text[_line_end(text, end) :]
        return text[:start] + block + rest
    _, end = places[_AFTER if _AFTER in places else next(reversed(places))]
    end = _line_end(text, end)
    return text[:end] + newline + block + (text[end:] or newline)


def _places(text: str) -> dict[str, tuple[int, int]]:
    """Return the first and last index of each top-level setting; empty for a flow-style file."""
    # The ends of nested blocks are not used: a parser reports them only at the next setting.
    places: dict[str, tuple[int, int]] = {}
    depth, key, is_value = 0, "", False
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if depth == 0 and isinstance(event, yaml.MappingStartEvent) and event.flow_style:
            return {}
        if depth == 1 and not is_value and isinstance(event, yaml.ScalarEvent):
            key, is_value = event.value, True
            places[key] = event.start_mark.index, event.end_mark.index
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth >= 1 and event.end_mark.index > event.start_mark.index:
            places[key] = places[key][0], event.end_mark.index
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif depth == 1:
            is_value = False
    # Blocks of text end where the next setting begins, blank lines included.
    return {name: (start, len(text[:end].rstrip())) for name, (start, end) in places.items()}


def _line_end(text: str, index: int) -> int:
    """Return the end of the line at an index, without the line break."""
    end = text.find("\n", index)
    end = len(text) if end < 0 else end
    return end - (text[end - 1 : end] == "\r")


def _as_written(rate: TunedRate, folder: Path) -> TunedRate:
    """Return a rate with its model path made relative to a folder, if that loads the same."""
    if not isinstance(rate, ObjectiveRate) or not isinstance(rate.model, PretrainedModel):
        return rate
    model = rate.model
    if not Path(model.pretrained).is_absolute():
        return rate
    relative = model.model_copy(update={"pretrained": os.path.relpath(model.pretrained, folder)})
    if relative.anchored(folder) != model:
        return rate
    return rate.model_copy(update={"model": relative})


def _entry(rate: TunedRate) -> str:
    settings = rate.model_dump(mode="json", exclude_defaults=True)
    if not isinstance(rate, ObjectiveRate):
        return _flow(settings)
    return _flow({**settings, "phase": _written(rate.phase)})


def _written(objective: ObjectiveConfig) -> dict[str, Any]:
    """Return the settings of an objective in readable order: its name, the rate, the rest."""
    settings: dict[str, Any] = {"objective": objective.objective}
    rate = getattr(objective, "mlm_probability", None)
    if rate is not None:
        settings["mlm_probability"] = rate  # even if it is the default
    settings |= objective.model_dump(mode="json", exclude_defaults=True)
    if parts := getattr(objective, "objectives", ()):
        settings["objectives"] = [_written(part) for part in parts]
    return settings


def _flow(value: Any) -> str:
    """Format a value on one line, as YAML in flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float):
        return _number(value)
    is_word = isinstance(value, str) and value.replace("-", "").replace("_", "").isalnum()
    if is_word and dump_settings([value]) == f"- {value}\n":
        return value
    # YAML has no surrogate escapes.
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Format a number for YAML, which requires a dot and a sign with exponents."""
    if 1e-2 <= abs(value) < 1e4:
        return repr(value)
    digits = next(count for count in range(1, 18) if float(f"{value:.{count}e}") == value)
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent):+d}"
