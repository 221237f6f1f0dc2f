"""Mistakes in settings, each with its line: `refused.yaml` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from biphasic import estimate, evaluate, pretrain
from biphasic.errors import ConfigError
from biphasic.execution.cluster.site import load_site
from tiny_study import clm, mlm, tiny_study

CASES = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text("utf-8"))
SEEDS = {"recipe.seed": [0, 3]}
RUNS = [{"phases": [phase(8)], "axes": SEEDS} for phase in (clm, mlm)]
ARMS = [{"name": "mlm", "phases": [mlm(10)]}]
TASK = {"name": "pydocs-sc"}


RECIPE = {"model": "pico", "learning_rate": {"peak": 1e-3}, "phases": [clm(10)]}
SITE = {"scheduler": "slurm", "jobs_per_node": 4}


def studies(kind: str, given: Any) -> list[dict[str, Any]]:
    """Return the settings of studies with what is given, each of which is refused."""
    match kind:
        case "settings":
            return [given]
        case "recipe":
            return [{"recipe": given}, {"arms": [{**ARMS[0], "recipe": given}]}]
        case "comparison":
            return [{"arms": RUNS, "compare": [given]}]
        case "question":
            asked = {"name": "Q1", "question": "Is CLM better?", **given}
            return [{"arms": RUNS, "tasks": [TASK], "questions": [asked]}]
    return [{kind: given}]


def calls(kind: str, given: Any, folder: Path) -> Iterator[partial[object]]:
    """Yield calls with what is given, each of which is refused."""
    quiet = {"root": folder, "quiet": True}
    if kind in {"estimate", "pretrain"}:
        recipe = {**RECIPE, **given.get("recipe", {})}
        call = estimate if kind == "estimate" else partial(pretrain, **quiet)
        yield partial(call, **{**given, "recipe": recipe})
    elif kind == "evaluate":
        yield partial(evaluate, "not/fetched", **{"task": "pydocs-sc", **quiet, **given})
    elif kind == "site":
        (folder / "file.yaml").write_text(yaml.safe_dump({**SITE, **given}))
        yield partial(load_site, folder / "file.yaml")
    else:
        for settings in studies(kind, given):
            recipe = {"max_seqlen": 128, **settings.get("recipe", {})}
            yield partial(tiny_study, **{"arms": ARMS, **settings, "recipe": recipe})


@pytest.mark.parametrize(
    ("kind", "says", "given"),
    [(kind, says, given) for kind, rows in CASES.items() for says, given in rows.items()],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_a_mistake_is_named_with_a_hint(kind, says, given, tmp_path):
    for call in calls(kind, given, tmp_path):
        with pytest.raises(ConfigError) as refused:
            call()
        message = str(refused.value)
        assert says in message
        assert message.startswith((says, "file.yaml: ", f"{tmp_path / 'file.yaml'}: "))
        assert "\n" not in message
        assert not [*tmp_path.glob("store/data/*")]  # before the corpus is built
