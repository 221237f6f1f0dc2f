"""Python processes that are forked from this one, which has imported torch and transformers.

A fresh interpreter spends five to ten seconds of CPU on imports; a fork has them. All else is as
with `subprocess.Popen`: a child of its own, with its own pipes, environment and signals, that can
be killed and waited for. Processes that it starts are forked in turn. An isolated one (`-I`, or
started by `nice`) has not imported biphasic, and neither have those that it starts.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest

_Popen = subprocess.Popen
_STANDARD = 3  # input, output, error
_LIGHT = "biphasic.data.tokens.shards"  # imports next to nothing
_LONGEST_SECONDS = 480  # no process of a test takes as long
_isolates = False


@contextmanager
def forking() -> Iterator[None]:
    """Fork Python processes from this one, whoever starts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", WarmPopen)
        yield


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leave the drawings of reports empty, in forks too: drawing takes most of their time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    from biphasic.analysis.figures.draw import to_svg

    empty = Figure(figsize=(1, 1))
    svg = to_svg(empty, name="empty").encode()
    patch.setattr(FigureCanvasAgg, "print_png", lambda _, file, **__: file.write(b"png"))
    patch.setattr(FigureCanvasSVG, "print_svg", lambda _, file, **__: file.write(svg))
    for module in ("draw", "tuning"):
        patch.setattr(f"biphasic.analysis.figures.{module}.draw", lambda *_, **__: empty)


def render_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leave the pages of reports empty, in forks too; the tables beside them stay."""
    draw_nothing(patch)
    patch.setattr("biphasic.analysis.page.render.render", lambda *_, **__: "<!doctype html>\n")


def probe_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leave out the probes of models, in forks too; they take longer than a few steps."""
    for module in (
        "model.contract", "training.run", "tasks.use", "export.check"
    ):  # fmt: skip
        patch.setattr(f"biphasic.{module}.check_contract", lambda *_, **__: None)


class WarmPopen(_Popen):  # type: ignore[type-arg]
    """`subprocess.Popen` that forks where it is to start this Python, and else does as ever."""

    def __init__(self, args: Any, *others: Any, **how: Any) -> None:
        program = None if others or "pass_fds" in how else _program_of(args)
        if program is not None and is_ready():
            how["preexec_fn"] = partial(become, program, how.get("env"))
        super().__init__(args, *others, **how)


def _program_of(args: Any) -> Callable[[], object] | None:
    """Return what `python [-u] [-I] [-P] (-m module | -c code | file) ...` would run."""
    given = [] if isinstance(args, str) else [str(each) for each in args]
    is_isolated = given[:1] == ["nice"] or "-I" in given
    if is_isolated and sys.executable in given:
        given = given[given.index(sys.executable) :]
    if given[:1] != [sys.executable]:
        return None
    run = partial(_run, is_isolated=is_isolated)
    kind, *rest = [each for each in given[1:] if each not in {"-u", "-I", "-P"}]
    if kind == "-m" and rest[0] != _LIGHT:
        # pydantic looks types of the program up in `sys.modules`.
        start = partial(runpy.run_module, rest[0], run_name="__main__", alter_sys=True)
        return partial(run, rest, start)
    if kind == "-c":
        code = compile(rest[0], "<string>", "exec")
        return partial(run, ["-c", *rest[1:]], lambda: exec(code, {"__name__": "__main__"}))  # noqa: S102
    if kind.endswith(".py"):
        return partial(run, [kind, *rest], lambda: runpy.run_path(kind, run_name="__main__"))
    return None


@cache
def is_ready() -> bool:
    """Import all that forks need; tell whether they may be forked, which CUDA forbids."""
    import torch

    import biphasic

    if torch.cuda.is_available():
        return False
    modules = [found.name for found in pkgutil.walk_packages(biphasic.__path__, "biphasic.")]
    modules.remove("biphasic.export.reload")  # a program that stands alone
    modules.remove("biphasic.evaluation.benchmark")  # imports mteb, for seconds
    for name in modules:
        importlib.import_module(name)
    return True


def _run(argv: list[str], program: Callable[[], object], *, is_isolated: bool) -> None:
    global _isolates  # noqa: PLW0603 - of this process, for those that it starts
    sys.argv = argv
    _isolates = is_isolated or _isolates
    if _isolates:
        _forget_package()
    program()


def _forget_package() -> None:
    """Remove biphasic, and the attention that transformers has from it."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    for name in [name for name in sys.modules if name.partition(".")[0] == "biphasic"]:
        del sys.modules[name]
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop("biphasic", None)


def become(program: Callable[[], None], environment: dict[str, str] | None) -> None:
    """Run a program in place of what was to be executed; called in the forked child."""
    code: object = 1
    gc.freeze()  # what the parent has is never looked through, which would copy all its memory
    try:
        _forget_parent(environment)
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter does it
        traceback.print_exc()
    finally:
        if isinstance(code, str):
            sys.stderr.write(code + "\n")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else code is not None)


def _forget_parent(environment: dict[str, str] | None) -> None:
    """Let go of the parent's files, signals and warnings, as a fresh process has none of them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        # Not closed: an object of the parent may yet close the number, which must not be ours.
        if number >= _STANDARD and number != nothing and _is_open(number):
            os.dup2(nothing, number, inheritable=False)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        for number, mode in enumerate(("r", "w", "w"))
    )
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does when it starts
        signal.signal(number, signal.SIG_IGN)
    end_with_stacks(_LONGEST_SECONDS)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    # tokenizers would wait for threads of the parent's pool, which a fork does not have.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if torch := sys.modules.get("torch"):
        # torch makes its pool of threads anew at its first use after a fork. If two threads were
        # the first, one of them would find none ("Invalid thread pool").
        torch.set_num_threads(torch.get_num_threads())
    warnings.resetwarnings()
    warnings.simplefilter("ignore")


def end_with_stacks(seconds: int) -> None:
    """End this process after a time, with the stacks of all its threads in stderr."""
    # By signals, as faulthandler's own timer is a thread: a fork would wait for it without end.
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGALRM, sys.stderr, chain=True)
    signal.alarm(seconds)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
