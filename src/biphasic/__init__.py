"""Pretrain, evaluate and compare text encoders under control.

Public names are loaded on first use, which keeps `import biphasic` fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from biphasic.version import __version__ as __version__

if TYPE_CHECKING:
    from biphasic.adaptation import adapt
    from biphasic.api import corpus, job, pairs, plugin, site, tokenizer
    from biphasic.api.encoder import load
    from biphasic.api.plans import diff, jobs, jobset, plan, register, schema
    from biphasic.api.scores import analyze, claims, compare, figures, paper
    from biphasic.api.studies import cancel, clean, report_study, retry, status, tune, verify
    from biphasic.api.use import encode, predict, push, run_mteb
    from biphasic.evaluation.evaluate import evaluate, evaluate_all
    from biphasic.export.finetuned.write import finetune
    from biphasic.export.merge import merge_models
    from biphasic.export.write import export_model
    from biphasic.study.api import pretrain, run_study
    from biphasic.study.sizing.estimate import estimate


_CONTENTS = {
    "biphasic.adaptation": ["adapt"],
    "biphasic.api.plans": ["diff", "jobs", "jobset", "plan", "register", "schema"],
    "biphasic.api.scores": ["analyze", "claims", "compare", "figures", "paper"],
    "biphasic.api.studies": [
        "cancel",
        "clean",
        "report_study",
        "retry",
        "status",
        "tune",
        "verify",
    ],
    "biphasic.api.encoder": ["load"],
    "biphasic.api.use": ["encode", "predict", "push", "run_mteb"],
    "biphasic.evaluation.evaluate": ["evaluate", "evaluate_all"],
    "biphasic.export.finetuned.write": ["finetune"],
    "biphasic.export.merge": ["merge_models"],
    "biphasic.export.write": ["export_model"],
    "biphasic.study.api": ["pretrain", "run_study"],
    "biphasic.study.sizing.estimate": ["estimate"],
}
_MODULES = {"corpus", "job", "pairs", "plugin", "site", "tokenizer"}
_HOMES = {name: module for module, names in _CONTENTS.items() for name in names}

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
    "jobset",
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
    "tokenizer",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"biphasic.api.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'biphasic' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
