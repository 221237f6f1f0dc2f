"""Training of one recipe: a study in memory, with one arm and no tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.execution.executor import run_here
from biphasic.locks import Say
from biphasic.plugins import keep_files
from biphasic.progress import say_on
from biphasic.store import STATE, Store, read_state_record
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.pins import EVENT_FILES, link_states, readable_name, record_pin
from biphasic.study.plan.finished import Finished, without_other_code
from biphasic.study.plan.plan import plan_study
from biphasic.study.settings.arms import ArmConfig, RecipeConfig, recipe_name
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from biphasic.tasks.folder import read_description
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs
from biphasic.tasks.source import find_source, is_task_file, prepare_task
from biphasic.training.compute import ComputeConfig
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
    task = str(source) if is_task_file(Path(source)) else f"{wanted}:{source}"
    folder = prepare_task(find_source(task), store=store, say=say)
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
    checkpoint_every: int,
    heldout_every: int,
    console: Console,
    deadline: float = math.inf,
    fresh: bool = False,
    **settings: Any,
) -> Path:
    """Train a recipe on a finished corpus, like `pretrain`; `settings` are those of its job."""
    keep_files(store, recipe)
    say, data = say_on(console), paths.open()
    raw = {
        "name": "pretrain",
        "title": "pretrain",
        "recipe": {name: getattr(recipe, name) for name in RecipeConfig.model_fields},
        "arms": [ArmConfig(name="pretrain", phases=recipe.phases)],
        "checkpoint_every": checkpoint_every,
        "heldout_every": heldout_every,
        "compute": compute,
    }
    study = Study(parse_config(StudyConfig, raw, where="recipe"), store.parent)
    plan = without_other_code(
        lambda: plan_study(study, data.fingerprint, known=Store(store).walk(STATE)),
        fresh=fresh,
        say=say,
        note=say,
    )
    last, missing = plan.segments[-1], Finished.of(plan).missing_segments()
    # Verified, not believed: a finished state is returned as the result of this command.
    if not missing:
        Store(store).get(STATE, last.id).verify()
    elif not any(store.glob(f"progress/{missing[0].id}-from-*/step-*")):
        from biphasic.study.sizing.speed import cost_here  # noqa: PLC0415 - loads torch

        vocab_size = data.tokenizer.vocab_size
        if text := cost_here(
            recipe, start=missing[0].start, vocab_size=vocab_size, compute=compute
        ):
            say(text)
    states = (last.id, *(segment.parent for segment in plan.segments if segment.parent))
    folders = [paths.train.parent, *paths.corpora.values()]
    # Before training, or `study clean` could delete a state that no study names.
    record_pin(store, last.id, made_by="pretrain", states=states, data=folders)
    name = readable_name(recipe_name(recipe), last.id)
    for segment in missing or [last]:
        update = {
            "label": f"training {segment.steps if missing else 0} steps",
            "tensorboard": store / EVENT_FILES / name,
            **settings,
        }
        job = segment.job(study, paths).model_copy(update=update)
        run_here(job, console=console, deadline=deadline)
    link_states(store, "pretrain", {name: last.id}, say=say)
    trained = Store(store).folder(STATE, last.id)
    _say_losses(trained, say)
    return trained


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
