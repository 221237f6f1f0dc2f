"""The `biphasic study` commands: plan, compare, run, tune and report studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from biphasic.cli.options import (
    AsJson,
    AtLeastOne,
    Commands,
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
    study_status_command,
    study_verify,
)
from biphasic.errors import ConfigError

study_app = Commands("Plan, compare, run and report studies.")


@study_app.command("plan")
def study_plan(
    file: StudyFile,
    root: Root = Path("runs"),
    graph: Path | None = None,
    as_json: AsJson = False,
    rate: Annotated[float | None, typer.Option(min=1.0)] = None,
    example_tokens: AtLeastOne = 256,
    overrides: Overrides = None,
) -> None:
    """Show what a study will train, share and skip, without running it.

    Args:
        graph: Write a graph of arms and shared states as SVG.
        as_json: Print the plan as JSON, including states.
        rate: Sustained FLOP/s per device, to estimate device-hours. Default: this machine's,
            measured for a second.
        example_tokens: Assumed mean tokens per fine-tuning example.
        overrides: Override a setting, e.g. recipe.model=micro.
    """
    import json

    from biphasic.api.plans import plan
    from biphasic.files import write_text

    if graph is not None and (graph.suffix != ".svg" or not graph.parent.is_dir()):
        raise ConfigError(f"--graph {graph}: give a .svg file in an existing folder")
    planned = plan(
        file, root=root, rate=rate, example_tokens=example_tokens, overrides=overrides or ()
    )
    echo(json.dumps(planned.to_json(), indent=1) if as_json else str(planned))
    if graph is not None:
        write_text(graph, planned.drawing())
        echo(f"graph: {shown(graph.resolve())}", err=as_json)


@study_app.command("diff")
def study_diff(first: StudyFile, second: Path, root: Root = Path("runs")) -> None:
    """Show how the plans of two studies differ, and why.

    Args:
        second: Study file to compare with.
    """
    from biphasic.api.plans import diff

    echo(str(diff(first, second, root=root)))


@study_app.command("schema")
def study_schema_command() -> None:
    """Print the JSON schema of study files, for editors."""
    import json

    from biphasic.api.plans import schema

    echo(json.dumps(schema(), indent=1))


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
        site: Site file (YAML) of a cluster to run on; see 'biphasic site'.
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
def study_register(
    file: StudyFile,
    root: Root = Path("runs"),
    spread: Annotated[float | None, typer.Option(min=0.001)] = None,
    pilot: Annotated[str | None, typer.Option(metavar="STUDY")] = None,
    markdown: bool = False,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Fix a study's questions, arms, tasks, grid and seeds under a hash, before its first score.

    Registers again, as a dated amendment, if the study has changed since.

    Args:
        spread: Assumed standard deviation of an arm's score over runs, in percentage points.
        pilot: Finished study whose spreads over runs are assumed.
        markdown: Print the page of the registration, to commit.
        overrides: Override a setting, e.g. recipe.model=micro.
    """
    from biphasic.api.plans import register

    registered = register(
        file, root=root, spread=spread, pilot=pilot, overrides=overrides or (), quiet=quiet
    )
    echo(registered.to_markdown() if markdown else str(registered), nl=not markdown)


@study_app.command("jobs")
def study_jobs(
    file: StudyFile, root: Root = Path("runs"), overrides: Overrides = None, quiet: Quiet = False
) -> None:
    """Save and list missing jobs, for an external scheduler.

    Prints one line per job: identity, kind, processes, the job it waits for (- for none, * for
    all), label. Builds the study's data first.

    Args:
        overrides: Override a setting, e.g. recipe.model=micro.
    """
    from biphasic.api.plans import jobs

    for line in jobs(file, root=root, overrides=overrides or (), quiet=quiet).lines():
        echo(line)


@study_app.command("jobset")
def study_jobset(
    file: StudyFile,
    image: Annotated[str, typer.Option()],
    claim: Annotated[str, typer.Option()],
    root: Root = Path("runs"),
    gpus: Annotated[int, typer.Option(min=0)] = 1,
    parallelism: AtLeastOne = 16,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Print a JobSet manifest that runs the missing jobs on Kubernetes.

    Saves the jobs. The volume is mounted at the folder above --root.

    Args:
        image: Container image with biphasic.
        claim: Volume claim that all pods can write to.
        gpus: GPUs per process.
        parallelism: Most pods at once.
        overrides: Override a setting, e.g. recipe.model=micro.
    """
    import yaml

    from biphasic.api.plans import jobset

    manifest = jobset(
        file,
        image=image,
        claim=claim,
        root=root,
        gpus=gpus,
        parallelism=parallelism,
        overrides=overrides or (),
        quiet=quiet,
    )
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
    from biphasic.analysis.report import write_report
    from biphasic.study.find import find_study

    folder, _ = find_study(study, root)
    if markdown:
        from biphasic.analysis.page.answers import answers_page
        from biphasic.analysis.records import load_study

        echo(answers_page(load_study(folder, folder.parent / "store")), nl=False)
        return
    report = write_report(folder, folder.parent / "store")
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


def study_tune(
    file: StudyFile,
    by: Literal["beginning", "arm"] = "beginning",
    rates: Annotated[str | None, typer.Option(metavar="LIST")] = None,
    share: float = 0.1,
    extend: bool = True,
    root: Root = Path("runs"),
    workers: Workers = None,
    threads: Threads = 1,
    out: Path | None = None,
    dry_run: bool = False,
    quiet: Quiet = False,
) -> None:
    """Choose peak learning rates by short trials.

    Writes one rate for each beginning or each arm to FILE.

    Args:
        by: What gets a rate of its own: 'beginning' (model, first objective and optimizer) or 'arm'
            (trials have all phases, and the last objective decides).
        rates: Peak rates to try, e.g. 5e-4,1e-3,2e-3. Default: 1/4, 1/2, 1, 2 and 4 times the
            file's rate.
        share: Trial length as a fraction of the longest schedule.
        extend: If the best rate is at an edge of the list, try up to three beyond it.
        out: Write the tuned study here instead of changing FILE.
        dry_run: Show what would be trained, without training.
    """
    from biphasic.api.studies import tune
    from biphasic.study.tune.search import parse_rates

    tuned = tune(
        file,
        by=by,
        rates=None if rates is None else parse_rates(rates),
        share=share,
        extend=extend,
        root=root,
        workers=workers,
        threads=threads,
        out=out,
        dry_run=dry_run,
        quiet=quiet,
    )
    echo("\n".join(tuned.lines()))


study_app.command("status")(study_status_command)
study_app.command("cancel")(study_cancel)
study_app.command("retry")(study_retry)
study_app.command("verify")(study_verify)
study_app.command("clean")(study_clean)
study_app.command("tune")(study_tune)
