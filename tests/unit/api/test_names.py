"""Every command has a function, with the same names and defaults."""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path

import pytest
from typer.main import get_command

import biphasic
from biphasic.cli.main import app

# Commands whose function has another name than `biphasic COMMAND` or `biphasic GROUP COMMAND`.
NAMES = {
    "export": "export_model",
    "merge": "merge_models",
    "mteb": "run_mteb",
    "plugins": "plugin.list",
    "study report": "report_study",
    "study run": "run_study",
}
# Functions without a command of their own.
FURTHER = {"compare", "evaluate_all", "load"}
# These declare their options by hand, since their functions load torch or take more in Python.
BY_HAND = (
    "adapt",
    "pretrain",
    "evaluate",
    "finetune",
    "estimate",
    "export",
    "merge",
    "study run",
    "study report",
)
SHOWN = {"as_json", "markdown", "print_config", "help"}
OTHERWISE = {
    "rates": "learning_rates", "paper": "protocol", "max_time": "max_seconds", "group": "groups",
    "precision": "dtype", "quiet": "say",
}  # fmt: skip


def commands():
    """Return each command of the command line, by its words."""

    def leaves(group, words=()):
        for name, child in group.commands.items():
            if hasattr(child, "commands"):
                yield from leaves(child, (*words, name))
            else:
                yield " ".join((*words, name)), child

    return dict(leaves(get_command(app)))


def function_of(command):
    return NAMES.get(command, command.removeprefix("study ").replace(" ", "."))


def test_every_command_is_a_function_and_every_function_a_command():
    names = {function_of(command) for command in commands()} | FURTHER
    for name in names:
        assert callable(attrgetter(name)(biphasic)), name
    assert {name.partition(".")[0] for name in names} == set(biphasic.__all__) - {"__version__"}


@pytest.mark.parametrize("command", BY_HAND)
def test_a_function_has_the_options_of_its_command(command):
    function = inspect.signature(attrgetter(function_of(command))(biphasic))
    arguments = dict(function.parameters)
    if command == "adapt":  # settings of the training are one argument in Python
        arguments |= _fields_of_adaptation()
    for option in commands()[command].params:
        name = option.name if option.name in arguments else OTHERWISE.get(option.name, option.name)
        if name == "file":
            name = next(iter(arguments))
        elif (command, name) == ("evaluate", "tasks"):
            name = "task"
        if option.name in SHOWN and name not in arguments:
            continue
        assert name in arguments, option.name
        default, ours = option.default, arguments[name].default
        if (
            ours is inspect.Parameter.empty
            or option.name in {"paper", "precision"}
            or name == "say"
        ):
            continue
        # An option that is not given is None, or an empty list; a folder may be a text.
        if ours == () or default == []:
            assert not default
        else:
            assert (str(default) if isinstance(default, Path) else default) == ours, option.name


def _fields_of_adaptation():
    from biphasic.adaptation import AdaptConfig

    fields = {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        for name in (*AdaptConfig.model_fields, "reset_optimizer")
    }
    return {name: field for name, field in fields.items() if name != "optimizer_state"}
