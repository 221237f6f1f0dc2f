"""The commands, by group, and what they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.api import corpus, job, pairs, plugin, site, task, tokenizer
from biphasic.api.adapt import adapt
from biphasic.api.evaluation import evaluate_all, finetune
from biphasic.api.plans import diff, jobs, plan, register, schema
from biphasic.api.scores import analyze, claims, figures, paper
from biphasic.api.studies import cancel, clean, report_study, retry, run_study, status, tune, verify
from biphasic.api.training import estimate, merge_models, pretrain
from biphasic.api.use import encode, export_model, predict, push, run_mteb
from biphasic.cli.command import Commands, echo, echo_answers, print_table, show_outcome, shown
from biphasic.errors import ConfigError

if TYPE_CHECKING:
    from biphasic.analysis.claims.claim import CheckedClaims
    from biphasic.analysis.page.gallery import Gallery
    from biphasic.analysis.records import Problem
    from biphasic.analysis.tables.text import Analysis
    from biphasic.evaluation.benchmark import BenchmarkScores
    from biphasic.evaluation.result import Evaluation
    from biphasic.export.finetuned import FinetunedFolder
    from biphasic.export.push import Upload
    from biphasic.study.maintenance import Verification
    from biphasic.study.plan.summary import StudyPlan
    from biphasic.study.run.register import Registered
    from biphasic.study.run.run import Retried, StudyOutcome
    from biphasic.study.sizing.estimate import ResourceEstimate
    from biphasic.study.status import StudyStatus

commands = Commands()
study_app = Commands("Plan, compare, run and report studies.")
corpus_app = Commands("Build and inspect corpora for pretraining.")
pairs_app = Commands("Build and inspect pairs of texts for contrastive training.")
task_app = Commands("Show published tasks.")
tokenizer_app = Commands("Train tokenizers and check them.")
plugin_app = Commands("Check plugins.")
site_app = Commands("Write and check site files of clusters.")
job_app = Commands("Run single jobs of studies.")
GROUPS = {
    "study": study_app,
    "corpus": corpus_app,
    "pairs": pairs_app,
    "task": task_app,
    "tokenizer": tokenizer_app,
    "plugin": plugin_app,
    "job": job_app,
    "site": site_app,
}
_REFRESH_SECONDS = 1.0  # of `study status --watch`
_NO_PLUGIN = "no plugin is installed, and the store has none"
_SITE = "site: {0}; adjust it, then run: biphasic site check {0}"

commands.prints("pretrain", pretrain, shown, about="Prints the state's folder.")
commands.prints("adapt", adapt, "encoder: {}".format)
commands.prints("merge", merge_models, "model: {}".format)
commands.prints("predict", predict, lambda made: str(made) if made.out else "", notes=True)
commands.prints("encode", encode, notes=True)
commands.prints("export", export_model)
commands.prints("plugins", plugin.list, lambda plugins: str(plugins) or _NO_PLUGIN)
corpus_app.prints("build", corpus.build)
corpus_app.prints("merge", corpus.merge)
corpus_app.prints("inspect", corpus.inspect, notes=True)
corpus_app.prints("verify", corpus.verify, about="The exit code is 2 if it is damaged.")
pairs_app.prints("build", pairs.build)
pairs_app.prints("mine", pairs.mine)
pairs_app.prints("teach", pairs.teach)
pairs_app.prints("inspect", pairs.inspect)
tokenizer_app.prints("train", tokenizer.train)
tokenizer_app.prints("check", tokenizer.check)
task_app.prints("show", task.show, str.rstrip)
plugin_app.prints("check", plugin.check)
site_app.prints("check", site.check)
site_app.prints("init", site.init, _SITE.format)
job_app.prints("run", job.run)
job_app.prints("show", job.show, lambda loaded: loaded.model_dump_json(indent=1))


@commands.calls("estimate", estimate)
def _estimate(
    estimated: ResourceEstimate,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Prints parameters, FLOPs, memory per device, the rows that fit, and compute settings."""
    from biphasic.amounts import rough_duration
    from biphasic.study.sizing.estimate import speed_here

    if as_json:
        echo(json.dumps(estimated.to_json(), indent=1))
        return
    echo(str(estimated))
    here = speed_here(estimated.precision)
    days = rough_duration(estimated.flops / here.flops_per_second)
    echo(f"on this machine: about {days} on one core, measured for a second")


@commands.calls("evaluate", evaluate_all)
def _evaluate(evaluations: Iterator[Evaluation]) -> None:
    has_scores = [print_evaluation(evaluation) for evaluation in evaluations]
    if not all(has_scores):
        raise typer.Exit(1)


@commands.calls("finetune", finetune)
def _finetune(finetuned: FinetunedFolder) -> None:
    """Prints the scores."""
    print_evaluation(finetuned.evaluation)
    echo("\n".join(finetuned.sentences()))


def print_evaluation(evaluation: Evaluation) -> bool:
    """Print one task's score and its caveats; return whether there is a score."""
    for line in evaluation.sentences():
        echo(line)
    _print_notes(evaluation.notes)
    table = evaluation.type_table()
    if table is not None:
        print_table(table)
    return evaluation.estimate is not None


@commands.calls("mteb", run_mteb)
def _mteb(scores: BenchmarkScores) -> None:
    echo(str(scores))
    echo(f"results: {scores.out}; compare models: biphasic analyze {scores.out} --compare")


@commands.calls("push", push)
def _push(upload: Upload) -> None:
    echo(str(upload))
    _print_notes(f"warning: {note}" for note in upload.notes)
    echo(upload.address or "nothing uploaded; add --go to upload")


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(note, err=True)


@commands.calls("analyze", analyze)
def _analyze(
    analysis: Analysis,
    *,
    compare: Annotated[
        bool, typer.Option(help="Test whether the best model differs from the next best.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    from biphasic.analysis.text import flat

    if as_json and compare:
        raise ConfigError(
            "--compare: cannot be combined with --json; compare() in Python has all numbers"
        )
    if as_json:
        echo(json.dumps(analysis.to_json(), indent=1, allow_nan=False))
        return
    for table in analysis.tables():
        print_table(table)
    echo("\n".join(analysis.explanations()))
    if compare:
        for line in analysis.compare().lines():
            echo(line)
    for problem in analysis.problems:
        echo(flat(problem), err=True)


@commands.calls("claims", claims)
def _claims(
    checked: CheckedClaims,
    *,
    details: Annotated[bool, typer.Option(help="Print every comparison.")] = False,
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, including every comparison.")
    ] = False,
) -> None:
    if as_json and markdown:
        raise ConfigError("give either --json or --markdown")
    _echo_problems(checked.problems)
    if as_json:
        echo(json.dumps(checked.to_json(), indent=1))
    elif markdown:
        echo(checked.to_markdown(details=details), nl=False)
    else:
        echo("\n".join(checked.lines(details=details)))


def _echo_problems(problems: Sequence[Problem]) -> None:
    """Report on standard error the datasets left out, and the number of other problems."""
    from biphasic.amounts import count
    from biphasic.analysis.text import flat

    left_out = [problem for problem in problems if problem.kind == "left out"]
    for problem in left_out:
        echo(flat(f"{problem.kind}: {problem.text}"), err=True)
    if others := len(problems) - len(left_out):
        of_records = f"{count(others, 'problem')} with these records"
        echo(f"{of_records}; 'biphasic analyze' lists them", err=True)


commands.prints("paper", paper)


@commands.calls("figures", figures)
def _figures(made: Gallery) -> None:
    _echo_problems(made.problems)
    for note in made.notes:
        echo(note, err=True)
    echo(str(made))


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
    current: StudyStatus,
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
        echo(current.model_dump_json(indent=1))
        return
    stays = sys.stdout.isatty() if watch is None else watch
    if stays and current.runner is not None:
        current = _watch(current, study, root)
    echo(str(current))


study_app.prints("cancel", cancel, lambda _: "")  # it says itself what happens


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


def _watch(latest: StudyStatus, study: str | None, root: Path) -> StudyStatus:
    """Show a running study until it ends or Ctrl-C; return its last status."""
    import time
    from contextlib import suppress

    # Ctrl-C stops watching; the study keeps running.
    with suppress(KeyboardInterrupt), _screen() as show:
        while latest.runner is not None:
            show(latest)
            time.sleep(_REFRESH_SECONDS)
            latest = status(study, root=root)
    return latest


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
