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


def block(seed: int) -> Path:
    """Write the study with one pretraining seed and without questions; its results are the same."""
    study = read(STUDY)
    study["name"] = f"{study['name']}-{seed}"
    del study["questions"]
    for arm in study["arms"]:
        arm["axes"]["recipe.seed"] = [seed]
    for rate in study["tuned_rates"]:
        rate["arms"] = [name for name in rate["arms"] if name.endswith(f"-seed{seed}")]
    path = HERE / f"{study['name']}.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path


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
    """Tune, register, and run the pilot, each seed, and the whole study."""
    if "tuned_rates" not in read(PILOT):
        rates = ("--rates", "2.5e-3,5e-3,1e-2")
        biphasic("tune", str(PILOT), "--by", "arm", *rates, "--share", "0.1", "--workers", "1")
    with_rates()
    biphasic(
        "register", str(STUDY), "--markdown"
    )  # an amendment if a rate is not the registered one
    biphasic("run", str(PILOT), "--workers", "1", "--quiet")
    pack("again-pilot")
    for seed in runs_of(read(STUDY)):
        path = block(seed)
        biphasic("run", str(path), "--workers", "1", "--quiet")
        pack(path.stem)
    biphasic("run", str(STUDY), "--workers", "1")


if __name__ == "__main__":
    main()
