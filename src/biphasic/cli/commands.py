"""The commands of models, data, plugins and clusters, and what they print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.api import corpus, job, pairs, plugin, site, task, tokenizer
from biphasic.api.adapt import adapt
from biphasic.api.evaluation import evaluate_all, finetune
from biphasic.api.training import estimate, merge_models, pretrain
from biphasic.api.use import encode, export_model, predict, push, run_mteb
from biphasic.cli.command import Commands
from biphasic.cli.output import echo, print_table, shown

if TYPE_CHECKING:
    from biphasic.evaluation.benchmark import BenchmarkScores
    from biphasic.evaluation.result import Evaluation
    from biphasic.export.finetuned.write import FinetunedFolder
    from biphasic.export.push import Upload
    from biphasic.study.sizing.estimate import ResourceEstimate

commands = Commands()
corpus_app = Commands("Build and inspect corpora for pretraining.")
pairs_app = Commands("Build and inspect pairs of texts for contrastive training.")
task_app = Commands("Show published tasks.")
tokenizer_app = Commands("Train tokenizers and check them.")
plugin_app = Commands("Check plugins.")
site_app = Commands("Write and check site files of clusters.")
job_app = Commands("Run single jobs of studies.")
_NO_PLUGIN = "no plugin is installed, and the store has none"
_SITE = "site: {0}; adjust it, then run: biphasic site check {0}"

commands.prints("pretrain", pretrain, shown, about="Prints the state's folder.")
commands.prints("adapt", adapt, "encoder: {}".format)
commands.prints("merge", merge_models, "model: {}".format)
commands.prints("predict", predict, lambda made: str(made) if made.out else "", notes=True)
commands.prints("encode", encode, notes=True)
commands.prints("export", export_model)
commands.prints("plugins", plugin.list, lambda found: str(found) or _NO_PLUGIN)
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
