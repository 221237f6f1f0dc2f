"""The `biphasic` command line: commands, help and exit codes.

Exit codes: 0 success, 1 failed while running, 2 bad input, 130 stopped.
Nothing here imports torch before a command runs: help stays fast.
"""

from __future__ import annotations

import copy
import gc
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from biphasic.cli.analysis import (
    analyze_command,
    claims_command,
    figures_command,
    paper_command,
)
from biphasic.cli.cluster import job_app, site_app
from biphasic.cli.corpus import corpus_app
from biphasic.cli.export import export_command, merge_command, push_command
from biphasic.cli.options import INTERRUPTED, Commands, echo
from biphasic.cli.pairs import pairs_app
from biphasic.cli.plugins import plugin_app, plugins_command
from biphasic.cli.study import study_app
from biphasic.cli.tokenizer import tokenizer_app
from biphasic.cli.training import adapt_command, estimate_command, pretrain_command
from biphasic.cli.use import encode_command, evaluate_command, finetune_command, predict_command
from biphasic.errors import (
    BiphasicError,
    CheckpointError,
    ConfigError,
    DataError,
    LockedError,
    StoppedError,
    os_error_text,
)
from biphasic.version import __version__

_RESUME = "interrupted; run again to resume"

app = Commands(
    "Pretrain text encoders in controlled studies, evaluate them, and compare objectives.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(study_app, name="study")
app.add_typer(corpus_app, name="corpus")
app.add_typer(pairs_app, name="pairs")
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(job_app, name="job")
app.add_typer(site_app, name="site")
app.add_typer(plugin_app, name="plugin")
app.command("plugins")(plugins_command)
app.command("adapt")(adapt_command)
app.command("claims")(claims_command)
app.command("estimate")(estimate_command)
app.command("finetune")(finetune_command)
app.command("predict")(predict_command)
app.command("encode")(encode_command)
app.command("export")(export_command)
app.command("merge")(merge_command)
app.command("push")(push_command)
app.command("paper")(paper_command)
app.command("figures")(figures_command)
app.command("analyze")(analyze_command)
app.command("pretrain")(pretrain_command)
app.command("evaluate")(evaluate_command)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; map expected errors to one line and an exit code.

    SIGTERM acts like Ctrl-C.
    """
    # Imports create objects that stay; collecting garbage among them takes a tenth of the start.
    gc.set_threshold(20_000, 20, 100)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _only(app, sys.argv[1:])()
    except (ConfigError, DataError, CheckpointError, LockedError) as error:
        _fail(error, code=2)
    except StoppedError as error:
        _fail(error, code=INTERRUPTED)
    except BiphasicError as error:
        _fail(error, code=1)
    except OSError as error:  # disk full, folder not writable
        _fail(os_error_text(error), code=1)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # Ctrl-C or a cancelled study: typer prints nothing
            echo(_RESUME, err=True)
        raise
    except Exception as error:
        # pydantic converts a Ctrl-C to its own error while it builds a model's validator.
        if "KeyboardInterrupt" not in str(error):
            raise
        echo(_RESUME, err=True)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _only(group: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return a group with only the command that the words name, if they name one.

    Typer parses the options of every command, which takes longer than loading typer.
    """
    commands = [info for info in group.registered_commands if info.name in words[:1]]
    groups = [copy.copy(info) for info in group.registered_groups if info.name in words[:1]]
    if not (commands or groups):
        return group
    for info in groups:
        info.typer_instance = info.typer_instance and _only(info.typer_instance, words[1:])
    smaller = copy.copy(group)
    smaller.registered_commands, smaller.registered_groups = commands, groups
    return smaller


def _fail(error: Exception | str, *, code: int) -> None:
    echo(f"error: {error}", err=True)
    sys.exit(code)
