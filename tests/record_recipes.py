"""Write `docs/recipes.md` from the records that read recipes: `python tests/record_recipes.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from biphasic.model.presets import PRESETS
from biphasic.objectives.masking.masking import MaskingConfig
from biphasic.objectives.phase import PhaseConfig
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
# By key; keys that stand for several things have the same unit in all of them.
UNITS = {
    "max_seqlen": "tokens",
    "rows_per_step": "rows",
    "steps": "steps",
    "warmup_steps": "steps",
    "decay_steps": "steps",
    "every": "steps",
    "read_back_every": "steps",
    "max_tokens_per_pass": "tokens",
    "num_layers": "layers",
    "hidden_size": "features",
    "intermediate_size": "features",
    "num_heads": "heads",
    "num_key_value_heads": "heads",
    "processes": "processes",
    "mean_words": "words",
    "longest_words": "words",
    "rope_theta": "",
    "peak": "",
    "learning_rate_scale": "",
    "clip_norm": "",
    "beta1": "",
    "beta2": "",
    "epsilon": "",
    "weight_decay": "",
    "mlm_probability": "share",
    "final_mlm_probability": "share",
    "shares": "share",
    "mask": "share",
    "random": "share",
    "keep": "share",
    "init_seed": "",
    "data_seed": "",
    "mask_seed": "",
}
# What a key takes that is a record of its own.
RECORDS = {
    "Architecture": "dimensions",
    "PretrainedModel": "a pretrained model",
    "LearningRateConfig": "a schedule",
    "OptimizerConfig": "settings",
    "Seeds": "settings",
    "SpanConfig": "lengths of spans",
    "ReplacementShares": "shares",
}
_INTRODUCTION = """# Recipes, key by key

Written by `.venv/bin/python tests/record_recipes.py` from the records that read recipes, never by
hand.

`biphasic pretrain FILE` reads a recipe; the `recipe` and the `phases` of a study file have the same
keys ([studies.md](studies.md)). What the objectives do is in [objectives.md](objectives.md). A key
without a default must be given, and keys that are not listed are refused. `biphasic pretrain FILE
--print-config` prints a recipe with every default filled in.

```yaml
model: nano
max_seqlen: 256
rows_per_step: 8
learning_rate: {peak: 2.0e-3, warmup_steps: 40, decay_steps: 80}
phases:
  - {objective: clm, steps: 400}
  - {objective: mlm, steps: 400, mlm_probability: 0.4}
seeds: {init_seed: 1}
```
"""


def page() -> str:
    """Return the page."""
    schema = Recipe.model_json_schema()
    found: Mapping[str, Any] = schema["$defs"]
    phase, masking = PhaseConfig.model_json_schema(), MaskingConfig.model_json_schema()
    sections = {
        "Recipe": _table(schema),
        "`model`": _presets(),
        "`model`, as dimensions": _table(found["Architecture"]),
        "`model`, as a pretrained model": _table(found["PretrainedModel"]),
        "`learning_rate`": _table(found["LearningRateConfig"]),
        "`phases`: what every phase can set": _table(
            {**phase, "properties": {"objective": _objective(schema), **phase["properties"]}}
        ),
        "`phases`: `mlm` and `mntp`": _table(masking, without=("objective",)),
        "`selection`, as lengths of spans": _table(found["SpanConfig"]),
        "`replacement`, as shares": _table(found["ReplacementShares"]),
        "`phases`: `alternate`": _table(
            found["AlternatePhase"], without=("objective", *phase["properties"])
        ),
        "`phases`: `mix`": _table(found["MixPhase"], without=("objective", *phase["properties"])),
        "`optimizer`": _table(found["OptimizerConfig"]),
        "`seeds`": _table(found["Seeds"]),
        "Beside the recipe: `--compute KEY=VALUE`": _table(ComputeConfig.model_json_schema()),
    }
    return _INTRODUCTION + "".join(f"\n## {title}\n\n{table}" for title, table in sections.items())


def _objective(schema: Mapping[str, Any]) -> dict[str, Any]:
    names = schema["properties"]["phases"]["items"]["discriminator"]["mapping"]
    return {"enum": [*names], "description": "What the phase trains for."}


def _presets() -> str:
    names = [*next(iter(PRESETS.values())).model_dump()]
    rows = [
        [f"`{name}`", *map(str, preset.model_dump().values())] for name, preset in PRESETS.items()
    ]
    return "".join(_lines(["Preset", *(f"`{name}`" for name in names)], rows))


def _table(record: Mapping[str, Any], *, without: Any = ()) -> str:
    fields = {k: v for k, v in record["properties"].items() if k not in without}
    required = record.get("required", ())
    rows = [
        [f"`{key}`", type_of(field), unit_of(key, field), default_of(key, field, required),
         " ".join(field.get("description", "").split())]
        for key, field in fields.items()
    ]  # fmt: skip
    return "".join(_lines(["Key", "Type", "Unit", "Default", "Meaning"], rows))


def _lines(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n"
    yield f"|{'---|' * len(head)}\n"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n"


def type_of(field: Mapping[str, Any]) -> str:
    """Say what a key takes, limits included."""
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "discriminator" in field:  # objectives, or phases
        return ", ".join(f"`{name}`" for name in field["discriminator"]["mapping"])
    if "$ref" in field:
        return RECORDS[field["$ref"].rpartition("/")[2]]
    if options := field.get("anyOf") or field.get("oneOf"):
        told = [type_of(option) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(told))
    if field.get("type") == "array":
        return f"list of {type_of(field['items'])}"
    names = {"integer": "whole number", "number": "number", "boolean": "true or false"}
    name = "path" if field.get("format") == "path" else names.get(field.get("type", ""), "text")
    limits = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below",
              "maximum": "to"}  # fmt: skip
    told = [f"{word} {field[limit]:,}" for limit, word in limits.items() if limit in field]
    return " ".join([name, *told])


def unit_of(key: str, field: Mapping[str, Any]) -> str:
    """Return the unit of a number; a number whose unit is not listed here is an error."""
    return UNITS[key] if "number" in type_of(field) else ""


def default_of(key: str, field: Mapping[str, Any], required: Any) -> str:
    """Say what holds where a key is not given."""
    if key in required or key == "objective":
        return "required"
    value = field.get("default")
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "see below"
    return f"`{json.dumps(value)}`".replace('"', "").replace("`[]`", "empty")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
