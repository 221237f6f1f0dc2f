"""Fine-tuned models as folders that work without biphasic."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from biphasic.amounts import rate
from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.evaluation.evaluate import encoder_of, finetune_grid, score_grid
from biphasic.evaluation.result import Evaluation
from biphasic.execution.executor import Local
from biphasic.export.card import AUTO_CLASSES, write_fitted_card
from biphasic.export.check import (
    FITTED_TOLERANCE,
    check_fitted,
    check_states,
    check_tokenizer,
    example_sequences,
)
from biphasic.export.forms import WrittenForm, forms_of
from biphasic.export.hf import write_sentence_transformers, write_tokenizer
from biphasic.export.output import find_made, new_folder, sign
from biphasic.files import write_json
from biphasic.locks import sole_writer
from biphasic.plugins import short_name
from biphasic.progress import progress_bar, say_on
from biphasic.shown import Shown
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs import KeptModel
from biphasic.study.plan.plan import Plan
from biphasic.tasks.encoding import new_head
from biphasic.tasks.folder import load_task
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import HeadRecord, Task
from biphasic.tasks.use import HEAD_FORMAT, HEAD_RECORD, read_head

_NUM_EXAMPLES = 8  # texts on which outputs are compared


@dataclass(frozen=True, repr=False)
class FinetunedFolder(Shown):
    """A fine-tuned model on disk."""

    folder: Path
    evaluation: Evaluation
    record: HeadRecord  # its `head.json`, whose metrics are shares
    difference: float  # largest difference between transformers' outputs and ours, as a share

    @property
    def validation(self) -> dict[str, float]:
        """Validation scores of the kept model, in percentage points; empty without validation."""
        return _in_points(self.record.validation)

    @property
    def test(self) -> dict[str, float]:
        """Test scores of the kept model, in percentage points."""
        return _in_points(self.record.test)

    def sentences(self) -> Iterator[str]:
        """Return which model was kept, and how the folder is loaded."""
        record, facts = self.record, KINDS[self.record.kind].facts
        by_split = {"validation": self.validation, "test": self.test}
        scores = ", ".join(
            f"{split} {facts.metric(record.metric).title} {metrics[record.metric]:.2f}"
            for split, metrics in by_split.items()
            if record.metric in metrics
        )
        if facts.is_trained:
            how = f"rate {rate(record.learning_rate)}, seed {record.seed}"
            yield f"kept: {how if record.learning_rate else 'linear model'}: {scores}"
        code = " and trust_remote_code=True" if record.needs_code else ""
        name = AUTO_CLASSES.get(record.form, "SentenceTransformer or AutoModel")
        yield f"{self.folder}: loads with {name}{code}"

    def lines(self) -> Iterator[str]:
        """Return the scores of the grid, and the kept model."""
        yield from self.evaluation.lines()
        yield from self.sentences()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each fine-tuning."""
        return self.evaluation.table()


def write_best(
    plan: Plan, out: Path, *, model: str, local: Local, console: Console
) -> FinetunedFolder:
    """Fine-tune over the grid of a plan and write the best model; cards call its encoder `model`.

    An existing folder from the same model, task and settings is kept.
    """
    _check_form(plan.tasks[0])
    _check_probe(plan.tasks[0])
    inputs = {
        "command": "finetune",
        "model": encoder_of(plan).identity,
        "task": plan.tasks[0].info.name,
        "runs": list(plan.groups[0].possible_ids()),
    }
    if note := find_made(out, inputs):
        say_on(console)(f"{out}: already made from the same model, task and settings")
        evaluation = score_grid(plan, local, scratch=None, console=console)
        return FinetunedFolder(out, evaluation, read_head(out), note["difference"])
    with sole_writer(out, say=say_on(console)):
        return _make(out, plan, inputs, model=model, local=local, console=console)


def _make(
    out: Path,
    plan: Plan,
    inputs: Mapping[str, Any],
    *,
    model: str,
    local: Local,
    console: Console,
) -> FinetunedFolder:
    """Fine-tune over the grid, and write and check the best model, which cards call `model`."""
    [planned], encoder = plan.tasks, encoder_of(plan).folder
    protocol = planned.training.protocol
    tokenizer, task = TextTokenizer.load(encoder), load_task(planned.folder)
    texts = KINDS[planned.info.kind].examples.sample(task, most=_NUM_EXAMPLES)
    sequences = example_sequences(texts, tokenizer, max_seqlen=protocol.max_seqlen)
    # Beside `out`, where there is space for weights.
    with tempfile.TemporaryDirectory(prefix=f".partial-{out.name}-", dir=out.parent) as name:
        scratch = Path(name).absolute()
        with progress_bar(console, "checking that transformers can run the model"):
            check_tokenizer(tokenizer, texts, max_seqlen=protocol.max_seqlen, scratch=scratch)
            alone = check_states(
                encoder, sequences, pad_id=tokenizer.pad_id, batching=protocol.batching
            )
            blank = _untrained(alone, planned, task)
            del alone
        draft = _draft(plan, blank, task, tokenizer, model=model, baselines={})
        form = next(forms_of(encoder, blank.body, blank.head, draft, tokenizer))
        if form.needs_code:
            say_on(console)(
                "transformers has no class with this body and head, so others will need "
                "trust_remote_code=True to load what is written"
            )
        evaluation, best = finetune_grid(plan, local, scratch=scratch / "weights", console=console)
        baselines = {name: percent / 100 for name, percent in evaluation.baselines.items()}
        draft = _draft(plan, best, task, tokenizer, model=model, baselines=baselines)
        with (
            progress_bar(console, "writing the best model and checking it with transformers alone"),
            new_folder(out) as partial,
        ):
            forms = forms_of(encoder, best.body, best.head, draft, tokenizer)
            record, difference = write_model(partial, forms, draft, tokenizer, sequences)
            write_fitted_card(partial, record, name=out.name, difference=difference)
            sign(partial, inputs, difference=difference)
    return FinetunedFolder(out, evaluation, record, difference)


def _untrained(body: PreTrainedModel, planned: PlannedTask, task: Task) -> KeptModel:
    """Return a model with the names of the weights of a body, and a new head."""
    facts, protocol = KINDS[planned.info.kind].facts, planned.training.protocol
    head = new_head(
        body.config.hidden_size,
        facts.num_outputs(getattr(task, "labels", ())),
        is_dense=protocol.has_dense_head(is_pooled=facts.is_pooled),
        generator=torch.Generator(),
    )
    names = dict.fromkeys(body.state_dict(), torch.empty(0))
    return KeptModel(0.0, 0, steps=0, metrics={}, body=names, head=head.state_dict())


def _check_form(task: PlannedTask) -> None:
    """Refuse a kind of somebody's that does not say which class of transformers has its head."""
    kind = KINDS[task.info.kind]
    if kind.facts.is_trained and not (kind.facts.form or kind.facts.is_cosine):
        about = short_name(task.info.kind)
        raise ConfigError("facts.form is None; set the class that loads its head", about=about)


def _check_probe(task: PlannedTask) -> None:
    """Refuse a linear model that does not read the mean of an encoder's final states."""
    if not task.training.protocol.is_probe:
        return
    if task.training.protocol.layer is not None:
        raise ConfigError("layer: a written model reads the last layer; remove it, or use evaluate")
    if task.info.has_pairs:
        raise ConfigError(
            f"task '{task.info.name}': a probe reads both texts of a pair, which no written model "
            "does; use evaluate, or join the texts by a template in a task file"
        )


def _in_points(metrics: Mapping[str, float] | None) -> dict[str, float]:
    return {name: 100 * share for name, share in (metrics or {}).items()}


def _draft(
    plan: Plan,
    best: KeptModel,
    task: Task,
    tokenizer: TextTokenizer,
    *,
    model: str,
    baselines: Mapping[str, float],
) -> HeadRecord:
    """Return `head.json` of a model; form and head are set when it is written."""
    [planned] = plan.tasks
    learner = KINDS[planned.info.kind].learner
    return HeadRecord.model_validate(
        {
            "format": HEAD_FORMAT,
            "kind": planned.info.kind,
            "form": "sentence-transformers",
            "task": planned.info.name,
            "title": planned.info.title,
            "metric": planned.info.metric,
            "model": model,
            "model_identity": encoder_of(plan).identity,
            "learning_rate": best.learning_rate,
            "seed": best.seed,
            "steps": best.steps,
            "validation": best.metrics.get("validation"),
            "test": best.metrics.get("test"),
            "baselines": baselines,
            "protocol": planned.training.protocol.model_dump(mode="json"),
            **learner.head_fields(task, tokenizer, protocol=planned.protocol),
        }
    )


def write_model(
    folder: Path,
    forms: Iterable[WrittenForm],
    draft: HeadRecord,
    tokenizer: TextTokenizer,
    sequences: Sequence[TokenIds],
) -> tuple[HeadRecord, float]:
    """Write a model in the first form that computes the same outputs, and return the difference."""
    difference = float("inf")
    for form in forms:
        # An earlier form may have written files.
        shutil.rmtree(folder)
        folder.mkdir()
        how = {"form": form.form, "needs_code": form.needs_code, "head": form.head}
        record = draft.model_copy(update=how)
        _write_form(folder, form, record, tokenizer)
        difference = check_fitted(folder, form.architecture, sequences)
        if difference <= FITTED_TOLERANCE:
            return record, difference
    raise ModelError(
        f"{draft.model}: outputs by transformers alone differ from ours ({difference:.0e} "
        "of the largest output), so the fine-tuned model was not written"
    )


def _write_form(
    folder: Path, form: WrittenForm, record: HeadRecord, tokenizer: TextTokenizer
) -> None:
    form.save(folder)
    max_seqlen = record.protocol["max_seqlen"]
    write_tokenizer(tokenizer, folder, max_seqlen=max_seqlen)
    if record.form == "sentence-transformers":
        write_sentence_transformers(
            folder,
            hidden_size=form.config.hidden_size,
            max_seqlen=max_seqlen,
            prompts=record.prompts,
            pooling=record.protocol["pooling"],
        )
    write_json(folder / HEAD_RECORD, record.model_dump(mode="json", exclude_none=True))
