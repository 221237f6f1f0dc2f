"""Training of one recipe, outside of studies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.execution.local import run_here
from biphasic.locks import Say
from biphasic.plugins import keep_files
from biphasic.progress import say_on
from biphasic.store import STATE, Store, is_trained, read_state_record, state_folder
from biphasic.study.by_name import link_states, readable_name
from biphasic.study.gc.pins import EVENT_FILES, record_pin
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.jobs.train import TrainJob
from biphasic.study.plan.finished import OtherCode
from biphasic.study.spec.naming import recipe_name
from biphasic.tasks.folder import read_description
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs
from biphasic.tasks.source import prepare_task
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage
from biphasic.training.recipe import Recipe


def pairs_task(
    source: Path | str | None, compute: ComputeConfig, store: Path, *, say: Say
) -> Path | None:
    """Return the folder of a task of minimal pairs, by a file of pairs or a task file."""
    if source is None:
        return None
    if compute.processes > 1:
        raise ConfigError(
            "minimal_pairs: one process scores them; omit compute.processes, or score the finished "
            "state with `biphasic evaluate`"
        )
    wanted = MinimalPairs.name
    is_task_file = Path(source).suffix in {".yaml", ".yml"}
    task = str(source) if is_task_file else f"{wanted}:{source}"
    folder = prepare_task(task, store=store, say=say)
    kind = read_description(folder).kind
    if kind != wanted:
        raise ConfigError(f"minimal_pairs: {source} is a task of kind {kind}, not {wanted}")
    return folder


def parse_compute(
    compute: ComputeConfig | Mapping[str, Any] | None, *, threads: int | None = None
) -> ComputeConfig:
    """Return compute settings after validation; `threads` are of this process alone."""
    if not isinstance(compute, ComputeConfig):
        compute = parse_config(ComputeConfig, compute or {}, where="compute")
    if threads is not None and compute.processes > 1:
        raise ConfigError(
            f"threads: {threads}: with processes={compute.processes}, set OMP_NUM_THREADS, which "
            "is of each process"
        )
    return compute


def train_recipe(
    recipe: Recipe,
    paths: DataPaths,
    store: Path,
    *,
    compute: ComputeConfig,
    console: Console,
    deadline: float = math.inf,
    fresh: bool = False,
    **settings: Any,
) -> Path:
    """Train a recipe on a finished corpus, like `pretrain`; `settings` are those of its job."""
    keep_files(store, recipe)
    say, lineage = say_on(console), Lineage(recipe, paths.open().fingerprint)
    start = _start(lineage, store, say=say, fresh=fresh)
    _say_cost(lineage, paths, store, compute, start=start, say=say)
    job = _pinned_job(lineage, paths, store, start=start, compute=compute, **settings)
    run_here(job, console=console, deadline=deadline)
    names = {readable_name(recipe_name(job.recipe), job.id): job.id}
    link_states(store, "pretrain", names, say=say)
    trained = state_folder(store, job.id)
    _say_losses(trained, say)
    return trained


def _say_cost(
    lineage: Lineage, paths: DataPaths, store: Path, compute: ComputeConfig, *, start: int, say: Say
) -> None:
    """Say what a training costs that is not begun."""
    from biphasic.study.sizing.speed import cost_here  # noqa: PLC0415 - loads torch

    recipe, identity = lineage.recipe, lineage.identities[-1]
    if start == recipe.total_steps or any(store.glob(f"progress/{identity}-from-*/step-*")):
        return
    vocab_size = paths.open().tokenizer.vocab_size
    if text := cost_here(recipe, start=start, vocab_size=vocab_size, compute=compute):
        say(text)


def _say_losses(state: Path, say: Say) -> None:
    """Say on how many tokens a state was trained, and its held-out losses."""
    record = read_state_record(state, identity=state.name)
    tokens = sum(phase.tokens for phase in record.ledger)
    losses: dict[str, list[str]] = {}
    for name, loss in record.heldout.items():
        losses.setdefault(record.loss_unit(name), []).append(f"{name.upper()} {loss:.3f}")
    heldout = (
        f"; held-out loss{unit and f' in {unit}'}: {', '.join(of_unit)}"
        for unit, of_unit in losses.items()
    )
    say(f"trained on {tokens:,} tokens{''.join(heldout)}")


def _start(lineage: Lineage, store: Path, *, say: Say, fresh: bool) -> int:
    """Return the step of the newest state of a lineage; with `fresh`, made by the running code."""
    identities = lineage.identities
    while True:
        states = [is_trained(store, name) for name in identities]
        start = max((step for step, is_there in enumerate(states) if is_there), default=0)
        segment = (identities[-1], start if start < len(identities) - 1 else 0)
        other = OtherCode.of(store, [identities[start]], [segment])
        if not (other and fresh):
            break
        other.delete(say=say)
    if other:
        say(other.note())
    return start


def _pinned_job(
    lineage: Lineage, paths: DataPaths, store: Path, *, start: int, **settings: Any
) -> TrainJob:
    """Return the job that trains a lineage from its newest state, which `clean` now keeps."""
    recipe, identities = lineage.recipe, lineage.identities
    if start == recipe.total_steps:
        Store(store).get(STATE, identities[-1]).verify()
    record_pin(
        store,
        identities[-1],
        made_by="pretrain",
        states=[identities[step] for step in (-1, *([start] if start else []))],
        data=[paths.train.parent, *paths.corpora],
    )
    return TrainJob(
        id=identities[-1],
        label=f"training {recipe.total_steps - start} steps",
        store=store,
        data=paths,
        recipe=recipe,
        start=start if start < recipe.total_steps else 0,
        end=recipe.total_steps,
        tensorboard=store / EVENT_FILES / readable_name(recipe_name(recipe), identities[-1]),
        **settings,
    )
