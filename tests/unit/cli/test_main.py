"""The command line itself: help without torch, exit codes, one line per error."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from pydantic_core import SchemaValidator, core_schema
from rich.table import Table

import biphasic
from biphasic.cli import main as module
from biphasic.cli.command import print_table, shown
from biphasic.errors import (
    BiphasicError,
    CheckpointError,
    ConfigError,
    DataError,
    LockedError,
    ModelError,
    StudyError,
    TrainingError,
)
from biphasic.plugins import load_with_plugins
from biphasic.training.recipe import Recipe

HEAVY = (
    "torch", "transformers", "numpy", "sklearn", "matplotlib", "pyarrow", "pandas", "datasets",
    "tokenizers",
)  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"], ["study", "run", "--help"], ["--version"], ["analyze", "--help"],
        ["tokenizer", "--help"], ["tokenizer", "train", "--help"], ["tokenizer", "check", "--help"],
        ["encode", "--help"],
    ],
)  # fmt: skip
def test_help_imports_nothing_heavy(arguments):
    program = f"""
import sys
sys.argv = ["biphasic", *{arguments!r}]
from biphasic.cli.main import main
assert "pydantic" not in sys.modules
try:
    main()
finally:
    print("imported:", *sorted({set(HEAVY)!r} & set(sys.modules)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "imported:"


def test_what_help_offers_to_set_can_be_set(run, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: nano\nlearning_rate: {peak: 1.0e-3}\n")
    [offered] = re.findall(r"e\.g\.\s+([\w.=]+[\w=])", run("pretrain", "--help")[1])
    assert load_with_plugins(Recipe, recipe, [offered]).model == "micro"


@pytest.fixture
def fail_with(monkeypatch):
    """Let the command line do nothing but raise an error."""

    def install(error):
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def fail():
            raise error

        monkeypatch.setattr(module, "app", app)

    return install


def test_version(run):
    assert run("--version") == (0, f"{biphasic.__version__}\n", "")


def test_python_runs_the_package():
    command = [sys.executable, "-m", "biphasic", "pretain"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "Usage: biphasic " in ended.stderr
    assert "Did you mean 'pretrain'?" in ended.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError, 2),
        (DataError, 2),
        (CheckpointError, 2),
        (LockedError, 2),
        (StudyError, 1),
        (ModelError, 2),
        (TrainingError, 1),
        (BiphasicError, 1),
        (OSError, 1),
    ],
)
def test_every_foreseen_error_is_one_line_and_a_code(run, fail_with, error, code):
    fail_with(error("what, where, what to do"))
    assert run() == (code, "", "error: what, where, what to do\n")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate"), "Tried to allocate"),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory"), "can't allocate"),
        (MemoryError(), "MemoryError"),
    ],
    ids=repr,
)
def test_a_full_memory_is_one_line(run, fail_with, error, reason):
    fail_with(error)
    code, _, err = run()
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: out of memory (")
    assert reason in err
    # Without a model, as in a corpus build, no model is the remedy.
    assert ("smaller model" in err) == (not isinstance(error, MemoryError))


def test_an_unforeseen_error_keeps_its_traceback(run, fail_with):
    fail_with(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        run()


def build_validator_of_an_interrupting_value(*_, **__):
    class Value:
        def __repr__(self):
            raise KeyboardInterrupt

    SchemaValidator(core_schema.literal_schema([Value()]))


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [interrupt, build_validator_of_an_interrupting_value])
def test_an_interrupted_run_prints_how_to_resume(run, monkeypatch, interrupted):
    monkeypatch.setattr("biphasic.study.settings.load.load_study", interrupted)
    assert run("study", "run", "any.yaml") == (130, "", "interrupted; run again to resume\n")


def test_paths_are_shown_as_one_would_type_them(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs/report.html") == "runs/report.html"
    assert shown(tmp_path.parent / "other") == str(tmp_path.parent / "other")


def test_names_do_not_steer_the_terminal(run, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(
        "name: s\ntitle: S\nrecipe: {model: pico, learning_rate: {peak: 1}}\n"
        'arms: [{name: a, label: x, group: "\\e[31m\\x9b2J\\u202e"}]\n'
    )
    code, shown, _ = run("study", "plan", study)
    assert code == 0
    assert "\\u001b[31m\\u009b2J\\u202e" in shown
    assert shown.replace("\n", "").replace("\u202f", "").isprintable()


def test_all_output_uses_one_function():
    folder = Path(module.__file__).parent
    printing = [file.name for file in folder.glob("*.py") if "typer.echo" in file.read_text()]
    assert printing == ["command.py"]


def test_no_score_is_cut_where_a_terminal_is_narrow(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    table = Table("Arm")
    for number in range(6):
        table.add_column(f"task-{number}", min_width=13)
    table.add_row("mlm", *(f"{number}7.85 (±0.13)" for number in range(6)))
    print_table(table)
    text = capsys.readouterr().out
    assert "task-5" in text
    assert "57.85 (±0.13)" in text
