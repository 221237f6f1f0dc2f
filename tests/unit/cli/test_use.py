"""The commands for everyday use: names of options, old ones too, and what they refuse."""

import pytest
import typer
from typer.testing import CliRunner

from biphasic.cli.export import export_command
from biphasic.cli.use import encode_command, finetune_command, predict_command
from biphasic.errors import ConfigError
from biphasic.export import write


def app_of(command):
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    return app


@pytest.mark.parametrize("command", [encode_command, export_command])
def test_old_names_of_options_are_not_offered(command):
    shown = CliRunner().invoke(app_of(command), ["--help"], terminal_width=200).output
    assert "--precision" in shown
    assert [name for name in ("--dtype", "--field") if name in shown] == []


@pytest.mark.parametrize(
    ("given", "dtype", "told"),
    [
        ([], "float32", ""),
        (["--precision", "bf16"], "bfloat16", ""),
        (["--precision", "bfloat16"], "bfloat16", ""),
        (["--dtype", "bfloat16"], "bfloat16", "--dtype is deprecated; use --precision\n"),
    ],
)
def test_an_old_option_name_works_and_names_the_new_one(monkeypatch, given, dtype, told):
    exported = {}
    monkeypatch.setattr(write, "export_model", lambda *_, **options: exported.update(options))
    ended = CliRunner().invoke(app_of(export_command), ["model", "out", *given])
    assert (ended.exit_code, exported["dtype"], ended.stderr) == (0, dtype, told)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--precision", "half"], "--precision: unknown value 'half' (known: bf16, fp32)"),
        (["--precision", "bf16", "--dtype", "bfloat16"], "give --precision only"),
    ],
)
def test_a_precision_that_cannot_be_is_refused(given, message):
    error = CliRunner().invoke(app_of(export_command), ["model", "out", *given]).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)


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
