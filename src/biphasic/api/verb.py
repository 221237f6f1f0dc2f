"""Verbs: a class has the options of a public function and of its command, and does its work.

A field is an option: its annotation has the type, the docstring below it says what it means, with
unit and default, and `option` has its range and how the command spells it. From the fields come
the signature and the checks of the function, its `Args:`, and the command with its help. They are
no fields of pydantic, which takes longer to import than the help of all commands takes.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, dataclass_transform

from biphasic.amounts import MOST_BITS
from biphasic.docstrings import field_docstrings
from biphasic.errors import ConfigError
from biphasic.execution.slots import check_cores
from biphasic.files import expanded
from biphasic.model.compute.device import compute_threads, computing_on, parse_device
from biphasic.store import DEFAULT_ROOT, store_of

if TYPE_CHECKING:
    from rich.console import Console

Options = ParamSpec("Options")
Result_co = TypeVar("Result_co", covariant=True)
# Of a plain type, what it takes and what a message calls it. A path is read as its text.
_PLAIN: Mapping[str, tuple[Any, str]] = {
    "Path": (str | PathLike, "a path"),
    "bool": (bool, "True or False"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str | Path, "a text"),
}
_SECTION = re.compile(r"\n\n(?=(?:Returns|Yields|Raises|Example):\n)")


@dataclass(frozen=True, slots=True)
class Spelling:
    """Attributes of a field beside its annotation.

    Attributes:
        default: Default; `...` for none.
        least: The least value, of a number or of each number of a list.
        most: The greatest value.
        choices: All values.
        flag: Name on the command line; None: that of the field.
        metavar: Stands for the value in the help.
        env: Environment variable with a default.
        type: Type that the command line reads, if it is another one; None: no option has this.
        parse: Makes a value of a text, before the command runs.
        convert: Converts the parsed value to the field's.
        instead: Default of the command, if Python has another.
        is_required: Whether a command must be given it, though Python has a default.
    """

    default: Any = ...
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    flag: str | None = None
    metavar: str | None = None
    env: str | None = None
    type: Any = ...
    parse: Callable[[str], Any] | None = None
    convert: Callable[[Any], Any] | None = None
    instead: Any = ...
    is_required: bool = False


def option(**spelling: Any) -> Any:
    """Return the value of a field with the attributes of a `Spelling`."""
    return Spelling(**spelling)


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
class Verb:
    """Options of a call, which are checked when they are given; a call of it does the work.

    A ConfigError names the first wrong one: a value of another type, a number outside its range,
    None for what has no default, or a text where a list belongs.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        try:
            bound = signature_of(type(self)).bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{function_name(type(self))}: {error}") from None
        fields = fields_of(type(self))
        for name, value in bound.arguments.items():
            _check(name, value, fields[name])
            bound.arguments[name] = _as_read(value, fields[name])
        bound.apply_defaults()
        vars(self).update(bound.arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: options do not change")

    def values(self) -> dict[str, Any]:
        """Return the options by name."""
        return {name: getattr(self, name) for name in fields_of(type(self))}


@dataclass(frozen=True, slots=True)
class Field:
    """An option of a verb; `type` is its annotation."""

    type: str
    is_positional: bool
    spelling: Spelling

    @property
    def is_list(self) -> bool:
        """True if it has several values."""
        return self.type.startswith("Sequence[")

    @property
    def parts(self) -> set[str]:
        """The types of a value, or of those of a list, without None."""
        each = self.type.removesuffix(" | None").removeprefix("Sequence[").removesuffix("]")
        return {*each.split(" | ")}


@cache
def fields_of(verb: type[Verb]) -> Mapping[str, Field]:
    """Return the fields of a verb: by position those of its bases first, by keyword its own."""
    fields: dict[str, Field] = {}
    positions: list[str] = []
    for owner in verb.__mro__:
        names = list(inspect.get_annotations(owner).items())
        split = names.index(("_", "KW_ONLY")) if ("_", "KW_ONLY") in names else len(names)
        positions[:0] = [name for name, _ in names[:split] if name not in positions]
        for place, (name, annotation) in enumerate(names):
            if place != split:
                value = vars(owner).get(name, ...)
                spelling = value if isinstance(value, Spelling) else Spelling(default=value)
                fields.setdefault(name, Field(annotation, place < split, spelling))
    return {name: fields[name] for name in dict.fromkeys((*positions, *fields))}


@cache
def signature_of(verb: type[Verb]) -> inspect.Signature:
    """Return the signature of the function of a verb."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                kinds[field.is_positional],
                annotation=field.type,
                default=field.spelling.default
                if field.spelling.default is not ...
                else inspect.Parameter.empty,
            )
            for name, field in fields_of(verb).items()
        ],
        return_annotation=inspect.get_annotations(verb.__call__).get("return"),  # type: ignore[attr-defined]
    )


class _Runs(Protocol[Result_co]):
    def __call__(self) -> Result_co: ...


class Function(Generic[Options, Result_co]):
    """The public function of a verb: builds the verb from the arguments, and runs it."""

    def __init__(self, verb: Callable[Options, _Runs[Result_co]]) -> None:
        self.verb: Any = verb
        self.__name__ = self.__qualname__ = function_name(verb)
        self.__module__ = verb.__module__

    def __get__(self, *_: object) -> Function[Options, Result_co]:
        """Return the function itself; with this, `help` shows it as one, with its signature."""
        return self

    def __call__(self, *args: Options.args, **given: Options.kwargs) -> Result_co:
        """Run the verb with these options."""
        return self.verb(*args, **given)()

    @cached_property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.verb)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        head, *sections = _SECTION.split(inspect.getdoc(self.verb) or "")
        texts = texts_of(self.verb)
        entries = "\n".join(f"    {name}: {texts[name]}" for name in fields_of(self.verb))
        return "\n\n".join([head, *([f"Args:\n{entries}"] if entries else []), *sections])


def function_name(verb: Any) -> str:
    """Return the name of the function of a verb: `run_study` of `RunStudy`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", verb.__name__).lower()


def about(verb: type[Verb]) -> str:
    """Return what the docstring of a verb says before its sections."""
    return _SECTION.split(inspect.getdoc(verb) or "")[0]


def texts_of(verb: type[Verb]) -> dict[str, str]:
    """Return what each option means."""
    texts = field_docstrings(verb, Verb)
    return {name: " ".join(text.split()) for name, text in texts.items()}


def _check(name: str, value: object, field: Field) -> None:
    name = name.removesuffix("_")  # of `as_`, which is `--as` on the command line
    if value is None and field.spelling.default is ... and "None" not in field.type:
        raise ConfigError(f"{name}: is None; give a value")
    # A text would be read as its letters.
    if field.is_list and isinstance(value, str | Path | int | float):
        one = value if isinstance(value, int | float) else f"'{value}'"
        raise ConfigError(f"{name}: give a list, as [{one}]")
    if field.is_list and not isinstance(value, Sequence | None):
        raise ConfigError(f"{name}: give a list, not a {type(value).__name__}")
    if (choices := field.spelling.choices) and value is not None and value not in choices:
        allowed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise ConfigError(f"{name}: unknown value '{value}'; give {allowed}")
    for one in () if value is None else _values(value):
        if field.parts <= _PLAIN.keys():  # other types are checked where they are read
            _check_type(name, one, field.parts)
        if isinstance(one, int | float):
            _check_range(name, one, field.spelling)


def _check_type(name: str, value: object, parts: Collection[str]) -> None:
    is_of_type = any(isinstance(value, _PLAIN[part][0]) for part in parts)
    if not is_of_type or (isinstance(value, bool) and "bool" not in parts):
        expected = next(text for part, (_, text) in _PLAIN.items() if part in parts)
        raise ConfigError(f"{name}: {value!r}; give {expected}")


def _check_range(name: str, number: float, spelling: Spelling) -> None:
    if isinstance(number, int) and number.bit_length() > MOST_BITS:
        raise ConfigError(f"{name}: a number with too many digits")
    least, most = spelling.least, spelling.most
    if least is not None and not (
        math.isfinite(number) and least <= number <= (number if most is None else most)
    ):
        allowed = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
        raise ConfigError(f"{name}: {number:g}; give {allowed}")


def _as_read(value: Any, field: Field) -> Any:
    """Return a value with paths as text where text is read, and `~` expanded where a path is."""
    is_path = "Path" in field.type

    def read(one: Any) -> Any:
        if isinstance(one, Path) and not is_path:
            return str(one)
        is_of_home = is_path and isinstance(one, str | Path) and str(one).startswith("~")
        return expanded(one) if is_of_home else one

    if field.is_list and isinstance(value, list | tuple):
        several = [*map(read, value)]
        return tuple(several) if isinstance(value, tuple) else several
    return read(value)


def _values(value: object) -> Sequence[Any]:
    """Return a value, or those of a list."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


# Options of several verbs.
class Quiet(Verb):
    """How much is printed."""

    _: KW_ONLY
    quiet: bool = False
    """Show results and errors only."""

    @cached_property
    def console(self) -> Console:
        """Where progress is shown."""
        from biphasic.progress import progress_console

        return progress_console(quiet=self.quiet)

    @cached_property
    def say(self) -> Callable[[str], None]:
        """Print a text beside the progress."""
        from biphasic.progress import say_on

        return say_on(self.console)


class Root(Verb):
    """The store."""

    _: KW_ONLY
    root: Path | str = DEFAULT_ROOT
    """Folder of studies and their shared store."""

    @property
    def root_folder(self) -> Path:
        """The folder of studies."""
        return expanded(self.root)

    @property
    def store(self) -> Path:
        """The store of the studies."""
        return store_of(self.root)


class Device(Verb):
    """The compute device."""

    _: KW_ONLY
    device: str | None = None
    """Compute device: cpu, cuda or cuda:N. Default: the first GPU, else the CPU."""


class Computing(Device):
    """The compute device and threads of this process."""

    _: KW_ONLY
    threads: int | None = option(default=None, least=1)
    """Compute threads on the CPU. Default: one per core; fewer are faster where other programs run.
    They may change the last bits of results."""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute on the device, with the threads."""
        check_cores(num_threads=self.threads or 1)
        with computing_on(parse_device(self.device)), compute_threads(self.threads):
            yield


class Revision(Verb):
    """A model on the hub."""

    _: KW_ONLY
    revision: str | None = None
    """Revision of a model on the hub."""


class Copies(Verb):
    """Local data of the hub."""

    _: KW_ONLY
    copies: Path | str | None = None
    """Folder with local copies of hub datasets, as OWNER/NAME."""


class Overrides(Verb):
    """Changes of a study file."""

    _: KW_ONLY
    overrides: Sequence[str] = option(default=(), flag="--set", metavar="KEY=VALUE")
    """Override a setting, e.g. recipe.model=micro."""


class Logged(Verb):
    """How states that exist are treated, and where training is logged."""

    _: KW_ONLY
    fresh: bool = False
    """Delete the states and results that were made by other code, and make them again."""
    wandb: str | None = option(default=None, metavar="PROJECT")
    """Log training to a Weights & Biases project; offline unless WANDB_MODE is set. Needs the extra
    'wandb'."""
