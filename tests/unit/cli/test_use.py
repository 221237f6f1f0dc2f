"""The commands for everyday use: what their help says, and that it loads nothing heavy."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from biphasic.cli.use import encode_command, finetune_command, predict_command

HEAVY = ("torch", "transformers", "numpy", "pyarrow", "pydantic")


def app_of(command):
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    return app


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            finetune_command,
            ["--task", "--out", "--learning-rate", "--seed", "--set", "sc, ml, sr, tc"],
        ),
        (predict_command, ["--out", "--column", "--format", "standard input"]),
        (encode_command, ["--field", "--prefix", "--prompt", "--normalize", "--max-seqlen"]),
        (encode_command, ["--batch-tokens", "--dtype", ".npy", ".parquet"]),
    ],
)
def test_help_names_what_there_is(command, words):
    shown = CliRunner().invoke(app_of(command), ["--help"], terminal_width=200)
    assert shown.exit_code == 0
    assert [word for word in words if word not in shown.output] == []


def test_nothing_heavy_is_imported():
    program = f"""
import sys
import biphasic.cli.use
print("imported:", *sorted({set(HEAVY)!r} & set(sys.modules)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "imported:\n"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (finetune_command, ["model", "--task", "sc:x"]),
        (finetune_command, ["model", "--out", "x"]),
        (encode_command, ["model", "x.txt"]),
        (encode_command, ["model", "x.txt", "--out", "x.npy", "--max-seqlen", "2"]),
        (predict_command, ["model"]),
    ],
)
def test_what_is_missing_or_too_small_is_bad_usage(command, arguments):
    assert CliRunner().invoke(app_of(command), arguments).exit_code == 2
