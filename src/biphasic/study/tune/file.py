"""The file with tuned rates, which a study includes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from biphasic.config import load_settings
from biphasic.files import write_text
from biphasic.study.spec.load import INCLUDE, load_study
from biphasic.study.spec.study import StudyConfig
from biphasic.study.spec.tuned_rates import ObjectiveRate, TunedRate
from biphasic.training.recipe import PretrainedModel
from biphasic.yaml_text import dump_settings

KEY = "tuned_rates"
ENDING = ".rates.yaml"


def rates_file(file: Path) -> Path:
    """Return the place of the rates of a study file."""
    return file.with_name(file.stem + ENDING)


def write_rates(
    target: Path, file: Path, config: StudyConfig, rates: Sequence[TunedRate], *, curve: Path
) -> str:
    """Write the rates of a study; return what to do so that its file uses them, if anything."""
    losses = Path(os.path.relpath(curve.resolve(), target.resolve().parent)).as_posix()
    settings = {
        KEY: [_as_written(rate, file.resolve().parent) for rate in rates],
        "tuned_with": config.of_tuning(),
    }
    head = f"# Chosen by `biphasic study tune`; the losses at all rates: {losses}\n"
    write_text(target, head + dump_settings(settings))
    if load_study(file).tuned_rates == tuple(rates):
        return ""
    place = Path(os.path.relpath(target.resolve(), file.resolve().parent)).as_posix()
    own = f"delete its own {KEY}, which take precedence, and " if KEY in load_settings(file) else ""
    return f"to use them, {own}add to {file}: {INCLUDE}: {place}"


def _as_written(rate: TunedRate, folder: Path) -> dict[str, Any]:
    """Return the settings of a rate; paths in included files are relative to the study's folder."""
    settings = rate.model_dump(mode="json", exclude_defaults=True)
    if not isinstance(rate, ObjectiveRate):
        return settings
    phase = {"objective": rate.phase.objective, **settings["phase"]}
    if (share := getattr(rate.phase, "mlm_probability", None)) is not None:
        phase["mlm_probability"] = share  # even if it is the default
    model = rate.model
    if isinstance(model, PretrainedModel) and Path(model.pretrained).is_absolute():
        relative = {"pretrained": os.path.relpath(model.pretrained, folder)}
        if model.model_copy(update=relative).anchored(folder) == model:
            settings["model"] |= relative
    return {**settings, "phase": phase}
