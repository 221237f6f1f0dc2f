"""Texts as vectors, as in training on pairs, or as sentence-transformers makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer

from biphasic.config import nearest
from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError, ModelError, ModelFilesError, reading
from biphasic.files import digest, file_sha256, read_json, read_json_object
from biphasic.hub import fetch_files
from biphasic.model.compute.device import on_compute_device
from biphasic.model.compute.forward import Pooling
from biphasic.model.contract import ModelLimits, load_checked_encoder, model_limits, tokenizer_limit
from biphasic.model.loading.configurations import is_decoder, is_open
from biphasic.model.loading.hub import check_intact, deciding_files, locate_model, once
from biphasic.model.loading.reading import loading, read_config
from biphasic.records import StateRecord
from biphasic.rows import Row
from biphasic.tasks.encoding import Encoder, are_long, over_windows, windows_of
from biphasic.tasks.inputs import refuse_long
from biphasic.tasks.protocol import WINDOW_OVERLAP
from biphasic.training.step.optimizer import set_precision

_STATE = "state.json"


@dataclass(frozen=True)
class TrainedVectors:
    """By default, means of states that are read in both directions, without prompts."""

    pooling: Pooling = "mean"
    attention: str = "bidirectional"
    prompts: Mapping[str, str] = field(default_factory=dict)  # by sentence-transformers' names
    similarity: str = "cosine"  # of two vectors, by sentence-transformers' name
    is_on_pairs: bool = False  # whether the last phase read pairs

    @property
    def causal(self) -> bool:
        """True if texts are read from left to right."""
        return self.attention == "causal"

    @classmethod
    def of(cls, state: StateRecord | None) -> TrainedVectors:
        """Return what the last phase of a state trained, if it trained on pairs."""
        phases = () if state is None else state.recipe.get("phases") or ()
        last: Mapping[str, Any] = phases[state.ledger[-1].phase] if state and state.ledger else {}
        named = {name: last.get(f"{name}_prompt") for name in ("query", "document")}
        return cls(
            pooling=last.get("pooling", cls.pooling),
            attention=last.get("attention", cls.attention),
            prompts={name: prompt for name, prompt in named.items() if prompt},
            similarity=last.get("similarity", cls.similarity),
            is_on_pairs="pairs" in last,
        )

    @classmethod
    def in_folder(cls, folder: Path) -> TrainedVectors:
        """Return what was trained into a model; the default if its folder is no state."""
        path = folder / _STATE
        return cls.of(
            StateRecord.model_validate(read_json_object(path)) if path.is_file() else None
        )


MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
# How texts are read; older folders have another name. The first one there counts.
_READINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "first", "lasttoken": "last"}
# Files by which sentence-transformers makes vectors of a model's states.
SENTENCE_FILES = (MODULES, _SETTINGS, "*/config.json", *_READINGS)
Precision = Literal["float32", "bfloat16"]
LongVectors = Literal["mean", "truncate"]  # of windows, or of a part
_SHORTEST_INPUT = 8  # tokens, special tokens included


@dataclass(frozen=True)
class EmbeddingSettings:
    """How a model embeds texts."""

    folder: Path
    max_seqlen: int  # in tokens; longer inputs are cut
    prefix: str  # prepended to every text
    is_lower_case: bool
    is_normalized: bool  # to length 1
    begin: tuple[int, ...]  # tokens before every text
    end: tuple[int, ...]  # tokens after every text
    pooling: Pooling  # state that stands for a text
    causal: bool  # whether texts are read from left to right
    similarity: str  # of two vectors, by sentence-transformers' name
    keeps_end: bool  # whether a text that is cut loses its beginning
    long_texts: LongVectors | None  # None: cut, but what people's files hold is refused
    is_sentences: bool = False  # whether the folder is read as sentence-transformers reads it


@dataclass(frozen=True, slots=True)
class Choices:
    """User settings; None uses the model's."""

    max_seqlen: int | None = None
    prefix: str | None = None
    prompt: str | None = None  # name of one of the model's prompts, instead of `prefix`
    normalize: bool = False
    long_texts: LongVectors | None = None

    @property
    def reading(self) -> LongVectors | None:
        """How long texts are read: a limit of one's own is there to cut them."""
        return self.long_texts or (None if self.max_seqlen is None else "truncate")


def fetch_embedding_model(model: str, *, revision: str | None = None) -> Path:
    """Find a model on disk or on the hub, with its sentence-transformers files."""
    folder, commit = locate_model(model, revision=revision)
    check_intact(folder)
    if commit is not None:
        fetch_files(model, SENTENCE_FILES, revision=commit)
    return folder


def warnings_on(folder: Path, *, name: str) -> Iterator[str]:
    """Yield the reasons why vectors of a model may be bad."""
    if wrong := TextTokenizer.load(folder).warning:
        yield wrong
    # A plain decoder, no export, state or embedding model, can embed texts, but with bidirectional
    # attention that it was never trained for.
    if (folder / MODULES).is_file() or (folder / _STATE).is_file():
        return
    from huggingface_hub import constants  # noqa: PLC0415 - slow to import

    # The cache may hold some of the files only.
    if folder.parent.name == "snapshots" and constants.HF_HUB_OFFLINE:
        yield (
            f"the hub is switched off, and its cache has no {MODULES} of {name}: vectors are means "
            "of states, which is wrong if the model pools otherwise"
        )
    config = read_config(folder)
    if is_decoder(config) and not is_open(config):
        yield (
            f"{name} is a decoder not trained for bidirectional attention; convert it to an "
            "encoder with 'biphasic adapt'"
        )


def trained_reading(folder: Path) -> EmbeddingSettings | None:
    """Return how an embedding model gives vectors to texts; None for other models."""
    is_on_pairs = (folder / MODULES).is_file() or TrainedVectors.in_folder(folder).is_on_pairs
    return embedding_settings(folder, Choices()) if is_on_pairs else None


def embedding_settings(folder: Path, choices: Choices) -> EmbeddingSettings:
    """Read how a model embeds, by its sentence-transformers files or else as in fine-tuning."""
    if choices.prefix is not None and choices.prompt is not None:
        raise ConfigError("--prefix and --prompt both set the text before each input; give one")
    if (how := choices.long_texts) not in (None, *get_args(LongVectors)):
        raise ConfigError(f"long_texts: unknown value '{how}'; give mean or truncate")
    with reading(folder, ModelFilesError):
        if (folder / MODULES).is_file():
            return _sentence_settings(folder, choices)
        trained = TrainedVectors.in_folder(folder)
        if choices.prompt is not None and not trained.prompts:
            raise ConfigError(
                f"--prompt {choices.prompt}: {folder} has no prompts; set the text with --prefix"
            )
        tokenizer = TextTokenizer.load(folder)
        limits = model_limits(folder)
        return EmbeddingSettings(
            folder=folder,
            max_seqlen=_limit(choices, limits, usual=limits.longest_input),
            prefix=_prefix(folder, choices, trained.prompts),
            pooling=trained.pooling,
            causal=trained.causal,
            is_lower_case=False,
            is_normalized=choices.normalize,
            begin=(tokenizer.bos_id,),
            end=(tokenizer.eos_id,),
            similarity=trained.similarity,
            keeps_end=False,
            long_texts=choices.reading,
        )


def _sentence_settings(folder: Path, choices: Choices) -> EmbeddingSettings:
    modules = read_json(folder / MODULES)
    names = [str(module["type"]).rpartition(".")[2] for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{folder}: its modules are {', '.join(names)}; only Transformer, Pooling and "
            "Normalize are supported: use sentence-transformers"
        )
    body = folder / modules[0]["path"]
    pooling = read_json_object(folder / modules[1]["path"] / "config.json")
    modes = pooling.get("pooling_mode")
    if modes is None:
        modes = [name for key, name in _MODES.items() if pooling.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(map(str, modes))
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        raise ModelError(
            f"{folder}: it pools by '{' and '.join(modes)}'; only one of {', '.join(_POOLINGS)} "
            "is supported: use sentence-transformers"
        )
    config = read_config(body)
    prefix = _prefix(folder, choices, prompts_of(folder))
    # The last token is never one of the prompt's.
    if prefix and modes != ["lasttoken"] and pooling.get("include_prompt") is False:
        raise ModelError(
            f"{folder}: it excludes the prompt from its pooling, which is not supported: use "
            "sentence-transformers"
        )
    paths = (body / name for name in _READINGS if (body / name).is_file())
    stated = read_json_object(path) if (path := next(paths, None)) else {}
    begin, end = _framing(body)
    limits = model_limits(body)
    longest = (
        stated.get("max_seq_length")
        or tokenizer_limit(body)
        or limits.positions
        or limits.longest_input
    )
    usual = min(int(longest), limits.positions or int(longest))
    return EmbeddingSettings(
        folder=body,
        max_seqlen=_limit(choices, limits, usual=usual),
        prefix=prefix,
        is_lower_case=bool(stated.get("do_lower_case")),
        is_normalized=choices.normalize or len(names) == 3,
        begin=begin,
        end=end,
        pooling=_POOLINGS[modes[0]],
        # Without `is_causal: false`, sentence-transformers runs decoders from left to right.
        causal=is_decoder(config) and not is_open(config),
        similarity=_stated(folder).get("similarity_fn_name") or "cosine",
        keeps_end=_stated(body, "tokenizer_config.json").get("truncation_side") == "left",
        long_texts=choices.reading,
        is_sentences=True,
    )


def files_digest(folder: Path) -> str:
    """Hash the files that decide a model's vectors."""
    # A model may be in a subfolder, the first module's.
    patterns = (*SENTENCE_FILES, "*/*.safetensors", "*/tokenizer.json", _STATE)
    more = chain.from_iterable(map(folder.glob, patterns))
    files = {path.relative_to(folder).as_posix(): path for path in (*deciding_files(folder), *more)}
    if not files:
        raise DataError(f"{folder}: no model")
    return digest({name: file_sha256(path) for name, path in files.items()})


def prompts_of(folder: Path) -> dict[str, str]:
    """Return the prompts of a sentence-transformers model, or of a state, by name."""
    if (folder / MODULES).is_file():
        return _stated(folder).get("prompts") or {}
    return dict(TrainedVectors.in_folder(folder).prompts)


def choices_by_role(folder: Path, choices: Choices) -> dict[str, Choices]:
    """Return the choices for queries and for documents: with the model's prompt, or without any."""
    # `encode_query` and `encode_document` of sentence-transformers do not use its default prompt.
    prompts = prompts_of(folder)
    return {
        role: replace(choices, prompt=role) if role in prompts else replace(choices, prefix="")
        for role in ("query", "document")
    }


def _stated(folder: Path, name: str = _SETTINGS) -> dict[str, Any]:
    return read_json_object(folder / name) if (folder / name).is_file() else {}


def _prefix(folder: Path, choices: Choices, prompts: Mapping[str, str]) -> str:
    if choices.prefix is not None:
        return choices.prefix
    name = choices.prompt or _stated(folder).get("default_prompt_name")
    if name is None:
        return ""
    if name not in prompts:
        raise ConfigError(f"--prompt {name}: {folder} has no such prompt{nearest(name, prompts)}")
    return prompts[name] or ""


def _framing(folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that a tokenizer adds before and after every text."""
    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{folder}: no tokenizer.json; only fast tokenizers are supported")
    tokenizer = once(_transformers_tokenizer, folder)
    inner = tokenizer.encode("a", add_special_tokens=False).ids
    framed = tokenizer.encode("a", add_special_tokens=True).ids
    start = next(
        (at for at in range(len(framed)) if framed[at : at + len(inner)] == inner), len(framed)
    )
    return tuple(framed[:start]), tuple(framed[start + len(inner) :])


def _transformers_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer as sentence-transformers loads it."""
    # A `tokenizer_class` may replace rules of tokenizer.json, and add special tokens.
    with loading(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _limit(choices: Choices, limits: ModelLimits, *, usual: int) -> int:
    if choices.max_seqlen is None:
        return usual
    if choices.max_seqlen < _SHORTEST_INPUT:
        raise ConfigError(f"--max-seqlen {choices.max_seqlen}: give at least {_SHORTEST_INPUT}")
    if limits.positions is not None and choices.max_seqlen > limits.positions:
        raise ConfigError(
            f"--max-seqlen {choices.max_seqlen} exceeds the model's {limits.positions} positions"
        )
    return choices.max_seqlen


@dataclass(frozen=True)
class Embedder:
    """A loaded model that embeds texts."""

    settings: EmbeddingSettings
    tokenizer: TextTokenizer
    encoder: Encoder
    batch_tokens: int | None  # None: the device's default

    @property
    def width(self) -> int:
        """Dimensions of a vector."""
        return self.encoder.model.config.hidden_size

    @torch.inference_mode()
    def embed(
        self, texts: Sequence[str], rows: Sequence[Row] = (), *, total: int | None = None
    ) -> tuple[NDArray[np.float32], int]:
        """Return a vector for each text, [num_texts, width], and how many texts were cut.

        With the `rows` of texts, of `total` ones, long texts are refused as by `refuse_long`.
        """
        settings = self.settings
        encoded = self._encoded([settings.prefix + text for text in texts])
        long = [len(ids) > self._room for ids in encoded]
        if rows:
            self._refuse(zip(rows, long, strict=True), total)
        is_whole = settings.long_texts == "mean"
        windows = self._windows([*compress(texts, long)])
        parts = [
            next(windows) if is_whole and is_long else [self._part(ids)]
            for ids, is_long in zip(encoded, long, strict=True)
        ]
        vectors = np.zeros((len(texts), self.width), dtype=np.float32)
        # A tokenizer without special tokens gives no tokens for an empty text.
        filled = [index for index, [first, *_] in enumerate(parts) if len(first)]
        if filled:
            chosen = [parts[index] for index in filled]
            pooled = self.encoder.pooled([*chain(*chosen)], batch_tokens=self.batch_tokens)
            if len(pooled) > len(chosen):
                pooled = over_windows(pooled, chosen, "mean")
            if settings.is_normalized:
                pooled = F.normalize(pooled, dim=-1)
            vectors[filled] = pooled.cpu().numpy()
        return vectors, 0 if is_whole else sum(long)

    def refuse_long(
        self, batches: Iterable[Sequence[tuple[Row, str]]], *, total: int | None
    ) -> None:
        """Refuse texts that are longer than the model reads, unless `long_texts` is set."""

        def lengths() -> Iterator[tuple[Row, bool]]:
            for batch in batches:
                texts = [self.settings.prefix + text for _, text in batch]
                long = are_long(texts, self._encoded, room=self._room)
                yield from zip((row for row, _ in batch), long, strict=True)

        self._refuse(lengths(), total)

    def _refuse(self, rows: Iterable[tuple[Row, bool]], total: int | None) -> None:
        if self.settings.long_texts is None:
            part = "end" if self.settings.keeps_end else "beginning"
            remedy = f"--long-texts mean reads windows of it, and truncate reads its {part}"
            refuse_long(rows, limit=self.settings.max_seqlen, remedy=remedy, total=total)

    @property
    def _room(self) -> int:
        return self.settings.max_seqlen - len(self.settings.begin) - len(self.settings.end)

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        if self.settings.is_lower_case:
            lower = normalizers.Lowercase()
            texts = [lower.normalize_str(text) for text in texts]
        return self.tokenizer.encode_many(texts)

    def _part(self, ids: list[int]) -> TokenIds:
        """Return the sequence of a text from its ids, cut to fit."""
        settings, room = self.settings, self._room
        part = ids[max(0, len(ids) - room) :] if settings.keeps_end else ids[:room]
        return np.array([*settings.begin, *part, *settings.end], dtype=np.int64)

    def _windows(self, texts: Sequence[str]) -> Iterator[list[TokenIds]]:
        """Yield the windows of each text, with the prefix before every one of them."""
        settings = self.settings
        prefix, *encoded = self._encoded([settings.prefix, *texts])
        if len(prefix) >= self._room:
            raise ConfigError(
                f"--long-texts mean: the {len(prefix)} tokens before each text leave no room for it"
            )
        begin, limits = (*settings.begin, *prefix), {"max_seqlen": settings.max_seqlen}
        for ids in encoded:
            windows = windows_of(ids, begin, settings.end, **limits, overlap=WINDOW_OVERLAP)
            yield [sequence for _, sequence in windows]


_GPU_BATCH_TOKENS = 65_536


def load_embedder(
    settings: EmbeddingSettings,
    *,
    precision: Precision = "float32",
    batch_tokens: int | None = None,
    watch: Callable[[int, int], None] = lambda *_: None,
) -> Embedder:
    """Load a model for embedding; vectors are float32 in any precision."""
    model = load_checked_encoder(settings.folder, on_compute_device, causal=settings.causal)
    set_precision(model, "bf16" if precision == "bfloat16" else "fp32")
    tokenizer = TextTokenizer.load(settings.folder)
    if settings.is_sentences:
        rules = once(_transformers_tokenizer, settings.folder)
        tokenizer = TextTokenizer(rules, tokenizer.special_tokens)
    if batch_tokens is None and model.device.type != "cpu":
        batch_tokens = _GPU_BATCH_TOKENS
    how = (settings.causal, settings.pooling)
    encoder = Encoder(model.eval(), tokenizer.pad_id, watch, *how)
    return Embedder(settings, tokenizer, encoder, batch_tokens)
