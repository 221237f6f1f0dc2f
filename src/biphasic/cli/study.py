"""The `biphasic study` commands: plan, compare, run, tune and report studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    progress_console,
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

if TYPE_CHECKING:
    from biphasic.execution.job import WorkItem
    from biphasic.study.run.report import ReportJob
    from biphasic.study.study import Study

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
    import math

    from biphasic.files import write_text
    from biphasic.study.plan.preview import preview_study
    from biphasic.study.plan.summary import plan_lines, summarise_plan, summary_json
    from biphasic.study.sizing.estimate import plan_memory
    from biphasic.study.sizing.here import speed_here
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    if graph is not None and (graph.suffix != ".svg" or not graph.parent.is_dir()):
        raise ConfigError(f"--graph {graph}: give a .svg file in an existing folder")
    if rate is not None and not math.isfinite(rate):
        raise ConfigError(f"--rate {rate}: give a number of FLOP/s, e.g. 1e14")
    config = load_study(file, overrides or ())
    plan = preview_study(Study(config, root))
    summary = summarise_plan(plan, example_tokens=example_tokens)
    jobs_here, advice, memory = None, "", plan_memory(plan)
    if rate is None:
        rate, jobs_here, advice = speed_here(config.recipe.precision)
    if as_json:
        echo(json.dumps(summary_json(summary, plan, rate=rate, memory=memory), indent=1))
    else:
        lines = plan_lines(
            summary,
            plan,
            rate=rate,
            example_tokens=example_tokens,
            memory=memory,
            jobs_here=jobs_here,
        )
        echo("\n".join((*lines, advice) if advice else lines))
    if graph is not None:
        from biphasic.study.plan.svg import plan_svg

        write_text(graph, plan_svg(plan, title=config.title))
        echo(f"graph: {shown(graph.resolve())}", err=as_json)


@study_app.command("diff")
def study_diff(first: StudyFile, second: Path, root: Root = Path("runs")) -> None:
    """Show how the plans of two studies differ, and why.

    Args:
        second: Study file to compare with.
    """
    from biphasic.study.plan.diff import difference_lines
    from biphasic.study.plan.preview import preview_study
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    one, other = (preview_study(Study(load_study(file), root)) for file in (first, second))
    echo("\n".join(difference_lines(one, other, str(first), str(second))))


@study_app.command("schema")
def study_schema_command() -> None:
    """Print the JSON schema of study files, for editors."""
    import json

    from biphasic.study.spec.schema import study_schema

    echo(json.dumps(study_schema(), indent=1))


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
    console = progress_console(quiet=quiet)
    outcome = run_study(
        file,
        root=root,
        overrides=overrides or (),
        num_workers=workers,
        num_threads=threads,
        jobs_per_gpu=per_gpu,
        tries=tries,
        site=site,
        fresh=fresh,
        wandb=wandb,
        console=console,
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
    from biphasic.analysis.questions.markdown import registration_page
    from biphasic.study.find import find_study
    from biphasic.study.run.register import register_study
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    if spread is not None and pilot is not None:
        raise ConfigError("--spread, --pilot: give one of them")
    config = load_study(file, overrides or ())
    records = register_study(
        Study(config, root, file=file),
        console=progress_console(quiet=quiet),
        spread=spread,
        pilot=None if pilot is None else find_study(pilot, root)[0],
    )
    if markdown:
        echo(registration_page(config.title, records), nl=False)
        return
    last = records[-1]
    echo(f"{'amended' if last.amends else 'registered'} {last.registered}: {last.id}")
    for one in last.detectable:
        place = f"{one.question}, comparison {one.comparison + 1}, {one.task}"
        echo(f"{place}: detects {one.points:.1f} points")


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
    _, items, last = _saved_jobs(file, root, overrides, quiet=quiet)
    names = {item.id for item in items}
    for item in items:
        dependency = item.needs if item.needs in names else "-"
        echo(f"{item.id}\t{item.kind}\t{item.num_slots}\t{dependency}\t{item.label}")
    if items:
        echo(f"{last.id}\treport\t1\t*\t{last.label}")


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

    from biphasic.study.run.jobset import Pods, jobset

    study, items, last = _saved_jobs(file, root, overrides, quiet=quiet)
    if not items:
        echo("nothing to run", err=True)
        return
    root = root.resolve()
    pods = Pods(image, claim, mount=root.parent, gpus=gpus, parallelism=parallelism)
    manifest = jobset(study.config.name, items, last.id, folder=study.folder, root=root, pods=pods)
    echo(yaml.safe_dump(manifest, sort_keys=False), nl=False)


def _saved_jobs(
    file: Path, root: Path, overrides: list[str] | None, *, quiet: bool
) -> tuple[Study, list[WorkItem], ReportJob]:
    """Save the missing jobs of a study and the one that writes its report."""
    from biphasic.execution.job import save_job
    from biphasic.study.run.prepare import prepare_study
    from biphasic.study.run.report import ReportJob, write_study_report
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    study = Study(load_study(file, overrides or ()), root, file=file)
    prepared = prepare_study(study, console=progress_console(quiet=quiet))
    with study.locked():
        study.save()
        write_study_report(prepared)  # 'study report' reads the expected results from it
    items, last = prepared.missing_work(), ReportJob.of(study)
    for job in (*(item.make() for item in items), *([last] if items else [])):
        save_job(job)
    return study, items, last


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
    from biphasic.study.spec.load import load_study
    from biphasic.study.tune.search import first_rates, parse_rates, tune_study
    from biphasic.study.tune.text import plan_lines, result_lines
    from biphasic.study.tune.trials import plan_tuning

    console = progress_console(quiet=quiet)
    listed = None if rates is None else parse_rates(rates)
    if dry_run:
        tuning = plan_tuning(load_study(file), share, by=by)
        lines = plan_lines(tuning, first_rates(tuning, listed), root)
        echo("\n".join(lines))
        return
    outcome = tune_study(
        file,
        root=root,
        by=by,
        rates=listed,
        share=share,
        extend=extend,
        out=out,
        num_workers=workers,
        num_threads=threads,
        console=console,
    )
    echo("\n".join(result_lines(outcome.record)))
    echo(f"curves: {outcome.folder / 'curve.png'}")
    echo("\n".join(outcome.difference or [f"{out or file}: already has these rates"]))


study_app.command("status")(study_status_command)
study_app.command("cancel")(study_cancel)
study_app.command("retry")(study_retry)
study_app.command("verify")(study_verify)
study_app.command("clean")(study_clean)
study_app.command("tune")(study_tune)
