"""Tuned rates in a study file: what is written, and that all else stays to the byte."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from biphasic.config import load_settings
from biphasic.errors import ConfigError
from biphasic.study.spec.load import load_study
from biphasic.study.spec.tuned_rates import ArmRate, ObjectiveRate
from biphasic.study.tune.file import tuned_text, write_tuned

ROOT = Path(__file__).parents[3]

TEXT = """\
# My study.   (odd   spacing kept)
name: mine
title: "Mine: CLM, MLM"   # a comment
recipe:
  model: nano   # small
  max_seqlen: 64
  learning_rate: {peak: 2.0e-3,
                  warmup_steps: 2}   # ends here

# About the arms.
arms:
  - {name: clm, phases: [{objective: clm, steps: 8}]}
  - name: mlm
    phases:
      - {objective: mlm, steps: 8}
# the end
"""
BLOCK = """\
# Chosen by `biphasic study tune`; the losses at all rates: runs/mine-tune/curve.csv
tuned_rates:
  - {model: nano, phase: {objective: clm}, peak: 4.0e-3}
  - {model: nano, phase: {objective: mlm, mlm_probability: 0.4}, peak: 1.0e-3}
"""


def rates(*peaks: float) -> list[ObjectiveRate]:
    phases = [{"objective": "clm"}, {"objective": "mlm"}]
    return [
        ObjectiveRate.model_validate({"model": "nano", "phase": phase, "peak": peak})
        for phase, peak in zip(phases, peaks, strict=True)
    ]


def tune(file: Path, *peaks: float, out: Path | None = None) -> list[str]:
    return write_tuned(
        file,
        out or file,
        load_study(file),
        rates(*peaks),
        curve=file.parent / "runs/mine-tune/curve.csv",
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_block_is_added_below_the_recipe_and_nothing_else_changes(file):
    before = "                  warmup_steps: 2}   # ends here\n"
    lines = tune(file, 4e-3, 1e-3)
    assert file.read_text() == TEXT.replace(before, before + BLOCK)
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert added == BLOCK.splitlines()
    assert not any(line.startswith("-") for line in lines[2:])
    assert list(file.parent.iterdir()) == [file]


def test_the_file_reads_as_the_same_study_at_these_rates(file):
    before = load_study(file)
    tune(file, 4e-3, 1e-3)
    after = load_study(file)
    assert [after.recipe_of(arm).learning_rate.peak for arm in after.arms] == [4e-3, 1e-3]
    assert after.model_copy(update={"tuned_rates": ()}) == before


def test_the_optimizer_of_a_rate_is_written(file):
    rate = {"model": "nano", "phase": {"objective": "clm"}, "optimizer": "muon", "peak": 0.01}
    tuned = [ObjectiveRate.model_validate(rate)]
    write_tuned(file, file, load_study(file), tuned, curve=file.parent / "curve.csv")
    entry = "- {model: nano, phase: {objective: clm}, optimizer: muon, peak: 0.01}\n"
    assert entry in file.read_text()
    assert load_study(file).tuned_rates == tuple(tuned)


def test_rates_of_arms_are_written_by_name(file):
    rates = [ArmRate(arms=("clm",), peak=0.01), ArmRate(arms=("mlm",), peak=4e-3)]
    write_tuned(file, file, load_study(file), rates, curve=file.parent / "curve.csv")
    block = "  - {arms: [clm], peak: 0.01}\n  - {arms: [mlm], peak: 4.0e-3}\n"
    assert block in file.read_text()
    assert load_study(file).tuned_rates == tuple(rates)


def test_a_block_is_replaced_in_place(file):
    moved = TEXT + "\n" + BLOCK + "# after it\nheldout_every: 3 # last\n"
    file.write_text(moved)
    lines = tune(file, 4e-3, 1.6e-2)
    assert file.read_text() == moved.replace("peak: 1.0e-3", "peak: 0.016")
    assert len([line for line in lines if line[:1] in "+-"]) == 2 + 2


def test_a_second_time_nothing_changes(file):
    tune(file, 4e-3, 1e-3)
    written = file.read_bytes()
    assert tune(file, 4e-3, 1e-3) == []
    assert file.read_bytes() == written


def test_another_file_is_written_and_this_one_stays(file):
    other = file.with_name("tuned.yaml")
    tune(file, 4e-3, 1e-3, out=other)
    assert file.read_text() == TEXT
    assert BLOCK in other.read_text()


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("\n", "\r\n"),
        TEXT.rstrip("\n").removesuffix("# the end").rstrip(),
        "  " + TEXT.replace("\n", "\n  ").rstrip(),
        TEXT.replace("title:", "description: |\n  Two lines,\n\n  # one like a comment.\n\ntitle:"),
        "description: >\n  Text.\n" + TEXT.replace("recipe:", "recipe: &shared"),
        # The recipe comes last, and what ends it names something far above.
        TEXT.replace("recipe:\n", "compute: {}\nrecipe:\n").replace(
            "learning_rate: {peak: 2.0e-3,\n                  warmup_steps: 2}",
            "seeds: &s {init_seed: 1}\n  learning_rate: {peak: 2.0e-3}",
        ),
    ],
    ids=["crlf", "no newline", "indented", "text block", "anchor", "other"],
)
def test_other_layouts_are_kept(text, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode())
    before = load_study(file)
    tune(file, 4e-3, 1e-3)
    after = file.read_bytes().decode()
    assert load_study(file).model_copy(update={"tuned_rates": ()}) == before
    kept = [line for line in after.split("\n") if "tune" not in line and "- {model" not in line]
    assert [line.rstrip("\r") for line in kept if line.strip()] == [
        line.rstrip("\r") for line in text.split("\n") if line.strip()
    ]
    assert ("\r\n" in after) == ("\r\n" in text)
    assert after.count("\r") in {0, after.count("\n")}


def test_what_ends_a_recipe_may_be_an_alias(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\ntitle: T\ncompute: &c {}\nrecipe:\n  learning_rate: &r {peak: 1.0e-3}\n"
        "  model: nano\n  optimizer: *c\n"
        "arms:\n  - {name: clm, phases: [{objective: clm, steps: 8}]}\n"
        "  - {name: mlm, phases: [{objective: mlm, steps: 8, learning_rate: *r}]}\n"
    )
    tune(file, 4e-3, 1e-3)
    lines = file.read_text().splitlines()
    assert lines[lines.index("  optimizer: *c") + 2] == "tuned_rates:"


def test_included_files_are_unchanged_and_the_block_is_appended(tmp_path):
    (tmp_path / "base.yaml").write_text(TEXT)
    file = tmp_path / "mine.yaml"
    file.write_text("include: base.yaml\nname: mine\n# done\n")
    tune(file, 4e-3, 1e-3)
    assert file.read_text() == f"include: base.yaml\nname: mine\n{BLOCK}# done\n"
    assert (tmp_path / "base.yaml").read_text() == TEXT


def test_a_file_on_one_line_is_refused_with_what_to_add(tmp_path):
    file = tmp_path / "mine.yaml"
    text = (
        "{name: mine, title: T, recipe: {model: nano, learning_rate: {peak: 1.0e-3}}, "
        "arms: [{name: clm, phases: [{objective: clm, steps: 8}]}]}"
    )
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        tune(file, 4e-3, 1e-3)
    said = str(caught.value)
    assert "tuned_rates: [{model: nano, phase: {objective: clm}, peak: 4.0e-3}, {model" in said
    assert file.read_text() == text


def test_a_copy_where_paths_mean_something_else_is_refused(file, tmp_path):
    file.write_text(TEXT + "corpus: {folder: my-corpus}\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(ConfigError, match=r"not written, .* another study"):
        tune(file, 4e-3, 1e-3, out=elsewhere / "mine.yaml")
    assert not list(elsewhere.iterdir())


def test_a_model_folder_is_written_as_seen_from_the_file(tmp_path):
    (tmp_path / "model").mkdir()
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT.replace("model: nano", "model: {pretrained: model}"))
    config = load_study(file)
    rate = ObjectiveRate.model_validate(
        {"model": config.recipe.model, "phase": {"objective": "clm"}, "peak": 1e-4}
    )
    write_tuned(file, file, config, [rate], curve=tmp_path / "curve.csv")
    entry = "  - {model: {pretrained: model}, phase: {objective: clm}, peak: 1.0e-4}\n"
    assert entry in file.read_text()
    assert load_study(file).tuned_rates == (rate,)


@pytest.mark.parametrize("name", ["08", "no", "0x_", "1_000", "models/🐦"])
def test_a_name_of_any_characters_reads_back(name, file):
    rate = ObjectiveRate.model_validate(
        {"model": {"pretrained": name}, "phase": {"objective": "clm"}, "peak": 1e-4}
    )
    file.write_text(tuned_text(TEXT, [rate], curve="a"))
    assert load_settings(file)["tuned_rates"][0]["model"] == {"pretrained": name}


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
    span = {"objective": "mlm", "mlm_probability": 0.15, "selection": {"mean_words": 2.5}}
    turns = {"objective": "alternate", "every": 20, "objectives": [{"objective": "clm"}, mix]}
    own = {
        "num_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_heads": 2,
        "num_key_value_heads": 1,
    }
    found = [
        ObjectiveRate.model_validate({"model": model, "phase": phase, "peak": peak})
        for model, phase in (("610m", mix), (own, turns), ("nano", span))
    ]
    file.write_text(tuned_text(TEXT, found, curve="a b.csv"))
    assert load_study(file).tuned_rates == tuple(found)


@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "studies").glob("*.yaml")])
def test_shipped_studies_can_be_written(name, tmp_path):
    source = ROOT / "studies" / f"{name}.yaml"
    shutil.copytree(source.parent, tmp_path, dirs_exist_ok=True)  # one study may include another
    copy = tmp_path / source.name
    before = load_study(copy)
    tune(copy, 4e-3, 1e-3)
    assert load_study(copy) == before.model_copy(update={"tuned_rates": tuple(rates(4e-3, 1e-3))})
    block = r"(# Chosen by .*\n)?tuned_rates:\n(  - .*\n)+"
    (kept, num_written), (original, _) = (
        re.subn(block, "", path.read_text()) for path in (copy, source)
    )
    assert num_written == 1
    assert kept == original
