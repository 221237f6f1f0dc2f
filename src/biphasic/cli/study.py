"""The `biphasic study` commands: plan, compare, run, tune and report studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biphasic.api.plans import diff, jobs, jobset, plan, register, schema
from biphasic.api.studies import report_study, tune
from biphasic.cli.command import Commands, command
from biphasic.cli.options import (
    AtLeastOne,
    Fresh,
    Overrides,
    PrintConfig,
    Quiet,
    Root,
    StudyFile,
    StudyName,
    Threads,
    Wandb,
    Workers,
    echo,
    echo_answers,
    show_outcome,
    shown,
)
from biphasic.cli.upkeep import (
    study_cancel,
    study_clean,
    study_retry,
    study_status,
    study_verify,
)
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from biphasic.api.results.lists import Findings
    from biphasic.api.results.plans import Registered, StudyJobs, StudyPlan
    from biphasic.api.results.studies import Tuned

study_app = Commands("Plan, compare, run and report studies.")


@study_app.command("plan")
@command(plan)
def _plan(
    planned: StudyPlan,
    *,
    graph: Annotated[
        Path | None, typer.Option(help="Write a graph of arms and shared states as SVG.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON, including states.")
    ] = False,
) -> None:
    from biphasic.files import write_text

    if graph is not None and (graph.suffix != ".svg" or not graph.parent.is_dir()):
        raise ConfigError(f"--graph {graph}: give a .svg file in an existing folder")
    echo(json.dumps(planned.to_json(), indent=1) if as_json else str(planned))
    if graph is not None:
        write_text(graph, planned.drawing())
        echo(f"graph: {shown(graph.resolve())}", err=as_json)


@study_app.command("diff")
@command(diff)
def _diff(difference: Findings) -> None:
    echo(str(difference))


@study_app.command("schema")
@command(schema)
def _schema(properties: dict[str, Any]) -> None:
    echo(json.dumps(properties, indent=1))


@study_app.command("run")
def study_run(
    file: StudyFile,
    root: Root = Path("runs"),
    workers: Workers = None,
    threads: Threads = 1,
    per_gpu: AtLeastOne = 1,
    tries: AtLeastOne = 3,
    site: Path | None = None,
    fresh: Fresh = False,
    overrides: Overrides = None,
    wandb: Wandb = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Run the missing jobs of a study, and write its report.

    Prints the table of results.

    Args:
        per_gpu: Jobs per GPU; they must fit into its memory.
        tries: Attempts per job after transient failures (process killed, disk full).
        site: Site file (YAML) of a cluster to run on (see 'biphasic site'), or an
            executor of your own.
        overrides: Override a setting, e.g. recipe.model=micro.
    """
    from biphasic.study.api import run_study
    from biphasic.study.spec.load import load_study
    from biphasic.study.spec.resolved import study_text

    if print_config:
        echo(study_text(load_study(file, overrides or ())), nl=False)
        return
    outcome = run_study(
        file,
        root=root,
        overrides=overrides or (),
        workers=workers,
        threads=threads,
        per_gpu=per_gpu,
        tries=tries,
        site=site,
        fresh=fresh,
        wandb=wandb,
        quiet=quiet,
    )
    show_outcome(outcome)


@study_app.command("register")
@command(register)
def _register(
    registered: Registered,
    *,
    markdown: Annotated[
        bool, typer.Option(help="Print the page of the registration, to commit.")
    ] = False,
) -> None:
    echo(registered.to_markdown() if markdown else str(registered), nl=not markdown)


@study_app.command("jobs")
@command(jobs)
def _jobs(missing: StudyJobs) -> None:
    """Prints one line per job: identity, kind, processes, the job it waits for (- for none, * for
    all), label.
    """  # noqa: D205 - a paragraph of the help
    for line in missing.lines():
        echo(line)


@study_app.command("jobset")
@command(jobset)
def _jobset(manifest: dict[str, Any] | None) -> None:
    import yaml

    if manifest is None:
        echo("nothing to run", err=True)
        return
    echo(yaml.safe_dump(manifest, sort_keys=False), nl=False)


@study_app.command("report")
def study_report(
    study: StudyName = None, root: Root = Path("runs"), markdown: bool = False
) -> None:
    """Write a study's report from its records, unless it is up to date.

    Args:
        markdown: Print the answers to the study's questions as Markdown instead, to commit.
    """
    import csv

    from biphasic.amounts import count
    from biphasic.study.find import find_study

    folder, _ = find_study(study, root)
    if markdown:
        from biphasic.analysis.page.markdown import answers_page
        from biphasic.analysis.records import load_study

        echo(answers_page(load_study(folder, folder.parent / "store")), nl=False)
        return
    report = report_study(folder)
    echo_answers(report)
    echo(f"report: {shown(report)}")
    problems = report.with_name("problems.csv")
    with problems.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["kind"] == "code":
            echo(row["text"], err=True)
    if rows:
        told = count(len(rows), "problem")
        echo(f"{told}, listed in the report and in {shown(problems)}", err=True)


def _rates(text: str) -> tuple[float, ...]:
    """Parse a list of rates such as `5e-4,1e-3,2e-3`."""
    from biphasic.study.tune.search import parse_rates

    return parse_rates(text)


@command(tune, rates=typer.Option(parser=_rates, metavar="RATE,RATE,..."))
def _tune(tuned: Tuned) -> None:
    echo(str(tuned))


study_app.command("status")(study_status)
study_app.command("cancel")(study_cancel)
study_app.command("retry")(study_retry)
study_app.command("verify")(study_verify)
study_app.command("clean")(study_clean)
study_app.command("tune")(_tune)
