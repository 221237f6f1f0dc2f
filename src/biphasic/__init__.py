"""Pretrain, evaluate and compare text encoders under control.

Public names are loaded on first use, which keeps `import biphasic` fast.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from biphasic.version import __version__ as __version__

# The hub's library would first ask for a list of programs, and wait for that answer, too.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from biphasic.api import corpus, job, pairs, plugin, site, task, tokenizer
    from biphasic.api.adapt import adapt
    from biphasic.api.encoder import load
    from biphasic.api.evaluation import evaluate, evaluate_all, finetune
    from biphasic.api.plans import diff, jobs, plan, register, schema
    from biphasic.api.scores import analyze, claims, compare, figures, paper
    from biphasic.api.studies import (
        cancel,
        clean,
        report_study,
        retry,
        run_study,
        status,
        tune,
        verify,
    )
    from biphasic.api.training import estimate, merge_models, pretrain
    from biphasic.api.use import encode, export_model, predict, push, run_mteb

_CONTENTS = {
    "adapt": "adapt",
    "encoder": "load",
    "evaluation": "evaluate evaluate_all finetune",
    "plans": "diff jobs plan register schema",
    "scores": "analyze claims compare figures paper",
    "studies": "cancel clean report_study retry run_study status tune verify",
    "training": "estimate merge_models pretrain",
    "use": "encode export_model predict push run_mteb",
}
_MODULES = {"corpus", "job", "pairs", "plugin", "site", "task", "tokenizer"}
_HOMES = {name: module for module, names in _CONTENTS.items() for name in names.split()}

__all__ = [
    "__version__",
    "adapt",
    "analyze",
    "cancel",
    "claims",
    "clean",
    "compare",
    "corpus",
    "diff",
    "encode",
    "estimate",
    "evaluate",
    "evaluate_all",
    "export_model",
    "figures",
    "finetune",
    "job",
    "jobs",
    "load",
    "merge_models",
    "pairs",
    "paper",
    "plan",
    "plugin",
    "predict",
    "pretrain",
    "push",
    "register",
    "report_study",
    "retry",
    "run_mteb",
    "run_study",
    "schema",
    "site",
    "status",
    "task",
    "tokenizer",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"biphasic.api.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'biphasic' has no attribute '{name}'")
    return getattr(importlib.import_module(f"biphasic.api.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
