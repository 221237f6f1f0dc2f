"""Every command has a function, with the same names and defaults."""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path

import pytest
from typer.main import get_command

import biphasic
from biphasic.cli.main import app
from biphasic.errors import DataError

# Commands whose function has another name than `biphasic COMMAND` or `biphasic GROUP COMMAND`.
NAMES = {
    "evaluate": "evaluate_all",
    "export": "export_model",
    "merge": "merge_models",
    "mteb": "run_mteb",
    "plugins": "plugin.list",
    "study report": "report_study",
    "study run": "run_study",
}
# Functions without a command of their own.
FURTHER = {"compare", "evaluate", "load"}
# Arguments that commands do not have, and those with another default.
IN_PYTHON = {
    "evaluate": {"libraries", "threads"},
    "finetune": {"libraries", "protocol", "threads"},
}
OTHER_DEFAULTS = {"predict": {"out"}}
# Flags of commands that say how the result is printed.
PRINTED = {
    "as_json", "compare", "details", "graph", "help", "markdown", "print_config", "watch",
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


@pytest.mark.parametrize("name", commands())
def test_a_command_has_the_arguments_of_its_function(name):
    arguments = inspect.signature(attrgetter(function_of(name))(biphasic)).parameters
    options = {option.name: option for option in commands()[name].params}
    assert options.keys() - arguments.keys() <= PRINTED
    assert arguments.keys() - options.keys() <= IN_PYTHON.get(name, set())
    for shared in options.keys() & arguments.keys() - OTHER_DEFAULTS.get(name, set()):
        default = options[shared].default
        # An option that is not given is None or an empty list; a folder may be a text.
        given = str(default) if isinstance(default, Path) else default or None
        ours = arguments[shared].default
        assert given == (None if ours is inspect.Parameter.empty else ours or None), shared


def test_evaluate_has_the_options_of_evaluate_all():
    one, several = (
        {name: option.default for name, option in inspect.signature(function).parameters.items()}
        for function in (biphasic.evaluate, biphasic.evaluate_all)
    )
    del one["task"], several["tasks"]
    assert one == several


@pytest.mark.parametrize(
    "call",
    [
        lambda root: biphasic.status("mine", root=root),
        lambda root: biphasic.verify("mine", root=root),
        lambda root: biphasic.clean(root=root),
        lambda root: biphasic.job.show("0" * 64, root=root),
    ],
)
def test_a_root_may_begin_with_the_home_folder(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # a shell expands `--root ~/a`, but not `--root=~/a`
    with pytest.raises(DataError, match=str(tmp_path / "a")):
        call("~/a")
