"""The `biphasic` command line: commands, help and exit codes.

Exit codes: 0 success, 1 failed while running, 2 bad input, 130 stopped.
Nothing here imports torch before a command runs: help stays fast.
"""

from __future__ import annotations

import copy
import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.adapt import adapt_command
from biphasic.cli.analyze import analyze_command
from biphasic.cli.claims import claims_command
from biphasic.cli.corpus import corpus_app
from biphasic.cli.estimate import estimate_command
from biphasic.cli.export import export_command, push_command
from biphasic.cli.options import (
    HELP,
    CheckpointEvery,
    Compute,
    Copies,
    Device,
    FinetuneWorkers,
    PrintConfig,
    Quiet,
    Revision,
    Root,
    SkipSteps,
    Wandb,
    echo,
    progress_console,
    seconds,
)
from biphasic.cli.paper import figures_command, paper_command
from biphasic.cli.results import INTERRUPTED, shown
from biphasic.cli.site import site_app
from biphasic.cli.study.app import study_app
from biphasic.cli.study.job import job_app
from biphasic.cli.tokenizer import tokenizer_app
from biphasic.cli.use import encode_command, finetune_command, predict_command
from biphasic.errors import (
    BiphasicError,
    CheckpointError,
    ConfigError,
    DataError,
    LockedError,
    StoppedError,
    os_error_text,
)
from biphasic.version import __version__

app = typer.Typer(
    help="Pretrain text encoders in controlled studies, evaluate them, and compare objectives.",
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(study_app, name="study")
app.add_typer(corpus_app, name="corpus")
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(job_app, name="job")
app.add_typer(site_app, name="site")
app.command("adapt")(adapt_command)
app.command("claims")(claims_command)
app.command("estimate")(estimate_command)
app.command("finetune")(finetune_command)
app.command("predict")(predict_command)
app.command("encode")(encode_command)
app.command("export")(export_command)
app.command("push")(push_command)
app.command("paper")(paper_command)
app.command("figures")(figures_command)
app.command("analyze")(analyze_command)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        echo(__version__)
        raise typer.Exit


@app.command("pretrain")
def pretrain_command(
    file: Annotated[Path, typer.Argument(help="Recipe file (YAML).")],
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Folder made by 'biphasic corpus build', or a corpus file (YAML). "
            "Default: the built-in documentation."
        ),
    ] = None,
    root: Root = Path("runs"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. model=micro."),
    ] = None,
    checkpoint_every: CheckpointEvery = 200,
    heldout_every: Annotated[
        int, typer.Option(min=0, help="Steps between held-out evaluations; 0 for the end only.")
    ] = 100,
    compute: Compute = None,
    device: Device = None,
    max_time: Annotated[
        str | None,
        typer.Option(
            metavar="HH:MM:SS", help="Save the progress and exit with code 130 after this time."
        ),
    ] = None,
    skip_steps: SkipSteps = None,
    rewinds: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="K",
            help="After a step that is not finite, go on without it, from the weights before it, "
            "at most K times.",
        ),
    ] = 0,
    wandb: Wandb = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Train one recipe on a corpus, and print the state's folder."""
    from biphasic.config import parse_overrides
    from biphasic.study.api import parse_compute, pretrain
    from biphasic.study.inputs.corpus import corpus_settings
    from biphasic.study.spec.arms import read_recipe
    from biphasic.study.spec.resolved import recipe_text

    how = parse_overrides(compute or ())
    max_seconds = None if max_time is None else seconds(max_time, option="--max-time")
    if print_config:
        recipe = read_recipe(file, overrides or ()).skipping(skip_steps or ())
        text = corpus_settings(corpus)
        echo(recipe_text(recipe, corpus=text, compute=parse_compute(how)), nl=False)
        return
    state = pretrain(
        file,
        corpus=corpus,
        overrides=overrides or (),
        root=root,
        checkpoint_every=checkpoint_every,
        heldout_every=heldout_every,
        compute=how,
        device=device,
        max_seconds=max_seconds,
        skip_steps=skip_steps or (),
        rewinds=rewinds,
        wandb=wandb,
        console=progress_console(quiet=quiet),
    )
    echo(shown(state))


@app.command("evaluate")
def evaluate_command(
    model: Annotated[
        str, typer.Argument(help="Folder of a state or of a transformers model, or a hub id.")
    ],
    tasks: Annotated[
        list[str],
        typer.Option(
            "--task",
            help="pydocs-sc, pydocs-tc, pydocs-qa or pydocs-ir; a published dataset such as mnli "
            "or squad; KIND:PATH with kind sc, ml, sr, tc, qa, ir or zs (zero-shot retrieval); a "
            "task file (YAML); a task folder. Repeat for several. See docs/tasks.md.",
        ),
    ],
    root: Root = Path("runs"),
    rates: Annotated[
        list[float] | None,
        typer.Option("--learning-rate", help="Peak rate; repeat for several. Default: six."),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Repeat for several. Default: 0 to 4.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a fine-tuning setting, e.g. max_steps=200, max_seqlen=256, "
            "precision=bf16, batching=padded.",
        ),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Use the reference study's protocol; see docs/protocol.md."),
    ] = False,
    revision: Revision = None,
    copies: Copies = None,
    workers: FinetuneWorkers = None,
    convention: Annotated[
        str,
        typer.Option(help="Intervals: 'standard' (Student's t) or 'paper' (1.96 standard errors)."),
    ] = "standard",
    device: Device = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune an encoder over a grid, and print its scores.

    Scores have 95 % intervals.
    """
    from typing import cast

    from biphasic.cli.evaluation import print_evaluation
    from biphasic.config import parse_overrides
    from biphasic.evaluation.evaluate import evaluate_all, known_convention
    from biphasic.evaluation.plan import task_from_text
    from biphasic.records import Convention
    from biphasic.study.run.run import default_workers
    from biphasic.study.spec.resolved import evaluation_text
    from biphasic.study.spec.study import PAPER

    settings = parse_overrides(overrides or ())
    changes = {"copies": copies, "protocol": settings}
    chosen = [task_from_text(task).model_copy(update=changes) for task in tasks]
    if print_config:
        text = evaluation_text(
            chosen,
            learning_rates=rates,
            seeds=seeds,
            protocol=settings,
            is_paper=paper,
            convention=known_convention(convention),
        )
        echo(text, nl=False)
        return
    evaluations = evaluate_all(
        model,
        chosen,
        learning_rates=rates,
        seeds=seeds,
        protocol=PAPER if paper else None,
        revision=revision,
        convention=cast(Convention, convention),
        root=root,
        num_workers=workers or default_workers(device=device),
        device=device,
        console=progress_console(quiet=quiet),
    )
    failed = False
    for evaluation in evaluations:
        failed |= not print_evaluation(evaluation)
    if failed:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; map expected errors to one line and an exit code.

    SIGTERM acts like Ctrl-C.
    """
    # Imports create objects that stay; collecting garbage among them takes a tenth of the start.
    gc.set_threshold(20_000, 20, 100)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _only(app, sys.argv[1:])()
    except (ConfigError, DataError, CheckpointError, LockedError) as error:
        _fail(error, code=2)
    except StoppedError as error:
        _fail(error, code=INTERRUPTED)
    except BiphasicError as error:
        _fail(error, code=1)
    except OSError as error:  # disk full, folder not writable
        _fail(os_error_text(error), code=1)
    except SystemExit as ended:
        if (
            ended.code == INTERRUPTED
        ):  # Ctrl-C, for which typer prints nothing, or a cancelled study
            echo("interrupted; run again to resume", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _only(group: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return a group with only the command that the words name, if they name one.

    Typer parses the options of every command, which takes longer than loading typer.
    """
    commands = [info for info in group.registered_commands if info.name in words[:1]]
    groups = [copy.copy(info) for info in group.registered_groups if info.name in words[:1]]
    if not (commands or groups):
        return group
    for info in groups:
        info.typer_instance = info.typer_instance and _only(info.typer_instance, words[1:])
    smaller = copy.copy(group)
    smaller.registered_commands, smaller.registered_groups = commands, groups
    return smaller


def _fail(error: Exception | str, *, code: int) -> None:
    echo(f"error: {error}", err=True)
    sys.exit(code)
