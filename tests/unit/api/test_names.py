"""Options of commands and arguments of functions have the same names and defaults."""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path

import pytest
from typer.main import get_command

import biphasic
from biphasic.cli.main import app

CALLS = {
    **dict.fromkeys(["predict", "encode", "push", "evaluate", "finetune", "pretrain"]),
    **dict.fromkeys(["analyze", "claims", "figures", "paper", "estimate"]),
    "study run": "run_study",
    **{
        f"study {name}": name
        for name in (
            *("plan", "diff", "register", "jobs", "jobset", "tune"),
            *("status", "retry", "cancel", "verify", "clean"),
        )
    },
    **{f"corpus {name}": f"corpus.{name}" for name in ("build", "inspect", "verify", "merge")},
}
SHOWN = {"as_json", "markdown", "details", "watch", "print_config", "graph", "compare", "help"}
OTHERWISE = {
    "rates": "learning_rates", "input_format": "format", "paper": "protocol",
    "max_time": "max_seconds", "file": "recipe", "tasks": "task",
}  # fmt: skip


@pytest.mark.parametrize("command", CALLS)
def test_a_function_has_the_options_of_its_command(command):
    level = get_command(app)
    for part in command.split():
        level = level.commands[part]
    arguments = inspect.signature(attrgetter(CALLS[command] or command)(biphasic)).parameters
    for option in level.params:
        name = option.name if option.name in arguments else OTHERWISE.get(option.name, option.name)
        if option.name in SHOWN and name not in arguments:
            continue
        if command == "study run" and name == "recipe":
            name = "study"
        assert name in arguments, option.name
        default, ours = option.default, arguments[name].default
        if ours is inspect.Parameter.empty or option.name == "paper":
            continue
        if (command, name) == ("predict", "out"):
            assert default == "-"  # standard output; in Python, the result has the rows
            continue
        # An option that is not given is None, or an empty list; a folder may be a text.
        if ours == () or default == []:
            assert not default
        else:
            assert (str(default) if isinstance(default, Path) else default) == ours, option.name
