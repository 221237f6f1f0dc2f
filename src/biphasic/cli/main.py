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
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from biphasic.cli.command import INTERRUPTED, Commands, echo, summary_of
from biphasic.cli.commands import GROUPS, commands
from biphasic.errors import (
    BiphasicError,
    CheckpointError,
    ConfigError,
    DataError,
    LockedError,
    ModelError,
    NewerFormatError,
    StoppedError,
    lack_of_memory,
    os_error_text,
)
from biphasic.plugin_code import error_of_plugin
from biphasic.version import __version__

_RESUME = "interrupted; run again to resume"
_BAD_INPUT = (
    ConfigError, DataError, ModelError, CheckpointError, LockedError, NewerFormatError,
)  # fmt: skip

_WITHOUT_COMMAND = (["-h"], ["--help"], ["--version"])
_SECTIONS = {
    "Train": ("adapt", "pretrain", "merge", "estimate"),
    "Use": ("finetune", "predict", "encode", "export", "push"),
    "Compare": ("study", "evaluate", "mteb", "analyze", "claims", "figures", "paper"),
    "Data": ("corpus", "pairs", "task", "tokenizer"),
    "Plugins and clusters": ("plugins", "plugin", "job", "site"),
}


class _Root(TyperGroup):
    """Lists the commands by section in its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write a line about each command."""
        for title, names in _SECTIONS.items():
            lines = [
                (name, command.get_short_help_str(formatter.width))
                for name in names
                if (command := self.commands.get(name))
            ]
            with formatter.section(title):
                formatter.write_dl(lines)


app = Commands(
    "Pretrain text encoders in controlled studies, evaluate them, and compare objectives.",
    cls=_Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.registered_commands += commands.registered_commands
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; map expected errors to one line and an exit code.

    SIGTERM and SIGUSR1, which schedulers send, act like Ctrl-C.
    """
    # Imports, records and figures create objects that stay; collecting garbage among them takes a
    # tenth of the start, and of a report.
    gc.set_threshold(50_000, 20, 100)
    stopping = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, signal.default_int_handler) for number in stopping}
    try:
        _only(app, sys.argv[1:])(prog_name="biphasic")  # however Python was started
    except _BAD_INPUT as error:
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
            if lack := lack_of_memory(error):
                _fail(lack, code=1)
            if (known := error_of_plugin(error)) is None:
                raise
            _fail(known, code=2)
        echo(_RESUME, err=True)
        sys.exit(INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _only(group: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return a group with only the command that the words name, or without options for its help.

    Typer parses the options of every command, which takes longer than loading typer.
    """
    if words[:1] in _WITHOUT_COMMAND:
        smaller = copy.copy(group)
        smaller.registered_commands = [summary_of(info) for info in group.registered_commands]
        smaller.registered_groups = [copy.copy(info) for info in group.registered_groups]
        for info in smaller.registered_groups:
            info.typer_instance = info.typer_instance and _only(info.typer_instance, words)
        return smaller
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
