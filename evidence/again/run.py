"""Runs the pilot and the study of this folder, one pretraining seed after another.

Usage, from the repository: .venv/bin/python evidence/again/run.py; run it again to resume.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from biphasic.analysis.records import load_records

HERE = Path(__file__).parent
ROOT = Path("runs")
BIPHASIC = Path(sys.executable).with_name("biphasic")
PILOT, STUDY = HERE / "pilot.yaml", HERE / "again.yaml"
# Parts of a pretraining seed: the share of CLM, and the name of the arm. The tuned rates
# differ, so no part has steps of another.
PARTS = {
    "mlm": (0, "nano-mlm40-2400"),
    "then": (0.5, "nano-clm-1200-mlm40-2400"),
    "clm": (1, "nano-clm-2400"),
}


def biphasic(*arguments: str) -> None:
    """Run a command of biphasic, one job at a time; a failed one ends this script."""
    subprocess.run([BIPHASIC, "study", *arguments], check=True)


def read(path: Path) -> dict[str, Any]:
    """Read a study file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def runs_of(study: dict[str, Any]) -> list[int]:
    """Return the pretraining seeds of a study."""
    return study["arms"][0]["axes"]["recipe.seed"]


def with_rates() -> None:
    """Give each arm of the study the peak rate that was tuned with the pilot's first seed."""
    pilot, study = read(PILOT), read(STUDY)
    if "tuned_rates" in study:
        return
    lines = [
        "# Chosen with pilot.yaml, by three trials of each arm or more: rates.csv.",
        "tuned_rates:",
    ]
    for one in pilot["tuned_rates"]:
        recipe = one["arms"][0].removesuffix(f"-seed{runs_of(pilot)[0]}")
        names = ", ".join(f"{recipe}-seed{seed}" for seed in runs_of(study))
        lines.append(f"  - {{arms: [{names}], peak: {one['peak']}, trials: {one['trials']}}}")
    with STUDY.open("a", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))


def block(path: Path, seed: int, part: str) -> Path:
    """Write one pretraining seed of a study without questions; its results are the same.

    The part `mlm` has the untrained arm, too.
    """
    study, (share, name) = read(path), PARTS[part]
    study["name"] = f"{study['name']}-{seed}-{part}"
    study.pop("questions", None)
    untrained, shares = study["arms"]
    untrained["axes"]["recipe.seed"] = shares["axes"]["recipe.seed"] = [seed]
    shares["axes"]["phases.0.share"] = [share]
    study["arms"] = [untrained, shares] if part == "mlm" else [shares]
    for rate in study["tuned_rates"]:
        rate["arms"] = [arm for arm in rate["arms"] if arm == f"{name}-seed{seed}"]
    study["tuned_rates"] = [rate for rate in study["tuned_rates"] if rate["arms"]]
    block = HERE / f"{study['name']}.yaml"
    block.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return block


def pack(name: str) -> None:
    """Write a study's records: no weights, and scores of examples only of chosen runs."""
    records, archive = load_records(ROOT / name), HERE / "records" / f"{name}.tar.gz"
    groups = (*records.selected.values(), *records.baselines.values())
    counted = {result.id for results in groups for result in results}
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / name, copy / name)
        known = (copy / name / "study.json").read_text(encoding="utf-8")
        for kind in ("finetunes", "states"):
            (copy / "store" / kind).mkdir(parents=True)
            for one in (ROOT / "store" / kind).iterdir():
                if one.name in known and (one / "manifest.json").is_file():
                    weights = shutil.ignore_patterns("*.safetensors")
                    shutil.copytree(one, copy / "store" / kind / one.name, ignore=weights)
        for one in (copy / "store" / "finetunes").iterdir():
            if one.name not in counted:
                (one / "scores.parquet").unlink()
                manifest = json.loads((one / "manifest.json").read_text(encoding="utf-8"))
                del manifest["files"]["scores.parquet"]
                (one / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        subprocess.run([sys.executable, "evidence/records.py", copy / name, archive], check=True)


def main() -> None:
    """Tune, register, and run the pilot and the study, each in parts and then whole."""
    if "tuned_rates" not in read(PILOT):
        rates = ("--rates", "2.5e-3,5e-3,1e-2")
        biphasic("tune", str(PILOT), "--by", "arm", *rates, "--share", "0.1", "--workers", "1")
    with_rates()
    biphasic(
        "register", str(STUDY), "--markdown"
    )  # an amendment if a rate is not the registered one
    for path in (PILOT, STUDY):
        for seed in runs_of(read(path)):
            for part in PARTS:
                one = block(path, seed, part)
                biphasic("run", str(one), "--workers", "1", "--quiet")
                if not (HERE / "records" / f"{one.stem}.tar.gz").exists():
                    pack(one.stem)
        biphasic("run", str(path), "--workers", "1")


if __name__ == "__main__":
    main()
