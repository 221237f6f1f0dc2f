"""Recipe files, and study files with includes, overrides and all defaults.

A file with `include: base.yaml` (or a list) is merged into the files that it names: mappings are
merged, lists and values replaced. Paths in all of them are relative to the first file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from biphasic.config import (
    apply_override,
    dump_settings,
    load_settings,
    parse_config,
    refuse_other_kind,
)
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import ConfigError, reading
from biphasic.files import expanded
from biphasic.plugins import anchored_fields, hashed_names, load_with_plugins
from biphasic.records import Convention
from biphasic.study.settings.arms import SEED, merge_settings
from biphasic.study.settings.study import (
    PAPER,
    FinetuningConfig,
    StudyConfig,
    TaskConfig,
    anchor_phases,
    finetuning_of,
)
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe

TITLE = "Study file of biphasic"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def study_schema() -> dict[str, Any]:
    """Return the schema of study files, including axes and budgets of arms."""
    schema = copy.deepcopy(StudyConfig.model_json_schema())
    schema = {"$schema": _DIALECT, **schema, "title": TITLE}
    definitions = schema["$defs"]
    more = load_settings(Path(__file__).with_name("schema.yaml"))
    for name, phase in definitions.items():
        if not name.endswith("Phase"):
            continue
        steps = phase["properties"]["steps"]
        text = {"description": steps["description"]} if "description" in steps else {}
        phase["properties"]["share"] = more["share"]
        phase["properties"]["steps"] = {"type": "integer", "minimum": 0, **text}
        _make_optional(phase, "steps")
    definitions["RecipeConfig"]["properties"][SEED] = more[SEED]
    arm = definitions["ArmConfig"]
    arm["properties"] |= {"steps": more["steps"], "axes": more["axes"]}
    _make_optional(arm, "name")
    arm["properties"]["recipe"] = _partial(definitions, "RecipeConfig", arm["properties"]["recipe"])
    task = definitions["TaskConfig"]
    task["properties"]["protocol"] = _partial(
        definitions, "FinetuneProtocol", task["properties"]["protocol"]
    )
    # A source may be a string, too.
    definitions["SourceConfig"] = {"anyOf": [{"type": "string"}, definitions.pop("SourceConfig")]}
    _make_optional(schema, "recipe")  # which finished encoders do not need
    # Included files may have any required setting.
    schema["properties"][INCLUDE] = more[INCLUDE]
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": [INCLUDE]}]
    return schema


def _make_optional(model: dict[str, Any], name: str) -> None:
    required = [other for other in model.get("required", []) if other != name]
    model.pop("required", None)
    if required:
        model["required"] = required


def _partial(definitions: dict[str, Any], name: str, field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a record without required settings, for a field with changes."""
    changed = copy.deepcopy(definitions[name])
    changed.pop("required", None)
    rate = changed["properties"].get("learning_rate")
    if rate is not None:
        # Single settings of a schedule may be changed, too.
        schedule = copy.deepcopy(definitions["LearningRateConfig"])
        schedule.pop("required", None)
        changed["properties"]["learning_rate"] = schedule
    return {**changed, "description": field["description"]}


INCLUDE = "include"


def read_recipe(
    recipe: Recipe | Mapping[str, Any] | Path | str, overrides: Iterable[str]
) -> Recipe:
    """Return a recipe from its settings, or from a file with overrides, after all checks."""
    where = "recipe"
    if isinstance(recipe, (str, Path)):
        path = expanded(recipe)
        where = str(path)
        read, folder = load_with_plugins(Recipe, path, overrides), path.resolve().parent
        recipe = anchored_fields(read, folder, phases=tuple(anchor_phases(read.phases, folder)))
    elif any(True for _ in overrides):
        raise ConfigError("overrides: only for files; change the settings of the recipe instead")
    elif not isinstance(recipe, Recipe):
        recipe = parse_config(Recipe, recipe, where=where)
    try:
        recipe.check()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return recipe


def load_study(path: Path | str, overrides: Iterable[str] = ()) -> StudyConfig:
    """Load a study file; relative paths are resolved against its folder."""
    path = Path(path)
    with reading(path, ConfigError):  # a chain of files can be too long for Python's stack
        raw = _read(path, chain=(), known={})
    refuse_other_kind(StudyConfig, raw, path)
    for override in overrides:
        apply_override(raw, override)
    folder = path.resolve().parent
    return parse_config(StudyConfig, hashed_names(raw, folder), where=str(path)).anchored(folder)


def _read(
    path: Path,
    *,
    chain: tuple[Path, ...],
    known: dict[Path, dict[str, Any]],
) -> dict[str, Any]:
    """Return a file's settings merged into those it includes; each file is read once."""
    place = path.resolve()
    if place in chain:
        cycle = " -> ".join(map(str, (*chain, place)))
        raise ConfigError(f"{path}: includes itself: {cycle}")
    if place in known:
        return known[place]
    settings = load_settings(path)
    included_names = settings.pop(INCLUDE, [])
    names = [included_names] if isinstance(included_names, str) else included_names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: include: expected a file name or a list of file names")
    merged: dict[str, Any] = {}
    for name in names:
        if not (path.parent / name).is_file():
            raise ConfigError(f"{path}: include: {path.parent / name}: no such file")
        included = _read(path.parent / name, chain=(*chain, place), known=known)
        merged = merge_settings(merged, included)
    known[place] = merge_settings(merged, settings)
    return known[place]


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
