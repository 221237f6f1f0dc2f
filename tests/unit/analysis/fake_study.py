"""Writes a small study's records as training and fine-tuning would, without either."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from biphasic.store import MANIFEST, seal_folder

TASKS = (
    ("pydocs-sc", "sc", "Which library", "accuracy", 0.62),
    ("pydocs-tc", "tc", "Parameter names and types", "entity_f1", 0.71),
    ("pydocs-qa", "qa", "What does this parameter do", "f1", 0.38),
    ("pydocs-ir", "ir", "Find the page", "ndcg_at_10", 0.24),
)
ARMS = (
    ("untrained", "Untrained", "none", (), 0.0),
    ("mlm", "MLM", "MLM", (("mlm", 1.0),), 0.045),
    ("clm", "CLM", "CLM", (("clm", 1.0),), 0.06),
    ("clm-25-mlm-75", "CLM 25 % then MLM 75 %", "CLM+MLM", (("clm", 0.25), ("mlm", 0.75)), 0.075),
    ("clm-50-mlm-50", "CLM 50 % then MLM 50 %", "CLM+MLM", (("clm", 0.5), ("mlm", 0.5)), 0.085),
)


def identity(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()


@dataclass
class FakeStudy:
    """What to write; change fields, then call `write`."""

    title: str = "First light"
    description: str = "Five encoders, the same rows, four tasks."
    convention: str = "standard"
    arms: tuple[Any, ...] = ARMS
    tasks: tuple[Any, ...] = TASKS
    learning_rates: tuple[float, ...] = (1e-4, 2e-4, 5e-4)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps: int = 400
    tokens_per_step: int = 8192
    diverged: set[tuple[str, str, float, int]] = field(default_factory=set)
    missing: set[tuple[str, str, float, int]] = field(default_factory=set)
    scores: dict[tuple[str, str, float, int], tuple[float, float]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(
        default_factory=lambda: {
            "versions": {"biphasic": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.17.0",
                         "python": "3.11.2", "numpy": "2.3.1"},
            "hashes": {"corpus": identity("corpus"), "tokenizer": identity("tokenizer"),
                       "study file": identity("study")},
            "hardware": {"cpu": "2 cores, AVX-512", "memory": "8 GiB", "device": "cpu",
                         "precision": {"compute": "bf16", "weights": "fp32"}},
            "seeds": {"init": 0, "data": 0, "mask": 0, "fine-tuning": [0, 1, 2, 3, 4]},
        }
    )  # fmt: skip

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write everything; return the study's folder and the store."""
        study, store = folder / "study", folder / "store"
        arms = [self._write_arm(arm, store) for arm in self.arms]
        runs = [run for arm in arms for run in self._write_runs(arm, store)]
        record = {
            "format": "biphasic.study/1", "name": "first-light", "title": self.title,
            "description": self.description, "convention": self.convention, "arms": arms,
            "tasks": [
                {"name": name, "kind": kind, "title": title, "metric": metric,
                 "num_train": 4000, "num_validation": 500, "num_test": 1000}
                for name, kind, title, metric, _ in self.tasks
            ],
            "learning_rates": list(self.learning_rates), "seeds": list(self.seeds), "runs": runs,
            "provenance": self.provenance,
        }  # fmt: skip
        write_json(study / "study.json", record)
        return study, store

    def _write_arm(self, arm: Any, store: Path) -> dict[str, Any]:
        name, label, family, phases, _ = arm
        segments: list[str] = []
        start = 0
        # Arms that begin alike share states, so every arm stops where any other one may branch.
        for cut in (0.25, 0.5, 1.0) if phases else ():
            plan = cut_plan(phases, cut)
            segment = identity("state", plan)
            end = round(cut * self.steps)
            self._write_segment(store, segment, segments[-1:], plan, start, end)
            segments.append(segment)
            start = end
        if not phases:
            segment = identity("state", [])
            self._write_segment(store, segment, [], [], 0, 0)
        return {
            "name": name, "label": label, "family": family, "steps": start, "state": segment,
            "segments": segments,
        }  # fmt: skip

    def _losses(self, plan: list[tuple[str, float]], step: float) -> dict[str, float]:
        seen = {"clm": 0.0, "mlm": 0.0}
        left = step
        for objective, share in plan:
            part = min(left, share * self.steps)
            seen[objective] += part
            left -= part
        skill = seen["mlm"] + 1.6 * seen["clm"]
        mlm = 4.3 + 4.71 * math.exp(-skill / 190) if seen["mlm"] else 9.01 + min(step, 150) / 60
        clm = 4.0 + 5.01 * math.exp(-(seen["clm"] + 0.2 * seen["mlm"]) / 90)
        if plan and plan[-1][0] == "mlm" and seen["clm"]:
            clm += 1.5 * (1 - math.exp(-seen["mlm"] / 60))
        return {"clm": clm, "mlm": mlm}

    def _write_segment(
        self, store: Path, segment: str, parent: list[str], plan: list[tuple[str, float]],
        start: int, end: int,
    ) -> None:  # fmt: skip
        folder = store / "states" / segment
        noise = np.random.default_rng(end)
        lines: list[dict[str, Any]] = []
        for step in range(start + 1, end + 1):
            objective = plan[-1][0]
            tokens = step * self.tokens_per_step
            loss = self._losses(plan, step)[objective] + float(noise.normal(0, 0.08))
            lines.append({
                "step": step, "phase": len(plan) - 1, "objective": objective, "loss": loss,
                "learning_rate": 2e-3, "gradient_norm": 1.0, "tokens": tokens,
                "supervised_tokens": tokens // 3, "tokens_per_second": 9000.0,
            })  # fmt: skip
            if step % (self.steps // 20) == 0:
                heldout = self._losses(plan, step)
                lines.append({"step": step, "tokens": tokens, "heldout": heldout})
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
        ledger, at = [], 0
        for index, (objective, share) in enumerate(plan):
            steps = round(share * self.steps)
            at += steps
            tokens = steps * self.tokens_per_step
            supervised = tokens if objective == "clm" else tokens // 3
            ledger.append({
                "phase": index, "objective": objective, "steps": steps, "documents": steps * 40,
                "tokens": tokens, "supervised_tokens": supervised,
                "flops": tokens * 6.0 * 1.9e6,
            })  # fmt: skip
        write_json(folder / "state.json", {
            "format": "biphasic.state/1", "identity": segment, "step": end,
            "parent": parent[0] if parent else None, "heldout": self._losses(plan, end),
            "rows_sha256": identity("rows", end), "ledger": ledger,
            "seconds": (end - start) * 0.93, "environment": {"torch": "2.13.0", "device": "cpu"},
        })  # fmt: skip
        seal_folder(folder, identity=segment)

    def _write_runs(self, arm: dict[str, Any], store: Path) -> list[dict[str, Any]]:
        gain = next(entry[4] for entry in self.arms if entry[0] == arm["name"])
        runs = []
        for name, kind, _, metric, base in self.tasks:
            for rate in self.learning_rates:
                for seed in self.seeds:
                    key = (arm["name"], name, rate, seed)
                    run = identity("run", arm["state"], name, rate, seed)[:16]
                    runs.append({"id": run, "arm": key[0], "task": name,
                                 "learning_rate": rate, "seed": seed})  # fmt: skip
                    if key in self.missing:
                        continue
                    self._write_result(store, run, arm["state"], key, kind, metric, base + gain)
        return runs

    def _write_result(
        self, store: Path, run: str, state: str, key: tuple[str, str, float, int], kind: str,
        metric: str, level: float,
    ) -> None:  # fmt: skip
        _, task, rate, seed = key
        noise = np.random.default_rng(int(run[:8], 16))
        penalty = 0.03 * abs(math.log10(rate / 2.2e-4)) * (1 + (kind == "qa"))
        guess = [level - penalty + float(noise.normal(0, 0.008)) for _ in range(2)]
        validation, test = self.scores.get(key, (guess[0], guess[1]))
        diverged = key in self.diverged
        extra = {"exact_match": test * 0.8} if kind == "qa" else {}
        write_json(store / "finetunes" / run / "result.json", {
            "format": "biphasic.finetune/1", "id": run, "state": state, "task": task, "kind": kind,
            "metric": metric, "learning_rate": rate, "seed": seed,
            "status": "diverged" if diverged else "finished", "steps": 200,
            "validation": None if diverged else {metric: validation},
            "test": None if diverged else {metric: test, **extra}, "seconds": 7.25,
        })  # fmt: skip
        seal_folder(store / "finetunes" / run, id=run)


def cut_plan(phases: Any, cut: float) -> list[tuple[str, float]]:
    """Keep what a plan does up to a share of its steps."""
    plan, left = [], cut
    for objective, share in phases:
        if left > 0:
            plan.append((objective, min(share, left)))
            left -= share
    return plan


def seal_again(folder: Path) -> None:
    """Seal a folder whose files a test has changed, so that its hashes agree."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    seal_folder(folder, **{key: value for key, value in manifest.items() if key != "files"})


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_study_with_factors(folder: Path, **fields: Any) -> Path:
    """Write a study of one size whose records name the factors of each arm."""
    study, _ = FakeStudy(**fields).write(folder)
    path = study / "study.json"
    record = json.loads(path.read_text("utf-8"))
    parts = {"mlm": [("mlm", 400)], "clm": [("clm", 400)], "untrained": [],
             "clm-25-mlm-75": [("clm", 100), ("mlm", 300)],
             "clm-50-mlm-50": [("clm", 200), ("mlm", 200)]}  # fmt: skip
    for arm in record["arms"]:
        arm |= {"model": "nano", "parameters": 1_900_000, "phases": [
            {"objective": name, "steps": steps} | ({"mask_rate": 0.4} if name == "mlm" else {})
            for name, steps in parts[arm["name"]]
        ]}  # fmt: skip
    write_json(path, record)
    return study
