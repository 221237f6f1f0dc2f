"""Pretrain, evaluate and compare text encoders under control.

Public names are loaded on first use, which keeps `import biphasic` fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from biphasic.version import __version__ as __version__

if TYPE_CHECKING:
    from biphasic.adaptation import adapt
    from biphasic.api.use import encode, load, predict, push
    from biphasic.evaluation.evaluate import evaluate, evaluate_all
    from biphasic.export.finetuned.write import finetune
    from biphasic.export.write import export_model
    from biphasic.study.api import pretrain, report_study, run_study
    from biphasic.study.sizing.estimate import estimate


_HOMES = {
    "adapt": "biphasic.adaptation",
    "encode": "biphasic.api.use",
    "estimate": "biphasic.study.sizing.estimate",
    "evaluate": "biphasic.evaluation.evaluate",
    "evaluate_all": "biphasic.evaluation.evaluate",
    "export_model": "biphasic.export.write",
    "finetune": "biphasic.export.finetuned.write",
    "load": "biphasic.api.use",
    "predict": "biphasic.api.use",
    "pretrain": "biphasic.study.api",
    "push": "biphasic.api.use",
    "report_study": "biphasic.study.api",
    "run_study": "biphasic.study.api",
}

__all__ = [
    "__version__",
    "adapt",
    "encode",
    "estimate",
    "evaluate",
    "evaluate_all",
    "export_model",
    "finetune",
    "load",
    "predict",
    "pretrain",
    "push",
    "report_study",
    "run_study",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'biphasic' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
