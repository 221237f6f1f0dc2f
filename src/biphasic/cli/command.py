"""Commands made from functions of the Python interface, and options described in docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo, ParameterInfo

import biphasic

Result = TypeVar("Result")
Options = ParamSpec("Options")

# How the command line reads an argument of a function, by its annotation.
_TYPES: dict[str, Any] = {
    "bool": bool,
    "bool | None": bool | None,
    "int": int,
    "int | None": int | None,
    "float": float,
    "float | None": float | None,
    "str": str,
    "str | None": str | None,
    "Path | str": Path,
    "Path | str | None": Path | None,
    "Source": str,
    "Sequence[str]": list[str] | None,
    "Sequence[float]": list[float] | None,
    "Sequence[float] | None": str | None,  # with commas; the option parses it
    "Sequence[Path | str]": list[Path],
    "Precision": Literal["fp32", "bf16"],
    "Convention | None": Literal["standard", "paper"] | None,
    "TuneBy": Literal["beginning", "arm", "last"],
}
# May be the name of a study or the id of a model, which a `Path` would change.
_NAMES = {"adapted", "base", "miner", "model", "pilot", "study", "teacher", "tokenizer"}
# What an option is called and may be, where its argument's name and type do not say it.
_OPTIONS: dict[str, ParameterInfo] = {
    "against": typer.Option(metavar="TASK"),
    "batch_tokens": typer.Option(min=1),
    "columns": typer.Option("--column"),
    "dataset": typer.Option(metavar="NAME"),
    "example_tokens": typer.Option(min=1),
    "formats": typer.Option("--format", metavar="ENDING"),
    "gpus": typer.Option(min=0),
    "max_seqlen": typer.Option(min=8),
    "only": typer.Option(metavar="ID"),
    "out": typer.Option(),
    "overrides": typer.Option("--set", metavar="KEY=VALUE"),
    "parallelism": typer.Option(min=1),
    "pilot": typer.Option(metavar="STUDY"),
    "rate": typer.Option(min=1.0),
    "samples": typer.Option(min=0),
    "shares": typer.Option("--share"),
    "spread": typer.Option(min=0.001),
    "tasks": typer.Option("--task", metavar="TASK"),
    "threads": typer.Option(min=1),
    "without": typer.Option(metavar="NAME"),
    "workers": typer.Option(min=1),
}
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_SECTION = re.compile(r"\n\n(Args|Returns|Raises|Example):\n")
_ELSEWHERE = re.compile(r"As in '([\w.]+)'\.")
_KINDS = re.compile(r"\{(trained_)?kinds\}")


def command(
    function: Callable[..., Result],
    *,
    defaults: Mapping[str, Any] | None = None,
    **options: ParameterInfo,
) -> Callable[[Callable[Concatenate[Result, Options], None]], Callable[..., None]]:
    """Make a command that calls a function; the decorated function prints what it returns.

    The command has the function's arguments, with their defaults and the texts of its docstring,
    and the keywords of the decorated function; those that both have go to both. The docstring of
    the decorated function is added to the help. `options` say more of single arguments, `defaults`
    are those that differ from Python; `...` is none.
    """
    return lambda show: _Call(function, show, defaults or {}, options)


class _Call:
    # Typer asks for signature, types and text of a command when it builds it; so a start of the
    # program reads those of one command only.

    def __init__(
        self,
        function: Callable[..., Any],
        show: Callable[..., None],
        defaults: Mapping[str, Any],
        options: Mapping[str, ParameterInfo],
    ) -> None:
        self.__name__ = show.__name__
        self._function, self._show, self._defaults = function, show, defaults
        self._options = options
        self._arguments = inspect.signature(function).parameters
        self._shown = list(inspect.signature(show).parameters)[1:]

    def __call__(self, **given: Any) -> None:
        # An option that may be repeated, and is not given, is None.
        absent = {name for name, one in self._arguments.items() if one.default == ()}
        given |= {name: () for name in absent if given[name] is None}
        result = self._function(**{name: given[name] for name in self._arguments})
        self._show(result, **{name: given[name] for name in self._shown})

    @cached_property
    def __signature__(self) -> inspect.Signature:
        texts = _texts(self._function)[1]
        mine = [
            _option(
                one.replace(default=self._defaults.get(name, one.default)),
                self._options.get(name),
                texts.get(name),
            )
            for name, one in self._arguments.items()
        ]
        further = [one for one in _keywords(self._show) if one.name not in self._arguments]
        return inspect.Signature(sorted([*mine, *further], key=lambda one: one.name == "quiet"))

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {name: one.annotation for name, one in self.__signature__.parameters.items()}

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return "\n\n".join(filter(None, (_texts(self._function)[0], inspect.getdoc(self._show))))


def _option(
    argument: inspect.Parameter, info: ParameterInfo | None, text: str | None
) -> inspect.Parameter:
    """Return the option, or positional argument, of a command for an argument of its function."""
    positional = argument.kind is argument.POSITIONAL_OR_KEYWORD
    plain: ParameterInfo = typer.Argument() if positional else typer.Option()
    info, kind = copy(info or _OPTIONS.get(argument.name, plain)), _TYPES[argument.annotation]
    is_repeated = str(kind).startswith("list") and isinstance(info, OptionInfo)
    info.help = text and text + " Repeat for several." * is_repeated
    if argument.name in _NAMES:
        kind = str if kind is Path else str | None
    default = None if argument.default == () else argument.default
    return inspect.Parameter(
        argument.name,
        argument.KEYWORD_ONLY,
        annotation=Annotated[kind, info],
        default=Path(default) if isinstance(default, str) and kind is Path else default,
    )


def _keywords(show: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the keywords of a function that prints."""
    result, *keywords = inspect.signature(show).parameters.values()
    # The type of the result is not loaded; nothing reads it.
    types = get_type_hints(show, localns={result.annotation: Any}, include_extras=True)
    return [one.replace(annotation=types[one.name]) for one in keywords]


def _texts(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a function, and of each of its arguments."""
    about, *sections = _SECTION.split((inspect.getdoc(function) or "").replace("`", "'"))
    entries = sections[1] if "Args" in sections[:1] else ""
    texts = {
        name: " ".join(text.split()).partition(" In Python")[0]
        for name, text in _ENTRY.findall(entries)
    }
    for name, text in texts.items():
        if other := _ELSEWHERE.fullmatch(text):
            texts[name] = _texts(attrgetter(other[1])(biphasic))[1][name]
    return about, texts


class Command(TyperCommand):
    """A command that takes texts of its options from the `Args:` of its docstring.

    `{kinds}` in them stands for the kinds of tasks, `{trained_kinds}` for those that are
    fine-tuned. A flag that is off by default has no `--no-` form.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        text, _, entries = (settings.pop("help") or "").partition("\n\nArgs:\n")
        super().__init__(*args, help=text, **settings)
        texts = {name: " ".join(entry.split()) for name, entry in _ENTRY.findall(entries)}
        for option in self.params:
            option.help = option.help or texts.get(option.name)  # type: ignore[attr-defined]
            if option.default is False:
                option.secondary_opts = []

    def get_help(self, ctx: Any) -> str:
        """Return the help, with the registered kinds of tasks."""
        for option in self.params:
            option.help = _KINDS.sub(_kinds, option.help or "")  # type: ignore[attr-defined]
        return super().get_help(ctx)


def _kinds(place: re.Match[str]) -> str:
    from biphasic.tasks.kinds.registry import KINDS  # slow, so only if the help shows it

    names = [name for name, kind in KINDS.items() if kind.facts.is_trained or not place[1]]
    return f"{', '.join(names[:-1])} or {names[-1]}"


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Add a function as a command."""
        return super().command(name, cls=Command, **settings)
