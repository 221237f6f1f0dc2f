"""Options that several commands have."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
import typer

from biphasic.api.adapt import (
    DECAY_SHARE,
    MAX_SEQLEN,
    MLM_PROBABILITY,
    PEAK_TIMES_WIDTH,
    ROWS_PER_STEP,
    WARMUP_SHARE,
)
from biphasic.cli.main import app
from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.tasks.kinds.registry import KINDS

COMPUTING = {
    "pretrain": ["pretrain", "recipe.yaml"],
    "evaluate": ["evaluate", "model", "--task", "sst2"],
    "adapt": ["adapt", "model", "--corpus", "builtin:pydocs", "--out", "out"],
    "finetune": ["finetune", "model", "--task", "sst2", "--out", "out"],
    "encode": ["encode", "model", "texts.txt", "--out", "vectors.npy"],
    "predict": ["predict", "model", "texts.txt"],
}
RECIPE = "model: pico\nphases: [{objective: clm, steps: 2}]\nlearning_rate: {peak: 1e-3}\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a recipe, texts, and an empty model."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "texts.txt").write_text("a text\n")
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("adapt", "model", "--corpus", "texts.txt", "--out"),
        ("finetune", "model", "--task", "sst2", "--out"),
        ("export", "model"),
        ("merge", "model", "model", "--out"),
    ],
    ids=lambda words: words[0],
)
def test_an_output_that_cannot_be_created_is_refused_before_any_work(cli, place, words):
    code, out, err = cli(*words, "texts.txt/out")
    assert (code, out) == (2, "")
    assert "texts.txt is a file, not a folder" in err
    assert sorted(path.name for path in place.iterdir()) == ["model", "recipe.yaml", "texts.txt"]


def test_pretrain_computes_with_the_threads_that_are_chosen(cli, place, text_file):
    recipe = RECIPE.replace("steps: 2", "steps: 1") + "max_seqlen: 64\nrows_per_step: 1\n"
    (place / "recipe.yaml").write_text(recipe)
    (place / "corpus.yaml").write_text(f"sources: [{text_file}]\nvocab_size: 320\n")
    before = torch.get_num_threads()
    options = ("--corpus", "corpus.yaml", "--root", "runs", "--threads", str(before + 1))
    code, out, err = cli("pretrain", "recipe.yaml", *options)
    assert code == 0, err
    state = json.loads((Path(out.strip()) / "state.json").read_text())
    assert [state["environment"]["threads"]] == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("command", ["adapt", "pretrain", "encode", "predict"])
def test_threads_can_be_chosen_where_a_command_computes_in_this_process(cli, place, command):
    code, _, err = cli(*COMPUTING[command], "--threads", "0")
    assert code == 2
    assert "Invalid value for '--threads'" in err  # not an unknown option


def commands(command, path=()):
    """Yield every command and group of commands."""
    yield list(path)
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def test_h_is_help_of_every_command(cli, monkeypatch):
    built = typer.main.get_command(app)
    monkeypatch.setattr(typer.main, "get_command", lambda _: built)  # once for all
    listed = list(commands(built))
    assert ["study", "run"] in listed
    for path in listed:
        code, out, _ = cli(*path, "-h")
        assert code == 0
        assert "-h, --help" in out  # two names of one option
    assert cli("study", "run", "-h") == cli("study", "run", "--help")


def test_help_describes_every_option_and_argument():
    def undescribed(group, path=()):
        for name, child in group.commands.items():
            if hasattr(child, "commands"):
                yield from undescribed(child, (*path, name))
            else:
                assert "Args:" not in child.help
                yield from ((*path, name, one.name) for one in child.params if not one.help)

    assert list(undescribed(typer.main.get_command(app))) == []


def test_help_lists_the_kinds_of_tasks(cli):
    names = {"evaluate": [*KINDS], "finetune": [k for k in KINDS if KINDS[k].facts.is_trained]}
    for command, kinds in names.items():
        out = " ".join(cli(command, "--help")[1].replace("|", "").split())
        assert f"with kind {', '.join(kinds[:-1])} or {kinds[-1]};" in out


def test_a_missing_option_is_not_told_to_be_repeated(cli):
    code, _, error = cli("evaluate", "some-model")
    assert code == 2
    assert "Missing option '--task'" in error
    assert "repeat" not in error


def test_an_option_that_is_off_by_default_has_no_second_name(cli):
    out = cli("claims", "--help")[1]
    assert "--details" in out
    assert "--no-" not in out
    assert "--watch" in (out := cli("study", "status", "--help")[1])
    assert "--no-watch" in out  # its default depends on the terminal
    code, _, err = cli("claims", "--paper", "--no-details")
    assert (code, "No such option: --no-details" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("biphasic stu", "study"),
        ("biphasic study sch", "schema"),
        ("biphasic push --pri", "--priv"),
    ],
)
def test_shells_complete_commands_and_options(cli, monkeypatch, words, completed):
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "pytest")  # as by `python -m`
    monkeypatch.setenv("_BIPHASIC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    code, out, _ = cli()
    assert code == 0
    assert out.strip().startswith(completed)


@pytest.mark.parametrize(
    ("command", "name", "default"),
    [
        ("adapt", "mlm_probability", MLM_PROBABILITY),
        ("adapt", "learning_rate", f"{PEAK_TIMES_WIDTH} / hidden size"),
        ("adapt", "warmup_steps", f"1/{1 / WARMUP_SHARE:g} of the steps"),
        ("adapt", "decay_steps", f"1/{1 / DECAY_SHARE:g} of the steps"),
        ("adapt", "max_seqlen", MAX_SEQLEN),
        ("adapt", "rows_per_step", ROWS_PER_STEP),
        ("estimate", "vocab_size", DEFAULT_VOCAB_SIZE),
    ],
)
def test_help_states_the_default_that_is_used(command, name, default):
    parameters = typer.main.get_command(app).commands[command].params
    text = next(option.help for option in parameters if option.name == name)
    assert re.search(rf"Default: (.* else )?{re.escape(str(default))}\b", text)


def test_pretrain_passes_its_settings_on(cli, tmp_path, monkeypatch):
    seen = {}

    def train(*_, **settings):
        seen.update(settings)
        return tmp_path

    (tmp_path / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("biphasic.study.one_arm.train_recipe", train)
    monkeypatch.setattr("biphasic.study.inputs.corpus.prepare_corpus", MagicMock())
    arguments = ("--heldout-every", "7", "--compute", "max_tokens_per_pass=4096")
    code, _, _ = cli("pretrain", "r.yaml", *arguments, "--checkpoint-every", "0")
    assert seen["compute"].max_tokens_per_pass == 4096
    assert (code, seen["heldout_every"], seen["checkpoint_every"]) == (0, 7, 0)
    code, _, err = cli("pretrain", "r.yaml", "--heldout-every", "-1")
    assert code == 2
    assert "--heldout-every" in err
