"""The command line itself: help without torch, exit codes, one line per error."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import biphasic
from biphasic.cli import main as module
from biphasic.config import load_config
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
from biphasic.training.recipe import Recipe

HEAVY = ("torch", "transformers", "numpy", "sklearn", "matplotlib", "pyarrow", "pandas")


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["biphasic", *arguments])
    with pytest.raises(SystemExit) as ended:
        module.main()
    return ended.value.code


@pytest.mark.parametrize("arguments", [["--help"], ["study", "run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    program = f"""
import sys
sys.argv = ["biphasic", *{arguments!r}]
from biphasic.cli.main import main
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["study", "pretrain", "evaluate", "corpus", "tokenizer"]),
        (["study", "--help"], ["run", "report"]),
        (["study", "run", "--help"], ["--root", "--workers", "--threads", "--set", "Study file"]),
        (["evaluate", "--help"], ["--task", "--learning-rate", "--seed", "--set", "pydocs-sc"]),
    ],
)
def test_help_names_all_options(monkeypatch, capsys, arguments, words):
    assert run(monkeypatch, *arguments) == 0
    shown = capsys.readouterr().out
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize("command", ["pretrain", "evaluate", "finetune", "adapt", "export"])
def test_commands_that_take_long_can_be_quiet(monkeypatch, capsys, command):
    assert run(monkeypatch, command, "--help") == 0
    assert "--quiet" in capsys.readouterr().out


def test_what_help_offers_to_set_can_be_set(monkeypatch, capsys, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: nano\nlearning_rate: {peak: 1.0e-3}\n")
    assert run(monkeypatch, "pretrain", "--help") == 0
    [offered] = re.findall(r"e\.g\.\s+([\w.=]+[\w=])", capsys.readouterr().out)
    assert load_config(Recipe, recipe, [offered]).model == "micro"


def test_a_study_given_to_pretrain_is_called_one(monkeypatch, capsys, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text("{name: s, title: S, recipe: {model: pico}, arms: [{name: mlm}]}")
    assert run(monkeypatch, "pretrain", str(study)) == 2
    assert capsys.readouterr().err == (
        f"error: {study}: this is a study; run it with 'biphasic study run {study}'\n"
    )


def test_version(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"{biphasic.__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError, 2),
        (DataError, 2),
        (CheckpointError, 2),
        (LockedError, 2),
        (StudyError, 1),
        (ModelError, 1),
        (TrainingError, 1),
        (BiphasicError, 1),
        (OSError, 1),
    ],
)
def test_every_foreseen_error_is_one_line_and_a_code(monkeypatch, capsys, error, code):
    def fail():
        raise error("what, where, what to do")

    monkeypatch.setattr(module, "_only", lambda *_: fail)
    assert run(monkeypatch) == code
    assert capsys.readouterr().err == "error: what, where, what to do\n"


def test_only_the_named_command_is_built():
    def names(words):
        app = typer.main.get_group(module._only(module.app, words))
        return {name: [*getattr(command, "commands", ())] for name, command in app.commands.items()}

    assert names(["study", "plan", "x.yaml"]) == {"study": ["plan"]}
    assert names(["claims"]) == {"claims": []}
    assert names(["study", "pln"]).keys() == {"study"}
    assert len(names(["study", "pln"])["study"]) > 5
    assert names([]) == names(["stdy"])
    assert {"study", "corpus", "claims"} <= names([]).keys()


def test_an_unforeseen_error_keeps_its_traceback(monkeypatch):
    def fail():
        raise RuntimeError("a bug")

    monkeypatch.setattr(module, "_only", lambda *_: fail)
    with pytest.raises(RuntimeError, match="a bug"):
        module.main()


def test_an_interrupted_run_prints_how_to_resume(monkeypatch, capsys, tmp_path):
    from biphasic.study import api

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "run_study", interrupt)
    assert run(monkeypatch, "study", "run", str(tmp_path / "any.yaml")) == 130
    assert capsys.readouterr().err == "interrupted; run again to resume\n"


def test_an_unknown_option_is_bad_input(monkeypatch, capsys):
    assert run(monkeypatch, "study", "run", "file.yaml", "--rot", "x") == 2
    assert "--root" in capsys.readouterr().err


def test_paths_are_shown_as_one_would_type_them(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert module.shown(tmp_path / "runs/report.html") == "runs/report.html"
    assert module.shown(tmp_path.parent / "other") == str(tmp_path.parent / "other")


def test_names_do_not_steer_the_terminal(monkeypatch, capsys, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(
        "name: s\ntitle: S\nrecipe: {model: pico, learning_rate: {peak: 1}}\n"
        'arms: [{name: a, label: x, group: "\\e[31m\\x9b2J\\u202e"}]\n'
    )
    assert run(monkeypatch, "study", "plan", str(study), "--root", str(tmp_path / "runs")) == 0
    shown = capsys.readouterr().out
    assert "\\u001b[31m\\u009b2J\\u202e" in shown
    assert shown.replace("\n", "").replace("\u202f", "").isprintable()


def test_all_output_uses_one_function():
    folder = Path(module.__file__).parent
    printing = [file.name for file in folder.glob("*.py") if "typer.echo" in file.read_text()]
    assert printing == ["options.py"]
