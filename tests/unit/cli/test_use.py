"""The commands for everyday use: names of options, and what they refuse."""

import pytest
import typer
from typer.testing import CliRunner

from biphasic.cli.export import export_command
from biphasic.cli.use import encode_command, finetune_command, predict_command
from biphasic.export import write


def app_of(command):
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    return app


@pytest.mark.parametrize(
    ("given", "dtype"), [([], "float32"), (["--precision", "bf16"], "bfloat16")]
)
def test_an_export_has_a_precision(monkeypatch, given, dtype):
    exported = {}
    monkeypatch.setattr(write, "export_model", lambda *_, **options: exported.update(options))
    ended = CliRunner().invoke(app_of(export_command), ["model", "out", *given])
    assert (ended.exit_code, exported["dtype"]) == (0, dtype)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (finetune_command, ["model", "--task", "sc:x"]),
        (finetune_command, ["model", "--out", "x"]),
        (encode_command, ["model", "x.txt"]),
        (encode_command, ["model", "x.txt", "--out", "x.npy", "--max-seqlen", "2"]),
        (predict_command, ["model"]),
        (export_command, ["model", "out", "--precision", "half"]),
    ],
)
def test_what_is_missing_or_too_small_is_bad_usage(command, arguments):
    assert CliRunner().invoke(app_of(command), arguments).exit_code == 2
