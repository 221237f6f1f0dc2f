"""One rank of the tests' process groups: `process_ranks.py FOLDER`.

It trains the runs of `FOLDER/runs.json`, one after another, and leaves what came of each: the
state's folder, or the error, rank by rank. Starting processes takes longer than all their runs.
"""

from __future__ import annotations

import faulthandler
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from biphasic.config import parse_config
from biphasic.data.corpus import Corpus
from biphasic.data.pairs import Pairs
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.distributed import ProcessGroup, joined_process_group
from biphasic.errors import BiphasicError, LostRankError
from biphasic.execution import rank_worker
from biphasic.training import run
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.loop import RunOptions, train_segment
from biphasic.training.recipe import Recipe
from biphasic.training.step.pending import StepReport
from warm import end_with_stacks, forking

_LONGEST_SECONDS = 120  # of one run, which takes a second or two


def process_outcomes(
    folder: Path, data: TrainingData, runs: list[dict[str, Any]], *, ranks: int
) -> dict[str, list[dict[str, Any]]]:
    """Start a process group, let it train, and return what came of each run, rank by rank."""
    (folder / "tokenizer").mkdir(parents=True)
    data.tokenizer.save(folder / "tokenizer")
    plan = {
        "corpus": str(data.corpus.folder),
        "heldout": str(data.heldout.folder),
        "tokenizer": str(folder / "tokenizer"),
        "pairs": [str(folder) for folder in data.pairs],
        "runs": runs,
    }
    (folder / "runs.json").write_text(json.dumps(plan))
    command = rank_worker.command(str(folder / "store"), 1, ranks, [__file__, str(folder)])
    with forking():
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert ended.returncode == 0, ended.stderr
    return {
        each["name"]: [
            json.loads((folder / f"{each['name']}-{rank}.json").read_text())
            for rank in range(ranks)
        ]
        for each in runs
    }


def main(folder: Path) -> None:
    """Train all runs as one rank."""
    faulthandler.register(signal.SIGTERM, chain=True)  # by which others end if one has failed
    end_with_stacks(_LONGEST_SECONDS)
    torch.set_num_threads(1)
    run.check_contract = lambda *_, **__: None  # probes take longer than all steps
    plan = json.loads((folder / "runs.json").read_text())
    data = TrainingData(
        corpus=Corpus(Path(plan["corpus"])),
        heldout=Corpus(Path(plan["heldout"])),
        tokenizer=TextTokenizer.load(Path(plan["tokenizer"])),
        pairs={folder: Pairs(folder) for folder in map(Path, plan["pairs"])},
    )
    with joined_process_group() as ranks:
        for each in plan["runs"]:
            end_with_stacks(_LONGEST_SECONDS)
            with _changed(each, ranks):
                outcome = _outcome(each, data, ranks)
            path = folder / f"{each['name']}-{ranks.dp_rank}.json"
            path.write_text(json.dumps(outcome))


def _outcome(each: dict[str, Any], data: TrainingData, ranks: ProcessGroup) -> dict[str, Any]:
    recipe = parse_config(Recipe, each["recipe"], where="test")
    reported: list[StepReport] = []
    made: list[int] = []
    if "begun" in each:  # the store of a run that stopped
        if ranks.is_first:
            shutil.copytree(each["begun"], each["store"])
        ranks.barrier()

    def should_stop() -> bool:
        made.append(1)
        return len(made) == each.get("stop_at")

    options = RunOptions(
        checkpoint_every=each.get("checkpoint_every", 0),
        heldout_every=each.get("heldout_every", 0),
        report=reported.append,
        should_stop=should_stop,
        compute=ComputeConfig(processes=ranks.dp_world_size, **each.get("compute", {})),
    )
    try:
        state = train_segment(
            Lineage(recipe, data.fingerprint),
            data,
            Path(each["store"]),
            start=0,
            end=recipe.total_steps,
            options=options,
            ranks=ranks,
        )
    except LostRankError:  # the other ranks may not know, and would wait in this run for ever
        raise
    except BiphasicError as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    else:
        outcome = {"state": str(state)}
    return {**outcome, "reported": [each.step for each in reported]}


@contextmanager
def _changed(each: dict[str, Any], ranks: ProcessGroup) -> Iterator[None]:
    """Give one rank other weights if the run says so."""
    before = run.first_model
    if each.get("other_weights") == ranks.dp_rank:
        run.first_model = _other_weights(before)
    try:
        yield
    finally:
        run.first_model = before


def _other_weights(first_model: Callable) -> Callable:
    def other(recipe: Recipe, data: TrainingData):
        seeds = recipe.seeds.model_copy(update={"init_seed": 1})
        return first_model(recipe.model_copy(update={"seeds": seeds}), data)

    return other


if __name__ == "__main__":
    main(Path(sys.argv[1]))
