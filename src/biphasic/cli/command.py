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
from biphasic.api.arguments import Range, ranges_of
from biphasic.cli.output import echo
from biphasic.errors import ConfigError

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
    "Sequence[int]": list[int] | None,
    "Sequence[int] | None": list[int] | None,
    "Sequence[float]": list[float] | None,
    "Sequence[float] | None": list[float] | None,
    "Sequence[Path | str]": list[Path],
    "Precision": Literal["fp32", "bf16"],
    "Precision | None": str | None,
    "Convention": Literal["standard", "paper"],
    "Convention | None": Literal["standard", "paper"] | None,
    "Format": str,
    "Mapping[str, float] | None": list[str] | None,
    "Method": str,
    "TuneBy": Literal["objective", "arm", "last"],
    "AnyOptimizer | Mapping[str, Any] | str | None": str | None,
    "ComputeConfig | Mapping[str, Any] | None": list[str] | None,
    "CorpusConfig | Mapping[str, Any] | Path | str": str,
    "CorpusConfig | Mapping[str, Any] | Path | str | None": str | None,
    "FinetuneProtocol | Mapping[str, Any] | Literal['paper'] | None": bool,
    "Recipe | Mapping[str, Any] | Path | str": Path,
    "StudyConfig | Path | str": Path,
    "TaskConfig | Path | str": str,
    "Sequence[TaskConfig | Path | str]": list[str],
}
# Paths that may be the name of a study or the id of a model, which a `Path` would change.
_NAMES = {"adapted", "base", "miner", "model", "pilot", "study", "teacher", "tokenizer"}


def _settings(texts: list[str] | None) -> dict[str, Any]:
    """Return the mapping of options such as `max_tokens_per_pass=4096`."""
    from biphasic.config import parse_overrides

    return parse_overrides(texts or (), option="--compute")


def _shares(texts: list[str] | None) -> dict[str, float]:
    """Return the mapping of options such as `0-5=0.3`."""
    shares: dict[str, float] = {}
    for text in texts or ():
        name, _, share = text.partition("=")
        if name in shares:
            raise ConfigError(f"--group {text}: '{name}' is given more than once")
        try:
            shares[name] = float(share)
        except ValueError:
            raise ConfigError(f"--group {text}: give GROUP=WEIGHT, as 0-5=0.3") from None
    return shares


# How a value of the command line becomes an argument; typer's callbacks cannot return a mapping.
_READ: dict[str, Callable[[Any], Any]] = {
    "ComputeConfig | Mapping[str, Any] | None": _settings,
    "FinetuneProtocol | Mapping[str, Any] | Literal['paper'] | None": (
        lambda is_paper: "paper" if is_paper else None
    ),
    "Mapping[str, float] | None": _shares,
}
# What an option is called and may be, where its argument's name and type do not say it.
_OPTIONS: dict[str, ParameterInfo] = {
    "against": typer.Option(metavar="TASK"),
    "columns": typer.Option("--column"),
    "compute": typer.Option(metavar="KEY=VALUE"),
    "dataset": typer.Option(metavar="NAME"),
    "formats": typer.Option("--format", metavar="ENDING"),
    "learning_rates": typer.Option("--learning-rate"),
    "only": typer.Option(metavar="ID"),
    "out": typer.Option(),
    "overrides": typer.Option("--set", metavar="KEY=VALUE"),
    "pilot": typer.Option(metavar="STUDY"),
    "print_config": typer.Option(help="Print all settings as YAML, with defaults, and exit."),
    "recipe": typer.Argument(metavar="file"),
    "seeds": typer.Option("--seed"),
    "shares": typer.Option("--share"),
    "skip_steps": typer.Option("--skip-step", metavar="N"),
    "tasks": typer.Option("--task", metavar="TASK"),
    "wandb": typer.Option(metavar="PROJECT"),
    "without": typer.Option(metavar="NAME"),
}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_SECTION = re.compile(r"\n\n(Args|Returns|Raises|Example):\n")
_IN_PYTHON = re.compile(r"(^| )In Python\b.*")
_ELSEWHERE = re.compile(r"As in '([\w.]+)'\.")
_KINDS = re.compile(r"\{(trained_)?kinds\}")


class _Call:
    # Typer asks for signature, types and text of a command when it builds it; so a start of the
    # program reads those of one command only.

    def __init__(
        self,
        function: Callable[..., Any],
        show: Callable[..., None],
        defaults: Mapping[str, Any],
        instead: Mapping[str, Callable[..., str]],
        options: Mapping[str, ParameterInfo],
    ) -> None:
        self.__name__ = show.__name__
        self._function, self._show, self._defaults = function, show, defaults
        self._instead, self._options = instead, options
        self._arguments = inspect.signature(function).parameters
        self._shown = list(inspect.signature(show).parameters)[1:]

    def __call__(self, **given: Any) -> None:
        # An option that may be repeated, and is not given, is None.
        absent = {name for name, one in self._arguments.items() if one.default == ()}
        given |= {name: () for name in absent if given.get(name, ()) is None}
        for name, one in self._arguments.items():
            if name in given and one.annotation in _READ:
                given[name] = _READ[one.annotation](given[name])
        for flag, text in self._instead.items():
            if given.pop(flag):
                echo(_call(text, given), nl=False)
                return
        self._show(_call(self._function, given), **{name: given[name] for name in self._shown})

    @cached_property
    def __signature__(self) -> inspect.Signature:
        texts, ranges = _texts(self._function)[1], ranges_of(self._function)
        flags = [
            inspect.Parameter(flag, _KEYWORD, default=False, annotation="bool")
            for flag in self._instead
        ]
        mine = [
            _option(
                one.replace(default=self._defaults.get(one.name, one.default)),
                self._options.get(one.name),
                texts.get(one.name),
                ranges.get(one.name),
            )
            for one in (*self._arguments.values(), *flags)
            if texts.get(one.name) != ""
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
    argument: inspect.Parameter,
    info: ParameterInfo | None,
    text: str | None,
    limits: Range | None,
) -> inspect.Parameter:
    """Return the option, or positional argument, of a command for an argument of its function."""
    positional = argument.kind is argument.POSITIONAL_OR_KEYWORD
    plain: ParameterInfo = typer.Argument() if positional else typer.Option()
    info, kind = copy(info or _OPTIONS.get(argument.name, plain)), _TYPES[argument.annotation]
    if info.parser is not None:
        kind = str | None
    elif argument.name in _NAMES and argument.annotation.startswith("Path"):
        kind = str if kind is Path else str | None
    is_repeated = str(kind).startswith("list") and isinstance(info, OptionInfo)
    if limits is not None:
        info.min, info.max = limits
    if text is not None:
        info.help = text + " Repeat for several." * is_repeated
    default = None if argument.default == () else argument.default
    return inspect.Parameter(
        argument.name,
        _KEYWORD,
        annotation=Annotated[kind, info],
        default=Path(default) if isinstance(default, str) and kind is Path else default,
    )


def _call(function: Callable[..., Result], given: Mapping[str, Any]) -> Result:
    """Call a function with those of its arguments that are given."""
    known = inspect.signature(function).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in known.values())
    return function(**{name: given[name] for name in given if takes_all or name in known})


def _keywords(show: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the keywords of a function that prints."""
    result, *keywords = inspect.signature(show).parameters.values()
    if not keywords:
        return []
    # The type of the result is not loaded; nothing reads it.
    types = get_type_hints(show, localns={result.annotation: Any}, include_extras=True)
    return [one.replace(annotation=types[one.name]) for one in keywords]


def _texts(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a function, and of each of its arguments."""
    about, *sections = _SECTION.split((inspect.getdoc(function) or "").replace("`", "'"))
    entries = sections[1] if "Args" in sections[:1] else ""
    texts = {
        name: _IN_PYTHON.sub("", " ".join(text.split())) for name, text in _ENTRY.findall(entries)
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
    """A group of commands made from functions of the Python interface."""

    def __init__(self, help: str = "", **settings: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Add a function as a command."""
        return super().command(name, cls=Command, **settings)

    def calls(
        self,
        name: str,
        function: Callable[..., Result],
        *,
        defaults: Mapping[str, Any] | None = None,
        instead: Mapping[str, Callable[..., str]] | None = None,
        **options: ParameterInfo,
    ) -> Callable[[Callable[Concatenate[Result, Options], None]], Callable[..., None]]:
        """Add a command that calls a function; the decorated one prints what it returns.

        The command has the function's arguments, with their defaults and the texts of its
        docstring, and the keywords of the decorated function; those that both have go to both. The
        docstring of the decorated function is added to the help. Arguments whose text begins with
        "In Python" are left out. `options` say more of single arguments, `defaults` are those that
        differ from Python; `...` is none. `instead` has flags with which the command prints the
        text of another function, called with the same arguments.
        """

        def add(show: Callable[..., None]) -> Callable[..., None]:
            self.command(name)(_Call(function, show, defaults or {}, instead or {}, options))
            return show

        return add

    def prints(self, name: str, function: Callable[..., Any], **options: Any) -> None:
        """Add a command that prints what a function returns."""
        self.calls(name, function, **options)(lambda result: echo(str(result)))
