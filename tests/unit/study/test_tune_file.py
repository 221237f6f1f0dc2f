"""The file with tuned rates: what it holds, and how a study includes it."""

from __future__ import annotations

from pathlib import Path

import pytest

import biphasic
from biphasic.config import load_settings
from biphasic.errors import ConfigError, DataError
from biphasic.study.settings.load import load_study
from biphasic.study.settings.study import StudyConfig
from biphasic.study.settings.tuned_rates import ArmRate, ObjectiveRate, TunedRate
from biphasic.study.tune.search import rates_file, write_rates

ROOT = Path(__file__).parents[3]
TEXT = """\
name: mine
title: "Mine: CLM, MLM"   # a comment
recipe:
  model: nano
  max_seqlen: 64
  learning_rate: {peak: 2.0e-3, warmup_steps: 2}
arms:
  - {name: clm, phases: [{objective: clm, steps: 8}]}
  - {name: mlm, phases: [{objective: mlm, steps: 8}]}
"""
INCLUDES = f"include: mine.rates.yaml\n{TEXT}"


def rates(*peaks: float) -> list[ObjectiveRate]:
    phases = [{"objective": "clm"}, {"objective": "mlm"}]
    return [
        ObjectiveRate.model_validate({"model": "nano", "phase": phase, "peak": peak})
        for phase, peak in zip(phases, peaks, strict=True)
    ]


def write(file: Path, *chosen: TunedRate, out: Path | None = None) -> str:
    """Write the rates of the study in a file, whose include may be missing yet."""
    config = load_study(file)
    curve = file.parent / "runs/mine-tune/curve.csv"
    return write_rates(out or rates_file(file), file, config, chosen, curve=curve)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return path


def loaded(file: Path) -> StudyConfig:
    """Return the study with its rates included."""
    file.write_text(INCLUDES)
    return load_study(file)


def test_the_file_says_how_to_use_its_rates_until_the_study_includes_it(file):
    advice = write(file, *rates(4e-3, 1e-3))
    assert advice.endswith(f"add to {file}: include: mine.rates.yaml")
    assert file.read_text() == TEXT
    written = rates_file(file).read_text()
    assert "the losses at all rates: runs/mine-tune/curve.csv\n" in written
    after = loaded(file)
    assert [after.recipe_of(arm).learning_rate.peak for arm in after.arms] == [4e-3, 1e-3]
    assert write(file, *rates(2e-3, 1e-3)) == ""
    assert [rate.peak for rate in load_study(file).tuned_rates] == [2e-3, 1e-3]


def test_rates_of_the_study_itself_take_precedence_which_is_said(file):
    own = "tuned_rates: [{arms: [clm], peak: 9.0e-3}]\n"
    file.write_text(INCLUDES.removeprefix("include: mine.rates.yaml\n") + own)
    advice = write(file, *rates(4e-3, 1e-3))
    assert "delete its own tuned_rates" in advice
    assert "include: mine.rates.yaml" in advice


def test_another_file_is_named_as_seen_from_the_study(file, tmp_path):
    (tmp_path / "rates").mkdir()
    advice = write(file, *rates(4e-3, 1e-3), out=tmp_path / "rates/a.yaml")
    assert advice.endswith("include: rates/a.yaml")
    file.write_text(f"include: rates/a.yaml\n{TEXT}")
    assert load_study(file).tuned_rates == tuple(rates(4e-3, 1e-3))


def test_optimizers_and_names_of_arms_read_back(file):
    muon = {"model": "nano", "phase": {"objective": "clm"}, "optimizer": "muon", "peak": 0.01}
    chosen = (ObjectiveRate.model_validate(muon), ArmRate(arms=("mlm",), peak=4e-3, trials=5))
    write(file, *chosen)
    assert loaded(file).tuned_rates == chosen


def test_a_model_folder_is_written_as_seen_from_the_study(tmp_path):
    (tmp_path / "model").mkdir()
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT.replace("model: nano", "model: {pretrained: model}"))
    rate = ObjectiveRate.model_validate(
        {"model": load_study(file).recipe.model, "phase": {"objective": "clm"}, "peak": 1e-4}
    )
    write(file, rate)
    assert "pretrained: model\n" in rates_file(file).read_text()
    file.write_text("include: mine.rates.yaml\n" + file.read_text())
    assert load_study(file).tuned_rates == (rate,)


@pytest.mark.parametrize("name", ["08", "no", "0x_", "1_000", "models/🐦"])
def test_a_name_of_any_characters_reads_back(name, file):
    rate = ObjectiveRate.model_validate(
        {"model": {"pretrained": name}, "phase": {"objective": "clm"}, "peak": 1e-4}
    )
    write(file, rate)
    assert load_settings(rates_file(file))["tuned_rates"][0]["model"] == {"pretrained": name}


@pytest.mark.parametrize("peak", [1e-3, 1.5e-4, 0.1, 3.0, 2e5, 1e300, 0.0012345678901234567])
def test_every_number_and_objective_reads_back(peak, file):
    mix = {
        "objective": "mix",
        "objectives": [
            {"objective": "clm"},
            {"objective": "mlm", "selection": "word", "replacement": "bert"},
        ],
        "shares": [1 / 3, 2 / 3],
    }
    span = {"objective": "mlm", "mlm_probability": 0.15, "selection": "span"}
    turns = {"objective": "alternate", "every": 20, "objectives": [{"objective": "clm"}, mix]}
    own = {
        "num_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_heads": 2,
        "num_key_value_heads": 1,
    }
    chosen = [
        ObjectiveRate.model_validate({"model": model, "phase": phase, "peak": peak})
        for model, phase in (("610m", mix), (own, turns), ("nano", span))
    ]
    write(file, *chosen)
    assert loaded(file).tuned_rates == tuple(chosen)


def test_plans_say_that_rates_were_tuned_with_another_batch_or_corpus(file):
    write(file, *rates(4e-3, 1e-3))
    assert loaded(file).rate_notes() == []
    file.write_text(INCLUDES.replace("max_seqlen: 64", "max_seqlen: 32\n  rows_per_step: 64"))
    [note] = load_study(file).rate_notes()
    assert "max_seqlen 64, now 32, rows_per_step 8, now 64" in note
    file.write_text(f"{INCLUDES}corpus: {{libraries: [rich], max_tokens: 999}}\n")
    [note] = load_study(file).rate_notes()
    assert "libraries None, now ['rich'], max_tokens None, now 999" in note


def test_no_trial_runs_if_the_rates_would_replace_something_else(file, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("sources: [text.txt]\n")
    for out in (file, other):
        before = out.read_text()
        with pytest.raises(ConfigError, match=f"{out.name}: holds more than rates; name another"):
            biphasic.tune(file, root=tmp_path / "runs", out=out)
        assert out.read_text() == before
    assert not (tmp_path / "runs").exists()


def test_no_trial_runs_if_the_rates_cannot_be_written(file, tmp_path):
    with pytest.raises(DataError, match=r"mine\.yaml: is a file, not a folder"):
        biphasic.tune(file, root=tmp_path / "runs", out=file / "rates.yaml")
    assert not (tmp_path / "runs").exists()
