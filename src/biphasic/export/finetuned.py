"""Fine-tuned models as folders that work without biphasic, in a form that other libraries load.

Where transformers has a class with exactly the structure of body and head, it is written as that
class. EuroBERT's sequence classifier is our dense head; as gelu(z) - gelu(-z) = z for every z, a
hidden layer that holds each output and its negative computes a linear head exactly. ModernBERT
normalizes that layer, which is then the same but for rounding (`_FAR`). All others are written with
a class of their own (`encoder_with_head.py`).
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import (
    EuroBertConfig,
    EuroBertForSequenceClassification,
    ModernBertConfig,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from biphasic.amounts import rate
from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.evaluation.evaluate import encoder_of, finetune_grid, score_grid
from biphasic.evaluation.result import Evaluation
from biphasic.execution.executor import Local
from biphasic.export import encoder_with_head as own
from biphasic.export.card import AUTO_CLASSES, write_fitted_card
from biphasic.export.check import (
    FITTED_TOLERANCE,
    check_fitted,
    check_states,
    check_tokenizer,
    example_sequences,
)
from biphasic.export.hf import (
    bidirectional_config,
    write_older_rope,
    write_sentence_transformers,
    write_tokenizer,
)
from biphasic.export.output import find_made, new_folder, sign
from biphasic.files import write_json
from biphasic.locks import sole_writer
from biphasic.model.loading.reading import body_class, read_config
from biphasic.plugins import short_name
from biphasic.progress import progress_bar, say_on
from biphasic.shown import Shown
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.jobs import KeptModel
from biphasic.study.plan.plan import Plan
from biphasic.tasks.encoding import new_head
from biphasic.tasks.folder import load_task
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import Form, HeadRecord, HeadWeights, Task
from biphasic.tasks.use import HEAD_FORMAT, HEAD_RECORD, read_head
from biphasic.training.state import save_tensors

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
    # Before hours of fine-tuning for a model that could not be written.
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
            # The form follows from names and shapes, so it is known before anything is trained.
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


WEIGHTS = "model.safetensors"
_LINEAR: Mapping[Form, Any] = {
    "token-classification": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "question-answering": MODEL_FOR_QUESTION_ANSWERING_MAPPING,
}
# With the class of its own instead, a fine-tuned ModernBERT, the encoder that people deploy most,
# would need trust_remote_code, and transformers 5.2. As ModernBERT's own class, 4.57 loads it too,
# with the same outputs.
_NORMED: Mapping[Form, Any] = {
    "sequence-classification": ModernBertForSequenceClassification,
    "token-classification": ModernBertForTokenClassification,
    "question-answering": ModernBertForQuestionAnswering,
}
# A layer norm divides by nearly the same number if two constants outweigh all other values:
# outputs z are off by a share of about z^2 / _FAR^2. In fp16, 65,504 is the largest number.
_FAR = 1e4
_OWN: Mapping[Form, type[own.EncoderWithHead]] = {
    "sequence-classification": own.EncoderForSequenceClassification,
    "token-classification": own.EncoderForTokenClassification,
    "question-answering": own.EncoderForQuestionAnswering,
}
_OWN_FILE = Path(own.__file__)


@dataclass(frozen=True)
class WrittenForm:
    """A model as files."""

    form: Form  # how it can be loaded
    architecture: Any  # the class that loads it
    config: PretrainedConfig
    tensors: Mapping[str, Tensor]  # content of `model.safetensors`, by transformers' names
    head: HeadWeights | None  # names of the head's tensors; None without a head

    @property
    def needs_code(self) -> bool:
        """True if the class is a file of the folder."""
        return issubclass(self.architecture, own.EncoderWithHead)

    def save(self, folder: Path) -> None:
        """Write configuration and weights into an existing folder."""
        config = deepcopy(self.config)
        config.architectures = [self.architecture.__name__]
        config.save_pretrained(folder)
        write_older_rope(folder / "config.json")
        # safetensors marks the framework; transformers refuses files without it.
        save_tensors(self.tensors, folder / WEIGHTS, {"format": "pt"})
        if self.needs_code:
            shutil.copyfile(_OWN_FILE, folder / _OWN_FILE.name)


@dataclass(frozen=True)
class _Finetuned:
    """A fine-tuned model, its tensors in fp32 on the CPU."""

    config: PretrainedConfig  # with which transformers runs its body in both directions
    body: Mapping[str, Tensor]
    head: Mapping[str, Tensor]
    record: HeadRecord

    @property
    def is_dense(self) -> bool:
        """True if the head has a hidden layer."""
        return "dense.weight" in self.head

    def labelled(self, config: Any) -> Any:
        """Return a configuration with output names for transformers' pipelines."""
        config, kind = deepcopy(config), KINDS[self.record.kind]
        names: Sequence[str] = self.record.labels or kind.facts.output_names
        config.num_labels = len(names)
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
        if kind.facts.problem_type:
            config.problem_type = kind.facts.problem_type
        return config

    def head_in_weights(self, layer: str) -> HeadWeights:
        """Name the head's tensors, of which those of the linear layer are called after `layer`."""
        return HeadWeights(
            file=WEIGHTS,
            weight=f"{layer}.weight",
            bias=f"{layer}.bias",
            num_outputs=len(self.head["classifier.weight" if self.is_dense else "weight"]),
            dense="dense" if self.is_dense else None,
        )


def forms_of(
    encoder: Path,
    body: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    record: HeadRecord,
    tokenizer: TextTokenizer,
) -> Iterator[WrittenForm]:
    """Yield the forms that a fine-tuned model's structure allows, the most useful first.

    The caller checks whether a form computes the same. `head` has `weight` [num_outputs,
    hidden_size] and `bias` [num_outputs], or those of `dense` and `classifier`; it is empty for
    retrieval. `record` gives the meaning of its outputs.
    """
    config = bidirectional_config(read_config(encoder), tokenizer)
    config.dtype = "float32"
    body = {name: tensor.float().cpu().contiguous() for name, tensor in body.items()}
    head = {name: tensor.float().cpu().contiguous() for name, tensor in head.items()}
    if not head:
        plain = body_class(encoder, config)
        yield WrittenForm("sentence-transformers", plain, config, body, head=None)
        return
    model, form = _Finetuned(config, body, head, record), KINDS[record.kind].facts.form
    exact = _sequence_form if form == "sequence-classification" else _linear_form
    if isinstance(config, ModernBertConfig):
        exact = _normed_form
    if written := exact(model):
        yield written
    yield _own_form(model)


def _sequence_form(model: _Finetuned) -> WrittenForm | None:
    """Return EuroBERT's sequence classifier on mean-pooled states."""
    if not isinstance(model.config, EuroBertConfig):
        return None
    is_scaled = (model.record.mean, model.record.deviation) != (0.0, 1.0)
    added = dict(model.head) if model.is_dense else _as_dense(model.head, model.record)
    if not added or (model.is_dense and is_scaled):
        return None
    config = model.labelled(model.config)
    config.classifier_pooling = "mean"
    return WrittenForm(
        form="sequence-classification",
        architecture=EuroBertForSequenceClassification,
        config=config,
        tensors={**_prefixed(model.body, "model"), **added},
        head=model.head_in_weights("classifier" if model.is_dense else "dense"),
    )


def _normed_form(model: _Finetuned) -> WrittenForm | None:
    """Return ModernBERT's class, whose hidden layer is normalized."""
    form: Form = KINDS[model.record.kind].facts.form
    added = {} if model.is_dense else _as_dense(model.head, model.record, far=_FAR)
    if not added:
        return None
    config = model.labelled(model.config)
    config.classifier_pooling, config.classifier_activation = "mean", "linear"
    config.classifier_bias = True
    norm = nn.LayerNorm(config.hidden_size, bias=config.norm_bias).state_dict()
    dense = {name: added.pop(f"dense.{name}") for name in ("weight", "bias")}
    head = {**_prefixed(dense, "head.dense"), **_prefixed(norm, "head.norm"), **added}
    tensors = {**_prefixed(model.body, "model"), **head}
    return WrittenForm(form, _NORMED[form], config, tensors, model.head_in_weights("head.dense"))


def _as_dense(
    head: Mapping[str, Tensor], record: HeadRecord, *, far: float = 0.0
) -> dict[str, Tensor]:
    """Return a linear head as a dense one, its outputs scaled; empty if the layer is too narrow."""
    # With `far`, the hidden layer has no activation but is normalized, and holds `far` and `-far`.
    num_outputs, hidden_size = head["weight"].shape
    end = 2 * num_outputs
    if end + 2 * bool(far) > hidden_size:
        return {}
    dense, both = torch.zeros(hidden_size, hidden_size), torch.zeros(num_outputs, hidden_size)
    dense_bias = torch.zeros(hidden_size)
    # Both signs of each output: EuroBERT's class has a GELU between, and gelu(z) - gelu(-z) is z.
    dense[:end] = torch.cat([head["weight"], -head["weight"]])
    dense_bias[:end] = torch.cat([head["bias"], -head["bias"]])
    scale = record.deviation
    if far:
        dense_bias[end : end + 2] = torch.tensor([far, -far])
        scale *= far * math.sqrt(2 / hidden_size) / 2  # z - (-z) is 2 z
    both[:, :num_outputs] = scale * torch.eye(num_outputs)
    both[:, num_outputs:end] = -scale * torch.eye(num_outputs)
    return {
        "dense.weight": dense,
        "dense.bias": dense_bias,
        "classifier.weight": both,
        "classifier.bias": torch.full((num_outputs,), record.mean),
    }


def _linear_form(model: _Finetuned) -> WrittenForm | None:
    """Return transformers' class for a kind of task if it is a body plus one linear layer."""
    form: Form = KINDS[model.record.kind].facts.form
    architecture = _LINEAR[form].get(type(model.config), None)
    if not isinstance(architecture, type):
        return None
    config = model.labelled(model.config)
    with torch.device("meta"):
        built: Any = architecture(config)
    layer = _only_layer(built, len(model.head["weight"]))
    # Some decoders name the body differently here, and other classes could not load it.
    plain = body_class(config.model_type, config).base_model_prefix
    if layer is None or built.base_model_prefix != plain:
        return None
    tensors = {**_prefixed(model.body, plain), **_prefixed(model.head, layer)}
    # Loading would draw a weight without a counterpart at random, or leave it out.
    if tensors.keys() != built.state_dict().keys():
        return None
    return WrittenForm(form, architecture, config, tensors, model.head_in_weights(layer))


def _own_form(model: _Finetuned) -> WrittenForm:
    """Return a class of its own: the body plus the head."""
    form: Form = KINDS[model.record.kind].facts.form
    architecture, config = _OWN[form], model.config
    scale = {"mean": model.record.mean, "deviation": model.record.deviation}
    whole = model.labelled(own.EncoderWithHeadConfig(config, has_dense=model.is_dense, **scale))
    names = {
        "AutoConfig": own.EncoderWithHeadConfig.__name__,
        architecture.__name__.replace("Encoder", "AutoModel"): architecture.__name__,
    }
    whole.auto_map = {auto: f"{_OWN_FILE.stem}.{name}" for auto, name in names.items()}
    whole.dtype = "float32"
    body = _prefixed(model.body, body_class(config.model_type, config).base_model_prefix)
    head = model.head if model.is_dense else _prefixed(model.head, "classifier")
    return WrittenForm(
        form, architecture, whole, {**body, **head}, model.head_in_weights("classifier")
    )


def _only_layer(model: Any, num_outputs: int) -> str | None:
    """Return the name of the only linear layer of a model besides body and dropout, or None."""
    added = {
        name: layer
        for name, layer in model.named_children()
        if name != model.base_model_prefix and not isinstance(layer, nn.Dropout)
    }
    if len(added) != 1:
        return None
    [(name, layer)] = added.items()
    is_head = isinstance(layer, nn.Linear) and layer.out_features == num_outputs
    return name if is_head and layer.bias is not None else None


def _prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
