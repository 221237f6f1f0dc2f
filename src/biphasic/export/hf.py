"""Folders of models for transformers alone: an exported state or model, and a merge of two models.

Continued training forgets some of what a model knew; a merge of its weights with those from before
brings some of it back. Both models have one architecture, such as a decoder and what it was adapted
to. References: Wortsman et al. 2022, arXiv:2203.05482 (means of weights); Goddard et al. 2024,
arXiv:2403.13257, section 3 (spherical interpolation of weights).
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import EuroBertConfig, LlamaConfig, PretrainedConfig, PreTrainedModel

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError, ModelError, naming
from biphasic.export import As, Dtype, ExportSettings
from biphasic.export import bidirectional_llama as own
from biphasic.export.output import refuse_existing
from biphasic.files import ADAPTER, digest, expanded, read_json, read_json_object, write_json
from biphasic.locks import sole_writer
from biphasic.model.compute.forward import Pooling, first_position
from biphasic.model.contract import ModelLimits, model_limits, tokenizer_limit
from biphasic.model.loading.build import (
    empty_body,
    load_pretrained,
    refuse_left_over,
    saved_tensors,
)
from biphasic.model.loading.configurations import (
    close_again,
    eurobert_config,
    is_decoder,
    llama_config,
    open_both_ways,
)
from biphasic.model.loading.footprint import check_memory, weight_files
from biphasic.model.loading.hub import claimed_identity, fetch_model
from biphasic.model.loading.reading import (
    body_class,
    language_model_class,
    load_model,
    loading,
    read_config,
    refuse_missing,
    refuse_unfit,
)
from biphasic.model.lora import Adapter, require_peft
from biphasic.model.shape import Lora
from biphasic.records import StateRecord, parse_record, phase_of
from biphasic.store import MODEL, complete_folder, is_complete
from biphasic.study.inputs.models import token_difference
from biphasic.tasks.embedding import (
    MODULES,
    SENTENCE_FILES,
    TrainedVectors,
    fetch_embedding_model,
    trained_reading,
)
from biphasic.tasks.kinds.minimal_pairs import OBJECTIVE, last_reading
from biphasic.training.state import LORA, load_lora_of, save_tensors
from biphasic.version import __version__

_REMEDY = "take another copy of the state, or delete the folder and train again"


@dataclass(frozen=True)
class Source:
    """A model to export."""

    folder: Path
    name: str  # a hub id, or the folder's name
    identity: str  # identity of a verified state, otherwise a hash of the folder's files
    tokenizer: TextTokenizer  # it has a mask token
    limits: ModelLimits
    # Longest input in tokens that model and tokenizer allow; None without a limit.
    max_seqlen: int | None
    state: StateRecord | None  # None if the model is no training state
    adapter: Adapter | None = None  # written beside the model without it


def open_source(model: Path | str, *, revision: str | None = None) -> Source:
    """Find a model by folder or hub id; check, without its weights, that it can be exported."""
    local = fetch_model(model, revision=revision)
    folder = local.folder
    weight_files(folder)
    # A state whose weights somebody has changed is an ordinary model: its record describes other
    # weights.
    state = None  # also if the folder's files do not match its records
    if claimed_identity(folder) == local.identity:
        path = folder / "state.json"
        state = parse_record(StateRecord, read_json(path), where=str(path), remedy=_REMEDY)
    tokenizer = TextTokenizer.load(folder)
    check_memory(folder, use="load")
    limits = model_limits(folder)
    if "mask" not in tokenizer.special_tokens:
        raise DataError(
            f"{folder}: the tokenizer has no mask token, which an encoder needs; 'biphasic "
            f"tokenizer check {folder}' suggests one to declare, and 'biphasic adapt' trains it"
        )
    # More rows than tokens are usual (padding to multiples of 64); fewer would be read out of
    # bounds.
    if tokenizer.vocab_size > limits.num_embeddings:
        raise DataError(
            f"{folder}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, but the model has "
            f"rows for only {limits.num_embeddings}; they do not belong together"
        )
    return Source(
        folder=folder,
        name=folder.name if expanded(model).is_dir() else str(model),
        identity=local.identity,
        tokenizer=tokenizer,
        limits=limits,
        max_seqlen=min(filter(None, (limits.positions, tokenizer_limit(folder))), default=None),
        state=state,
    )


def with_adapter(source: Source) -> Source:
    """Return a source whose LoRA stays apart; raise an error if it ended without LoRA."""
    state = source.state
    if state is None or not state.ledger or not (source.folder / LORA).is_file():
        raise ConfigError(
            f"adapter: {source.folder}: is no state whose last phase had lora; omit adapter"
        )
    require_peft()
    lora = Lora.model_validate(phase_of(state.recipe, state.ledger[-1].phase)["lora"])
    return replace(source, adapter=Adapter(lora, load_lora_of(source.folder)))


_POOLING = "1_Pooling"
# Older keys of the bases of layers that read all tokens, and of those with a window, by model type.
_ROPE_BY_LAYER = {
    "gemma3_text": ("rope_theta", "rope_local_base_freq"),
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "modernbert-decoder": ("global_rope_theta", "local_rope_theta"),
}


@dataclass(frozen=True)
class WrittenModel:
    """The exported model."""

    config: PretrainedConfig
    architecture: str  # the class of transformers
    # Logits of the language-model head for the probe, fp32 [length, vocab_size]; None without a
    # head.
    logits: Tensor | None
    num_parameters: int  # written; tied ones count once
    was_decoder: bool  # the source belongs to a decoder family
    needs_code: bool = False  # the class is a file of the folder
    num_added: int = 0  # parameters of the adapter beside it


@torch.no_grad()
def write_model(
    source: Source,
    folder: Path,
    settings: ExportSettings,
    *,
    probe: list[int],
    with_head: bool,
    causal: bool,
) -> WrittenModel:
    """Write `config.json` and weights as safetensors."""
    source_config = read_config(source.folder)
    was_decoder = is_decoder(source_config)
    if causal:
        config = causal_config(source_config, source.tokenizer)
    else:
        config = bidirectional_config(source_config, source.tokenizer, settings.as_)
    if (objective := last_reading(source.folder)) and not source.adapter:
        setattr(config, OBJECTIVE, objective)
    if with_head:
        model, has_head = _load(source.folder, config)
    else:
        model, has_head = _load_body(source.folder, config), False
    if source.adapter:
        source.adapter.take_out(model)
    # Classifiers find the last token by the padding token. Models that count positions around it,
    # such as RoBERTa, keep their own.
    if first_position(model) == 0:
        model.config.pad_token_id = source.tokenizer.pad_id
    # Before the logits of the probe, which must be those of the written weights.
    round_weights(model, settings.dtype)
    if has_head:
        head = model.get_output_embeddings()
        is_tied = head is not None and head.weight is model.get_input_embeddings().weight
        # transformers 5 unties a head that was saved on its own; earlier releases trust the flag.
        model.config.tie_word_embeddings = is_tied
    logits = model.eval()(input_ids=torch.tensor([probe])).logits[0] if has_head else None
    with loading(source.folder), naming(folder):
        model.to(getattr(torch, settings.dtype))
        model.save_pretrained(folder, max_shard_size=settings.max_shard_size)
    write_older_rope(folder / "config.json")
    num_parameters, num_added = model.num_parameters(), 0
    if source.adapter:
        num_added = source.adapter.write(model, folder.with_name(ADAPTER), base=folder.name)
    needs_code = settings.as_ == "own"
    if needs_code:
        _write_own_class(folder)
    # Meant for decoders; an encoder generates nothing.
    (folder / "generation_config.json").unlink(missing_ok=True)
    return WrittenModel(
        config=model.config,
        architecture=read_json_object(folder / "config.json")["architectures"][0],
        logits=logits,
        num_parameters=num_parameters,
        was_decoder=was_decoder,
        needs_code=needs_code,
        num_added=num_added,
    )


def _write_own_class(folder: Path) -> None:
    """Turn a written Llama into one of the class in `bidirectional_llama.py`, and add that file."""
    config, model = own.BidirectionalLlamaConfig, own.BidirectionalLlamaModel
    classes = {"AutoConfig": config.__name__, "AutoModel": model.__name__}
    file = Path(own.__file__)
    changes = {
        "model_type": config.model_type,
        "architectures": [model.__name__],
        "auto_map": {auto: f"{file.stem}.{name}" for auto, name in classes.items()},
    }
    write_json(folder / "config.json", {**read_json_object(folder / "config.json"), **changes})
    shutil.copyfile(file, folder / file.name)


def write_older_rope(path: Path) -> None:
    """Add the keys by which transformers before 5, and other engines, read rotary frequencies."""
    config = read_json_object(path)
    for part in (config, config.get("encoder")):  # of a fine-tuned model with a class of its own
        if isinstance(part, dict):
            part.update(_older_rope(part))
    write_json(path, config)


def _older_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or {}
    keys: dict[str, Any] = {}
    kinds = ("full_attention", "sliding_attention")
    if all(isinstance(rope.get(kind), dict) for kind in kinds):
        names = _ROPE_BY_LAYER.get(config.get("model_type", ""))
        if names is None:
            return {}
        keys = {name: rope[kind]["rope_theta"] for name, kind in zip(names, kinds, strict=True)}
        # ModernBERT had no scaling, and transformers 5 would scale both kinds of its layers.
        rope = rope["full_attention"] if names[0] == "rope_theta" else {}
    elif "rope_theta" in rope:
        keys = {"rope_theta": rope["rope_theta"]}
    if keys and rope.get("rope_type", "default") != "default":
        keys["rope_scaling"] = {key: rope[key] for key in rope if key != "rope_theta"}
    return keys


@torch.no_grad()
def round_weights(model: PreTrainedModel, dtype: Dtype) -> None:
    """Round weights to a precision in place; they stay fp32 tensors."""
    if dtype == "float32":
        return
    # They stay fp32 tensors, so that both sides of the check compute in fp32 and differ by rounding
    # alone.
    for tensor in model.state_dict().values():  # shares memory with the model
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(getattr(torch, dtype)))


def check_as(as_: As, config: PretrainedConfig, *, where: Path | str, causal: bool = False) -> None:
    """Raise an error if a model cannot be written in a form; `causal` ones read left to right."""
    if as_ == "auto":
        return
    if causal and as_ != "llama":
        raise ConfigError(
            f"as: this state was trained to read from left to right, and {as_} reads in both "
            "directions; use --as auto or llama, or --format hf"
        )
    if type(config) is EuroBertConfig and config.mlp_bias and as_ != "eurobert":
        raise ModelError(
            f"{where}: as: {as_} has no biases in its feed-forward layers, and this model has; use "
            "--as auto or eurobert"
        )
    if type(config) is EuroBertConfig or eurobert_config(config) is not None:
        return
    if type(config) is not LlamaConfig:
        raise ModelError(
            f"{where}: as: {as_} has the weights of a Llama, and a model of type "
            f"'{config.model_type}' has others; use --as auto"
        )
    if as_ == "eurobert":
        raise ModelError(
            f"{where}: as: eurobert has no biases in its feed-forward layers, and no windows; use "
            "--as auto or llama"
        )


def bidirectional_config(
    config: PretrainedConfig, tokenizer: TextTokenizer, as_: As = "auto"
) -> PretrainedConfig:
    """Return the configuration with which transformers runs a model in both directions.

    Models of Llama's architecture become `eurobert`, which is bidirectional and has an encoder's
    classes, unless they shall be `llama`; other decoders get `is_causal: false`.
    """
    if "mask" in tokenizer.special_ids:
        config.mask_token_id = tokenizer.mask_id
    if as_ in ("llama", "own"):
        config = llama_config(config) or config
        open_both_ways(config)
        config.use_bidirectional_attention = True  # as text-embeddings-inference reads it
    elif (native := eurobert_config(config)) is not None:
        config = native
    elif is_decoder(config):
        open_both_ways(config)
    return _with_roles(config, tokenizer)


def causal_config(config: PretrainedConfig, tokenizer: TextTokenizer) -> PretrainedConfig:
    """Return the configuration with which transformers runs a model from left to right."""
    written = llama_config(config) or config
    if not is_decoder(written):
        raise ModelError(
            f"format: transformers does not read '{config.model_type}' from left to right, as this "
            "state was trained, without custom code; export it with --format hf"
        )
    close_again(written)
    written.use_cache = False
    return _with_roles(written, tokenizer)


def _with_roles(config: PretrainedConfig, tokenizer: TextTokenizer) -> PretrainedConfig:
    for role in ("bos", "eos", "pad"):
        token_id = getattr(config, f"{role}_token_id", None)
        # A family's default may be outside of a custom vocabulary.
        is_outside = isinstance(token_id, int) and token_id >= config.vocab_size
        if role in tokenizer.special_ids and (token_id is None or is_outside):
            setattr(config, f"{role}_token_id", tokenizer.special_ids[role])
    return config


def _load(folder: Path, config: PretrainedConfig) -> tuple[PreTrainedModel, bool]:
    """Load all weights in fp32, without a head if none was saved."""
    try:
        kind = language_model_class(folder, config)
    except ModelError:
        return _load_body(folder, config), False
    model, report = _from_pretrained(kind, folder, config)
    body = f"{model.base_model_prefix}."
    # A head without weights would be drawn at random, and predict noise.
    missing = report["missing_keys"]
    refuse_missing(folder, [key for key in missing if key.startswith(body)])
    # A Llama's head has no bias, which an EuroBERT's may have.
    left_over = [key for key in report["unexpected_keys"] if key.startswith("lm_head.")]
    return (_load_body(folder, config), False) if missing or left_over else (model, True)


def _load_body(folder: Path, config: PretrainedConfig) -> PreTrainedModel:
    kind = body_class(folder, config)
    model, report = _from_pretrained(kind, folder, config)
    if any(key.startswith("pooler.") for key in report["missing_keys"]):
        model, report = _from_pretrained(kind, folder, config, add_pooling_layer=False)
    refuse_missing(folder, report["missing_keys"])
    return model


def _from_pretrained(
    kind: Any, folder: Path, config: PretrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    model, report = load_model(kind, folder, config, **options)
    refuse_unfit(folder, report["mismatched_keys"])
    refuse_left_over(folder, model, report["unexpected_keys"])
    return model, report


def write_tokenizer(tokenizer: TextTokenizer, folder: Path, *, max_seqlen: int | None) -> None:
    """Write the tokenizer's files, with a limit in tokens including special ones, or none."""
    limit = {} if max_seqlen is None else {"model_max_length": max_seqlen}
    tokenizer.save_framed(folder, padding_side="right", truncation_side="right", **limit)


def pair_ids(tokenizer: TextTokenizer, first: str, second: str) -> list[int]:
    """Return the ids of a question and its context, not cut."""
    framed = [tokenizer.bos_id, *tokenizer.encode(first), *tokenizer.separator_ids]
    return [*framed, *tokenizer.encode(second), tokenizer.eos_id]


def write_sentence_transformers(
    folder: Path,
    *,
    hidden_size: int,
    max_seqlen: int,
    prompts: Mapping[str, str] | None = None,
    pooling: Pooling = "mean",
    similarity: str = "cosine",
) -> None:
    """Add the files with which `SentenceTransformer(folder)` makes vectors of states."""
    # Names of modules and settings are those that releases since 2.2 read.
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": _POOLING, "type": "sentence_transformers.models.Pooling"},
    ]
    modes = {
        "pooling_mode_cls_token": pooling == "first",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        **({"pooling_mode_lasttoken": True} if pooling == "last" else {}),  # since 2.4
    }
    reading = {
        "max_seq_length": max_seqlen,
        "do_lower_case": False,
        # A text that spells a special token is plain text, as in training.
        "tokenizer_args": {"split_special_tokens": True},
    }
    settings = {
        "prompts": dict(prompts or {}),
        "default_prompt_name": None,
        "similarity_fn_name": similarity,
    }
    write_json(folder / "modules.json", modules)
    write_json(
        folder / _POOLING / "config.json", {"word_embedding_dimension": hidden_size, **modes}
    )
    write_json(folder / "sentence_bert_config.json", reading)
    write_json(folder / "config_sentence_transformers.json", settings)


MERGE_RECORD = "merge.json"
_MERGE_FORMAT = "biphasic.merge/1"
Method = Literal["linear", "spherical"]
_LEAST_ANGLE = 1e-4


def write_merge(
    base: Path | str,
    adapted: Path | str,
    out: Path,
    *,
    weight: float,
    method: Method,
    groups: Mapping[str, float],
) -> Path:
    """Write the model between two models; see `merge_models`."""
    for group, share in groups.items():
        _group_members(group)
        if not 0 <= share <= 1:
            raise ConfigError(f"group '{group}': {share:g}; give 0 to 1")
    if not is_complete(out):
        refuse_existing(out)
    sides = [fetch_model(model) for model in (base, adapted)]
    folder = fetch_embedding_model(str(adapted))  # the second one's, with all its files
    trained_reading(folder)  # refuses vectors that the merge could not have
    tokenizer = TextTokenizer.load(folder)
    # Rows of the embeddings are merged by number, so equal numbers must be equal tokens.
    if difference := token_difference(sides[0].folder, tokenizer):
        named = f"{sides[0].folder}: {difference} that of {folder}"
        raise ModelError(f"{named}; merge models of one tokenizer")
    identities = {"base": sides[0].identity, "adapted": sides[1].identity}
    # Merges without groups have the identities that they had before there were groups.
    # `float`, as 1 and 1.0 are written differently and would give two identities.
    settings: dict[str, Any] = {**identities, "weight": float(weight), "method": method}
    if groups:
        settings["groups"] = {group: float(share) for group, share in groups.items()}
    record = {
        "format": _MERGE_FORMAT,
        "identity": digest(settings),
        **settings,
        "biphasic": __version__,
    }
    with sole_writer(out):
        if is_complete(out):
            made = MODEL.open(out).verify().manifest
            if made.get("merge") == record["identity"]:
                return out
        refuse_existing(out)
        bodies = [empty_body(side.folder).named_parameters() for side in sides]  # without weights
        # By bodies without weights, before gigabytes are read.
        _check_shapes(*({name: tuple(tensor.shape) for name, tensor in body} for body in bodies))
        models = [load_pretrained(side.folder, head_for=()) for side in sides]
        before, after = map(saved_tensors, models)
        shares = shares_of(after, weight, groups)
        merged = merge_tensors(before, after, shares=shares, method=method)
        # As it was saved: loading for training changes attention. Weights are written in fp32.
        config = read_json(folder / "config.json")
        if "auto_map" in config:  # code of a class of its own, which the merge does not have
            config = read_config(folder).to_dict()
        config["architectures"] = [type(models[1]).__name__]  # a fine-tuned head is not merged
        if (vectors := TrainedVectors.in_folder(folder)).is_on_pairs:
            turned = causal_config if vectors.causal else bidirectional_config
            config = turned(read_config(folder), tokenizer).to_dict()
        config["dtype"] = "float32"
        if objective := last_reading(folder):
            config[OBJECTIVE] = objective
        with complete_folder(out, merge=record["identity"]) as partial:
            save_tensors(merged, partial / "model.safetensors", {"format": "pt"})
            write_json(partial / "config.json", config)
            write_json(partial / MERGE_RECORD, record)
            tokenizer.save_with_model(partial)
            _write_vectors_of(folder, vectors, partial)
    return out


def _write_vectors_of(model: Path, vectors: TrainedVectors, partial: Path) -> None:
    """Write how a model makes vectors: of pairs that a state was trained on, or its own files."""
    if vectors.is_on_pairs:
        write_sentence_transformers(
            partial,
            hidden_size=read_config(model).hidden_size,
            max_seqlen=model_limits(model).longest_input,
            prompts=vectors.prompts,
            pooling=vectors.pooling,
            similarity=vectors.similarity,
        )
    elif (model / MODULES).is_file():
        # Also the tokenizer's: which special tokens frame a text decides vectors.
        files = (*SENTENCE_FILES, "*token*.json")
        for path in chain.from_iterable(map(model.glob, files)):
            copied = partial / path.relative_to(model)
            copied.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copied)


def shares_of(names: Iterable[str], weight: float, groups: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each tensor: that of its group, or else `weight`."""
    places = {name: _place(name) for name in names}
    shares: dict[str, float] = {}
    for group, share in groups.items():
        members = _group_members(group)
        names_of_group = [name for name, place in places.items() if place in members]
        if absent := sorted(members.difference(places.values()), key=str):
            raise ConfigError(f"group '{group}': the models have no weights of {absent[0]}")
        if twice := next((name for name in names_of_group if name in shares), None):
            raise ConfigError(f"group '{group}': {twice} is in another group, too")
        shares.update(dict.fromkeys(names_of_group, share))
    return dict.fromkeys(places, weight) | shares


def _group_members(group: str) -> frozenset[int | str]:
    """Return the layers of a group, or its name."""
    if group in ("embeddings", "rest"):
        return frozenset({group})
    layers = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", group)
    first, last = (int(layers[1]), int(layers[2] or layers[1])) if layers else (1, 0)
    if first > last:
        raise ConfigError(f"group '{group}': give a layer as 3, layers as 0-5, embeddings, or rest")
    return frozenset(range(first, last + 1))


def _place(name: str) -> int | str:
    """Return the layer that a tensor is in, or the name of its group outside of layers."""
    if numbered := re.search(r"\.(\d+)\.", name):
        return int(numbered[1])
    return "embeddings" if "embed" in name or ".wte." in name or ".wpe." in name else "rest"


def _check_shapes(
    base: Mapping[str, tuple[int, ...]], adapted: Mapping[str, tuple[int, ...]]
) -> None:
    """Check that weights can be merged; `base` may lack rows."""
    if other := sorted(base.keys() ^ adapted.keys()):
        raise ModelError(
            f"the models have different weights, e.g. {other[0]}; merge models of one architecture"
        )
    for name, after in adapted.items():
        before = base[name]
        if before[1:] != after[1:] or before[:1] > after[:1]:
            raise ModelError(
                f"{name} has the shapes {before} and {after}; merge models of one architecture"
            )


def merge_tensors(
    base: Mapping[str, Tensor],
    adapted: Mapping[str, Tensor],
    *,
    shares: Mapping[str, float],
    method: Method,
) -> dict[str, Tensor]:
    """Return tensors by name between those of two models; rows that `base` lacks are kept.

    `shares` has the share of `adapted` for each tensor.
    """
    _check_shapes(*({n: tuple(t.shape) for n, t in side.items()} for side in (base, adapted)))
    merged: dict[str, Tensor] = {}
    for name, tensor in adapted.items():
        before, after = base[name].detach(), tensor.detach()
        merged[name] = after.clone()
        if after.is_floating_point():  # Integer buffers are tables, such as those of hash routers.
            rows = merged[name][: len(before)] if after.ndim else merged[name]
            rows.copy_(_between(before, rows, shares[name], method))
    return merged


def _between(before: Tensor, after: Tensor, share: float, method: Method) -> Tensor:
    """Return the tensor at a share of the way from one to another."""
    shares = 1 - share, share
    if method == "spherical":
        lengths = float(before.norm()) * float(after.norm())
        # Tensors of zeros have no angle, and are merged linearly.
        cosine = float((before * after).sum()) / lengths if lengths else 1.0
        # Rounding may leave the range of a cosine.
        angle = math.acos(min(max(cosine, -1.0), 1.0))
        # The sine of a small angle, or of a half turn, leaves no digits.
        if _LEAST_ANGLE < angle < math.pi - _LEAST_ANGLE:
            shares = math.sin((1 - share) * angle), math.sin(share * angle)
            shares = tuple(share / math.sin(angle) for share in shares)
    return shares[0] * before + shares[1] * after
