"""Commands made from verbs, the classes with the options of public functions, and printing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    get_type_hints,
)

import typer
from typer.core import TyperCommand
from typer.models import CommandInfo, ParameterInfo

from biphasic.api.verb import Field, Function, about, fields_of, texts_of
from biphasic.errors import visible
from biphasic.shown import shown_path as shown

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.study.run.run import StudyOutcome

INTERRUPTED = 130  # exit code of an interrupted command, as in shells
_WIDEST = 10_000  # characters; no table is wider


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text with terminal control characters escaped."""
    typer.echo(visible(text), err=err, nl=nl)


def show_outcome(outcome: StudyOutcome) -> None:
    """Print a study's table and failures; exit with code 1 if a job failed."""
    from biphasic.analysis.tables.results import format_table

    if outcome.is_stopped:
        echo(f"report: {shown(outcome.report)}")
        raise typer.Exit(INTERRUPTED)  # main() prints the message
    table = format_table(outcome.records())
    if outcome.num_executed == 0 and not outcome.failures:
        echo("all finished; nothing to do")
    print_table(table)
    echo_answers(outcome.report)
    echo(f"report: {shown(outcome.report)}")
    if outcome.failures:
        for failure in outcome.failures:
            echo(f"failed: {failure}", err=True)
        raise typer.Exit(1)


def echo_answers(report: Path) -> None:
    """Print the answer to each question of a study, from the file beside its report."""
    import csv

    from biphasic.amounts import level_within

    path = report.with_name("questions.csv")
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        answers = {row["question"]: row["answer"] for row in rows}
        margins = {row["question"]: row.get("margin", "") for row in rows}
        lacking = {row["question"] for row in rows if row["complete"] == "no"}
        for question, answer in answers.items():
            is_provisional = question in lacking and answer != "no data"
            why = ", provisional: runs are missing or diverged" * is_provisional
            within = level_within(float(margins[question])) if "level" in answer else ""
            echo(f"{question}: {answer.replace('level', within)}{why}")


def print_table(table: Table) -> None:
    """Print a table; its numbers are neither wrapped nor cut, whatever the width of a terminal."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    needed = Measurement.get(console, console.options.update(width=_WIDEST), table)
    if not console.is_terminal:  # files and pipes have no width
        console.width = needed.maximum
    elif needed.minimum > console.width:  # rich would cut the last columns
        console.width = needed.minimum
    console.print(table)


Result = TypeVar("Result")
Options = ParamSpec("Options")

# How the command line reads a field, by its annotation.
_TYPES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "Path | str": Path,
}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_IN_PYTHON = re.compile(r"(^| )In Python\b.*")
_KINDS = re.compile(r"\{(trained_)?kinds\}")
_TEXTS = {
    "print_config": "Print all settings as YAML, with defaults, and exit.",
    "markdown": "Print the answers to the study's questions as Markdown instead, to commit.",
}


class _Call:
    # Typer asks for signature, types and text of a command when it builds it; so a start of the
    # program reads those of one command only.

    def __init__(self, function: Function[..., Any], show: Callable[..., None]) -> None:
        self.__name__ = show.__name__
        self._verb, self._show = function.verb, show
        self._instead = [flag for flag in _TEXTS if hasattr(self._verb, flag)]

    def __call__(self, **given: Any) -> None:
        own: dict[str, Any] = {}
        for name, field in fields_of(self._verb).items():
            if name in given:
                convert, value = field.spelling.convert, given[name]
                # An option that may be repeated, and is not given, is None.
                if convert is not None:
                    own[name] = convert(value)
                elif value is not None or field.spelling.default != ():
                    own[name] = value
        verb = self._verb(**own)
        for flag in self._instead:
            if given[flag]:
                echo(getattr(verb, flag)(), nl=False)
                return
        self._show(verb(), **{name: given[name] for name in self._shown})

    @cached_property
    def _shown(self) -> list[str]:
        return list(inspect.signature(self._show).parameters)[1:]

    @cached_property
    def __signature__(self) -> inspect.Signature:
        texts, fields = texts_of(self._verb), fields_of(self._verb)
        own = [
            _parameter(name, field, texts[name])
            for name, field in fields.items()
            if field.spelling.type is not None
        ]
        for flag in self._instead:
            option = Annotated[bool, typer.Option(help=_TEXTS[flag])]
            own.append(inspect.Parameter(flag, _KEYWORD, default=False, annotation=option))
        further = [keyword for keyword in _keywords(self._show) if keyword.name not in fields]
        return inspect.Signature(
            sorted([*own, *further], key=lambda keyword: keyword.name == "quiet")
        )

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {
            name: parameter.annotation for name, parameter in self.__signature__.parameters.items()
        }

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        parts = (about(self._verb).replace("`", "'"), inspect.getdoc(self._show))
        return "\n\n".join(filter(None, parts))


def _parameter(name: str, field: Field, text: str) -> inspect.Parameter:
    """Return the option, or positional argument, of a command for a field of its verb."""
    spelling, text = field.spelling, _IN_PYTHON.sub("", text).replace("`", "'")
    default = spelling.default if spelling.instead is ... else spelling.instead
    if default == ():
        default = None
    elif spelling.is_required:
        default = ...
    kind = str if spelling.parse else spelling.type
    if kind is ... and spelling.choices:
        kind = Literal[spelling.choices]  # type: ignore[valid-type]
    elif kind is ...:
        bare = field.type.removesuffix(" | None")
        item = re.fullmatch(r"Sequence\[(.*)\]", bare)
        kind = list[_TYPES[item[1]]] if item else _TYPES[bare]
    if isinstance(default, str) and kind is Path:
        default = Path(default)
    flags = [] if spelling.flag is None else [spelling.flag]
    info: ParameterInfo
    if field.is_positional and not flags:
        info = typer.Argument()
    else:
        info = typer.Option(*flags)
        text += " Repeat for several." * str(kind).startswith("list")
    info.help, info.metavar, info.envvar = text, spelling.metavar, spelling.env
    info.min, info.max, info.parser = spelling.least, spelling.most, spelling.parse
    annotation = Annotated[kind | None if default is None else kind, info]
    return inspect.Parameter(name, _KEYWORD, annotation=annotation, default=default)


def _keywords(show: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the keywords of a function that prints."""
    result, *keywords = inspect.signature(show).parameters.values()
    if not keywords:
        return []
    # The type of the result is not loaded; nothing reads it.
    types = get_type_hints(show, localns={result.annotation: Any}, include_extras=True)
    return [keyword.replace(annotation=types[keyword.name]) for keyword in keywords]


def summary_of(info: CommandInfo) -> CommandInfo:
    """Return a command with its name and text alone, for a list of commands."""
    return CommandInfo(info.name, cls=info.cls, help=inspect.getdoc(info.callback), callback=_none)


def _none() -> None:
    raise NotImplementedError


class Command(TyperCommand):
    """A command with the kinds of tasks in its help.

    `{kinds}` in texts stands for the kinds of tasks, `{trained_kinds}` for those that are
    fine-tuned. A flag that is off by default has no `--no-` form.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for option in self.params:
            if option.default is False:
                option.secondary_opts = []

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; the error of a value names it."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            errors = getattr(error.__cause__, "errors", list)()  # pydantic's, of newer typers
            if errors and (refused := repr(errors[0]["input"])) not in error.message:
                error.message += f", not {refused}"
            if error.message and getattr(error.param, "multiple", False):
                error.message += "; repeat the option for several"
            raise

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
    """A group of commands made from verbs."""

    def __init__(self, help: str = "", **settings: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Add a function as a command."""
        return super().command(name, cls=Command, **settings)

    def calls(
        self, name: str, function: Function[..., Result]
    ) -> Callable[[Callable[Concatenate[Result, Options], None]], Callable[..., None]]:
        """Add a command that calls a public function; the decorated one prints what it returns.

        The command has the options of the function's verb, and the keywords of the decorated
        function; those that both have go to both. The docstring of the decorated function is added
        to the help. A verb with a method `print_config` or `markdown` has a flag with which its
        text is printed instead.
        """

        def add(show: Callable[..., None]) -> Callable[..., None]:
            self.command(name)(_Call(function, show))
            return show

        return add

    def prints(
        self,
        name: str,
        function: Function[..., Result],
        text: Callable[[Result], str] = str,
        *,
        notes: bool = False,
        about: str = "",
    ) -> None:
        """Add a command that prints what a function returns, as `text`, and maybe its notes.

        `about` is added to the help. An empty text is not printed.
        """

        def show(result: Any) -> None:
            for note in result.notes if notes else ():
                echo(note, err=True)
            if line := text(result):
                echo(line)

        show.__doc__ = about
        self.calls(name, function)(show)
