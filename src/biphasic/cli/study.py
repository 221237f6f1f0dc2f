"""The `biphasic study` commands: plan, compare, run, watch, report and clean studies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.api.plans import diff, jobs, plan, register, schema
from biphasic.api.studies import cancel, clean, report_study, retry, run_study, status, tune, verify
from biphasic.cli.command import Commands
from biphasic.cli.output import echo, echo_answers, show_outcome, shown
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from biphasic.study.plan.summary import StudyPlan
    from biphasic.study.run.register import Registered
    from biphasic.study.run.run import Retried, StudyOutcome
    from biphasic.study.status import StudyStatus
    from biphasic.study.verify import Verification

_REFRESH_SECONDS = 1.0

study_app = Commands("Plan, compare, run and report studies.")


def _mermaid(text: str) -> Path:
    """Parse the path of a graph; an invalid one is refused before the plan, which takes time."""
    path = Path(text)
    if path.suffix != ".mmd" or not path.parent.is_dir():
        raise ConfigError(f"--graph {path}: give a .mmd file in an existing folder")
    return path


@study_app.calls("plan", plan)
def _plan(
    planned: StudyPlan,
    *,
    graph: Annotated[
        Path | None,
        typer.Option(
            parser=_mermaid, metavar="<path>", help="Write the graph of states as Mermaid."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON, including states.")
    ] = False,
) -> None:
    from biphasic.files import write_text

    echo(json.dumps(planned.to_json(), indent=1) if as_json else str(planned))
    if graph is not None:
        write_text(graph, planned.graph())
        echo(f"graph: {shown(graph.resolve())}", err=as_json)


study_app.prints("diff", diff)


study_app.prints("schema", schema, lambda properties: json.dumps(properties, indent=1))


@study_app.calls("run", run_study)
def _run(outcome: StudyOutcome) -> None:
    """Prints the table of results."""
    show_outcome(outcome)


@study_app.calls("register", register)
def _register(
    registered: Registered,
    *,
    markdown: Annotated[
        bool, typer.Option(help="Print the page of the registration, to commit.")
    ] = False,
) -> None:
    echo(registered.to_markdown() if markdown else str(registered), nl=not markdown)


study_app.prints(
    "jobs",
    jobs,
    about="Prints one line per job: identity, kind, processes, the job it waits for (- for none, "
    "* for all), label.",
)


@study_app.calls("report", report_study)
def _report(report: Path) -> None:
    import csv

    from biphasic.amounts import count

    echo_answers(report)
    echo(f"report: {shown(report)}")
    problems = report.with_name("problems.csv")
    with problems.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["kind"] == "code":
            echo(row["text"], err=True)
    if rows:
        total = count(len(rows), "problem")
        echo(f"{total}, listed in the report and in {shown(problems)}", err=True)


@study_app.calls("status", status)
def _status(
    found: StudyStatus,
    *,
    study: str | None,
    root: Path,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON, once.")] = False,
    watch: Annotated[
        bool | None,
        typer.Option(help="Watch until the study ends. Default: on a terminal, if it is running."),
    ] = None,
) -> None:
    if as_json:
        echo(found.model_dump_json(indent=1))
        return
    stays = sys.stdout.isatty() if watch is None else watch
    if stays and found.runner is not None:
        found = _watch(found, study, root)
    echo(str(found))


@study_app.calls("cancel", cancel)
def _cancel(_: bool) -> None:
    pass  # `cancel` says what happens


@study_app.calls("retry", retry)
def _retry(retried: Retried) -> None:
    for request in retried.requests:
        echo(request)
    if retried.outcome is not None:
        show_outcome(retried.outcome)


@study_app.calls("verify", verify)
def _verify(verified: Verification) -> None:
    """The exit code is 1 if any file is damaged."""
    echo(str(verified))
    for problem in verified.damage:
        echo(f"damaged: {problem}", err=True)
    if verified.damage:
        raise typer.Exit(1)


study_app.prints("clean", clean)
study_app.prints("tune", tune)


def _watch(found: StudyStatus, study: str | None, root: Path) -> StudyStatus:
    """Show a running study until it ends or Ctrl-C; return its last status."""
    import time
    from contextlib import suppress

    # Ctrl-C stops watching; the study keeps running.
    with suppress(KeyboardInterrupt), _screen() as show:
        while found.runner is not None:
            show(found)
            time.sleep(_REFRESH_SECONDS)
            found = status(study, root=root)
    return found


@contextmanager
def _screen() -> Iterator[Callable[[StudyStatus], None]]:
    """Yield a function that shows a status: in place on a terminal, else a line per change."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from biphasic.study.status import short_line

    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda status: live.update(Text(str(status)), refresh=True)
        return
    printed = ""

    def show(status: StudyStatus) -> None:
        nonlocal printed
        if (line := short_line(status)) != printed:
            echo(line)
            printed = line

    yield show
