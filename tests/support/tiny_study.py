"""Small settings of studies, and the phases that their arms are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from biphasic.config import parse_config
from biphasic.study.plan.plan import Plan, plan_study
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from biphasic.training.lineage import DataFingerprint

GROUND = DataFingerprint(corpus_hash="c" * 64, tokenizer_sha256="t" * 64, vocab_size=320)


def clm(steps: int, **options: Any) -> dict[str, Any]:
    return {"objective": "clm", "steps": steps, **options}


def mlm(steps: int, **options: Any) -> dict[str, Any]:
    return {"objective": "mlm", "steps": steps, **options}


def plan_of(config: StudyConfig, *data: Any, root: Path = Path("nowhere"), **options: Any) -> Plan:
    """Plan a study on these data: a fingerprint, and tasks if it has any."""
    return plan_study(Study(config, root), *(data or (GROUND,)), **options)


def tiny_study(*arms: Any, recipe: Mapping[str, Any] | None = None, **changes: Any) -> StudyConfig:
    """Return the settings of a study with these arms, and changes of the recipe or others."""
    tiny = {"model": "pico", "max_seqlen": 64, "learning_rate": {"peak": 1e-3}}
    raw = {"name": "s", "title": "S", "recipe": {**tiny, **(recipe or {})}, "arms": list(arms)}
    return parse_config(StudyConfig, {**raw, **changes}, where="file.yaml")
