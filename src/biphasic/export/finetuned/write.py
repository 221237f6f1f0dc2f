"""Fine-tuned models as folders that work without biphasic."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ModelError
from biphasic.evaluation.best import (
    LEARNING_RATES,
    PROTOCOL,
    SEEDS,
    GridModel,
    finetune_grid,
    score_grid,
)
from biphasic.evaluation.evaluate import Evaluation
from biphasic.evaluation.plan import plan_evaluation
from biphasic.execution.slots import check_cores
from biphasic.export.cards.finetuned import write_fitted_card
from biphasic.export.finetuned.check import (
    TOLERANCE,
    check_before,
    check_fitted,
    example_sequences,
    example_texts,
)
from biphasic.export.finetuned.forms import Outputs, WrittenForm, forms_of
from biphasic.export.formats.sentence_transformers import write_sentence_transformers
from biphasic.export.output import find_made, new_folder, sign
from biphasic.export.tokenizer import write_tokenizer
from biphasic.files import expanded, write_json
from biphasic.model.compute.device import computing_on, parse_device
from biphasic.progress import progress_bar, progress_console, say_on
from biphasic.study.run.run import DEFAULT_ROOT, default_workers
from biphasic.study.spec.study import TaskConfig
from biphasic.tasks.finetuned import HEAD_FORMAT, HEAD_RECORD, HeadRecord, read_head
from biphasic.tasks.formats.folder import read_description
from biphasic.tasks.formats.read import load_task, text_fields
from biphasic.tasks.formats.templates import DOCUMENT_TEMPLATES, QUERY_TEMPLATES
from biphasic.tasks.kinds.qa import encode_questions
from biphasic.tasks.kinds.regression import standardisation
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    ClassificationTask,
    MultiLabelTask,
    QuestionTask,
    RegressionTask,
    TaggingTask,
    Task,
)


@dataclass(frozen=True)
class FinetunedFolder:
    """A fine-tuned model on disk.

    Attributes:
        record: Its `head.json`, whose metrics are shares.
        difference: Largest difference between transformers' outputs and ours, as a share.
    """

    folder: Path
    evaluation: Evaluation
    record: HeadRecord
    difference: float

    @property
    def validation(self) -> dict[str, float]:
        """Validation scores of the kept model, in percentage points; empty without validation."""
        return _in_points(self.record.validation)

    @property
    def test(self) -> dict[str, float]:
        """Test scores of the kept model, in percentage points."""
        return _in_points(self.record.test)


def finetune(
    model: Path | str,
    task: TaskConfig | Path | str,
    out: Path | str,
    *,
    learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    protocol: FinetuneProtocol | Mapping[str, Any] | Literal["paper"] | None = None,
    libraries: Sequence[str] | None = None,
    revision: str | None = None,
    root: Path | str = DEFAULT_ROOT,
    num_workers: int | None = 1,
    num_threads: int = 1,
    device: str | None = None,
    console: Console | None = None,
) -> FinetunedFolder:
    """Fine-tune an encoder over a grid, and keep the model with the best validation score.

    The folder loads without biphasic: as a transformers class that computes the same function if
    there is one, as a sentence-transformers folder for retrieval, and otherwise as an encoder with
    a separate head. `head.json` and the card state which.

    Args:
        model: As in `evaluate`.
        task: As in `evaluate`.
        out: The folder to create. An existing one from the same model, task and settings is kept;
            only scores missing from the store are recomputed.
        learning_rates: Peak rates; 2e-5, 5e-5, 1e-4 and 2e-4 when None.
        seeds: Seeds; only 0 when None.
        protocol: All other constants; when None the study's, with three passes over the training
            data instead of one.
        libraries: As in `evaluate`.
        revision: As in `evaluate`.
        root: Folder of the store; runs with stored results are skipped, except the best.
        num_workers: As in `evaluate`.
        num_threads: Threads per fine-tuning.
        device: As in `evaluate`.
        console: Where progress is shown; standard error when None.

    Raises:
        ConfigError: A setting is wrong, or `out` holds something else.
        DataError: Model or task are missing or damaged.
        ModelError: The model cannot be an encoder, or the result would only work in biphasic.
        TrainingError: Every run diverged.

    Example:
        >>> from biphasic import finetune
        >>> made = finetune(state, "sc:reviews", "sorter", learning_rates=[1e-3])
        >>> made.record.labels, made.record.form
        (('bad', 'good'), 'sequence-classification')
    """
    num_workers = default_workers(num_threads) if num_workers is None else num_workers
    check_cores(num_workers=num_workers, num_threads=num_threads)
    out = expanded(out)
    find_made(out)
    chosen = parse_device(device)
    console = console or progress_console()
    plan = plan_evaluation(
        model,
        [task],
        learning_rates=LEARNING_RATES if learning_rates is None else learning_rates,
        seeds=SEEDS if seeds is None else seeds,
        protocol=protocol,
        libraries=libraries,
        revision=revision,
        root=root,
        console=console,
        shared=PROTOCOL,
    )
    [planned] = plan.tasks
    inputs = {
        "command": "finetune",
        "model": plan.encoder.identity,
        "task": planned.info.name,
        "runs": list(plan.group((planned,)).run_ids()),
    }
    computing = {"num_workers": num_workers, "num_threads": num_threads, "console": console}
    if note := find_made(out, inputs):
        say_on(console)(f"{out}: already made from the same model, task and settings")
        evaluation = score_grid(plan, scratch=None, **computing)
        return FinetunedFolder(out, evaluation, read_head(out), note["difference"])
    tokenizer, loaded = TextTokenizer.load(plan.encoder.folder), load_task(planned.folder)
    texts, limit = example_texts(loaded), planned.training.protocol.max_seqlen
    with _scratch(out) as scratch, computing_on(chosen):
        with progress_bar(console, "checking that transformers can run the model"):
            check_before(
                plan.encoder.folder,
                tokenizer,
                texts,
                max_seqlen=limit,
                batching=planned.training.protocol.batching,
                scratch=scratch,
            )
        finetuned = finetune_grid(plan, scratch=scratch / "weights", **computing)
        # Cards are public: a hub id is unchanged, a folder by name only.
        named = plan.name if expanded(model).exists() else str(model)
        writer = _Writer(finetuned, named, tokenizer, loaded)
        sequences = example_sequences(texts, tokenizer, max_seqlen=limit)
        with (
            progress_bar(console, "writing the best model and checking it with transformers alone"),
            new_folder(out) as partial,
        ):
            record, difference = writer.write(partial, sequences, name=out.name)
            sign(partial, inputs, difference=difference)
    return FinetunedFolder(out, finetuned.evaluation, record, difference)


def _in_points(metrics: Mapping[str, float] | None) -> dict[str, float]:
    return {name: 100 * share for name, share in (metrics or {}).items()}


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out`, which has space for weights, and remove it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.absolute().with_name(f".partial-{out.name}-{uuid.uuid4().hex[:8]}-weights")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class _Writer:
    """Writes one fine-tuned model, in the first form that computes the same outputs."""

    finetuned: GridModel
    model: str
    tokenizer: TextTokenizer
    task: Task

    def write(
        self, folder: Path, sequences: Sequence[Any], *, name: str
    ) -> tuple[HeadRecord, float]:
        """Write all files into an empty folder.

        Raises:
            ModelError: No form computes the same in transformers alone.
        """
        settings, kept = self._settings(), self.finetuned.kept
        outputs = Outputs(
            kind=settings["kind"],
            labels=settings.get("labels", ()),
            mean=settings.get("mean", 0.0),
            deviation=settings.get("deviation", 1.0),
        )
        encoder = self.finetuned.plan.encoder.folder
        difference = float("inf")
        for form in forms_of(encoder, kept.body, kept.head, outputs, self.tokenizer):
            # An earlier form may have written files.
            shutil.rmtree(folder)
            folder.mkdir()
            record = self._write_form(folder, form, settings)
            difference = check_fitted(folder, sequences)
            if difference <= TOLERANCE:
                write_fitted_card(folder, record, name=name, difference=difference)
                return record, difference
        raise ModelError(
            f"{self.model}: outputs by transformers alone differ from ours ({difference:.0e} "
            "of the largest output), so the fine-tuned model was not written"
        )

    def _write_form(
        self, folder: Path, form: WrittenForm, settings: Mapping[str, Any]
    ) -> HeadRecord:
        form.save(folder)
        max_seqlen = settings["protocol"]["max_seqlen"]
        write_tokenizer(self.tokenizer, folder, max_seqlen=max_seqlen)
        if form.form == "sentence-transformers":
            prompts = {
                "query": _prompt(settings["query_template"]),
                "document": _prompt(settings["document_template"]),
            }
            write_sentence_transformers(
                folder,
                hidden_size=form.config.hidden_size,
                max_seqlen=max_seqlen,
                prompts={name: prompt for name, prompt in prompts.items() if prompt},
            )
        record = HeadRecord.model_validate({**settings, "form": form.form, "head": form.head})
        write_json(folder / HEAD_RECORD, record.model_dump(mode="json", exclude_none=True))
        return record

    def _settings(self) -> dict[str, Any]:
        """Return the content of `head.json` except form and head."""
        planned, kept = self.finetuned.task, self.finetuned.kept
        encoder = self.finetuned.plan.encoder
        return {
            "format": HEAD_FORMAT,
            "task": planned.info.name,
            "title": planned.info.title,
            "metric": planned.info.metric,
            "model": self.model,
            "model_identity": encoder.identity,
            "learning_rate": kept.learning_rate,
            "seed": kept.seed,
            "steps": kept.steps,
            "validation": kept.metrics.get("validation"),
            "test": kept.metrics.get("test"),
            "protocol": planned.training.protocol.model_dump(mode="json"),
            "kind": planned.info.kind,
            **self._of_kind(planned.folder),
        }

    def _of_kind(self, folder: Path) -> dict[str, Any]:
        description, task = read_description(folder), self.task
        match task:
            case ClassificationTask() | MultiLabelTask():
                written = {"fields": text_fields(folder), "template": description.template}
                return {"labels": task.labels, **written}
            case RegressionTask():
                mean, deviation = standardisation(task)
                written = {"fields": text_fields(folder), "template": description.template}
                return {"mean": mean, "deviation": deviation, **written}
            case TaggingTask():
                return {"labels": task.labels}
            case QuestionTask():
                protocol = self.finetuned.task.protocol
                encoded = encode_questions(task, self.tokenizer, protocol=protocol)
                return {
                    "may_abstain": encoded.has_unanswerable,
                    "max_answer_tokens": encoded.max_answer_tokens,
                }
            case _:
                kind = task.info.kind
                return {
                    "query_template": description.query_template or QUERY_TEMPLATES[kind],
                    "document_template": description.document_template or DOCUMENT_TEMPLATES[kind],
                }


def _prompt(template: str) -> str:
    """Return the prefix of a template that only prepends text; otherwise an empty string."""
    before, _, after = template.partition("{text}")
    before = before.partition("{title}")[0]
    return "" if after else before
