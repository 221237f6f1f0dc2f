"""A tokenizer for the data path, from Hugging Face's files, without importing transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from biphasic.data.tokens.framing import continuing, framed, own_part, unframed
from biphasic.errors import DataError, naming
from biphasic.files import (
    canonical_json,
    expanded,
    is_file,
    is_folder,
    json_value,
    read_json,
    read_json_object,
    refuse_file,
)
from biphasic.hub import fetch_files
from biphasic.shown import Shown
from biphasic.store import EXPORT, MANIFEST, TOKENIZER, complete_folder

BOS, EOS, PAD, MASK = "<|bos|>", "<|eos|>", "<|pad|>", "<|mask|>"
# Names under which a tokenizer's files may declare each role, in order of preference. Decoders such
# as Qwen declare only one token, between documents: it is used as both BOS and EOS.
_ROLES = {
    "bos": ("bos_token", "cls_token", "eos_token"),
    "eos": ("eos_token", "sep_token"),
    "pad": ("pad_token", "eos_token", "sep_token"),
    "mask": ("mask_token",),
}
# Not used here, but preserved.
_FURTHER = ("unk_token", "cls_token", "sep_token")
_VOCABULARY = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
# Older tokenizers declare special tokens in a separate file; the settings take precedence.
_SPECIAL_TOKENS = "special_tokens_map.json"
_MODEL = "config.json"
# Unused ids that a small vocabulary may have; larger ones may leave as many as they use.
_MOST_GAPS = 1 << 16
_EDITED = f"restore it, or delete {MANIFEST} if you changed it on purpose"
# In the settings of a state's tokenizer: the rules that framing replaced.
_OWN = "biphasic_unframed"
# Families of which some models were published with a wrong pattern, and how large their vocabulary
# is at least: https://huggingface.co/mistralai/Mistral-Small-3.1-24B-Instruct-2503/discussions/84.
_MISTRAL = ("mistral", "mistral3", "voxtral", "ministral", "pixtral")
_MISTRAL_VOCABULARY = 100_000


class TextTokenizer:
    """Converts text to ids and back, without special tokens; their ids are attributes.

    A tokenizer may lack a mask token; accessing `mask_id` then raises an error.

    BOS precedes documents and EOS follows them.

    Attributes:
        special_tokens: Tokens of the four roles: bos, eos, pad and, if there is one, mask.
        vocab_size: The highest id plus one.
        warning: A known error of the files, and its remedy; empty if there is none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str],
        *,
        further_tokens: Mapping[str, str] | None = None,
        warning: str = "",
    ) -> None:
        """Wrap a tokenizer; disable its truncation, padding, dropout and special tokens in text."""
        # Text that spells a special token must stay text.
        tokenizer.encode_special_tokens = True
        # Some tokenizers save these with the vocabulary; they would silently cut or pad documents.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # BPE dropout, which some were trained with, would give the same text other ids each time.
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens)
        self._further_tokens = dict(further_tokens or {})
        self.warning = warning
        self.bos_id = self._special_id("bos")
        self.eos_id = self._special_id("eos")
        self.pad_id = self._special_id("pad")
        # Not the number of entries: some vocabularies have gaps. Models have a row for each id.
        vocabulary = self.vocabulary()
        token, highest = max(vocabulary.items(), key=lambda item: item[1])
        if highest > _MOST_GAPS + 2 * len(vocabulary):
            raise DataError(
                f"the tokenizer's token {token!r} has id {highest:,}, but there are only "
                f"{len(vocabulary):,} entries; correct {_VOCABULARY}"
            )
        self.vocab_size: int = highest + 1

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that determines ids: vocabulary, rules, and the four roles."""
        identity = canonical_json([self.rules(), self.special_tokens])
        return hashlib.sha256(identity.encode()).hexdigest()

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """Read a tokenizer from a folder in Hugging Face's format."""
        return _read(folder, str(folder))

    def save(self, folder: Path) -> None:
        """Write the two files that Hugging Face's `AutoTokenizer` reads."""
        with naming(folder / _VOCABULARY):
            self._tokenizer.save(str(folder / _VOCABULARY))
        self._save_settings(folder, {})

    def save_framed(self, folder: Path, **settings: Any) -> None:
        """Write the same files, with which `AutoTokenizer` frames texts as training does."""
        (folder / _VOCABULARY).write_text(self._framed_text, encoding="utf-8")
        self._save_settings(folder, settings)

    def save_with_model(self, folder: Path) -> None:
        """Write the files of `save_framed`; `load` restores this tokenizer, with the same hash."""
        model_part = own_part(self.rules(), self.special_tokens.get("mask"))
        self.save_framed(folder, **{_OWN: model_part})

    def _save_settings(self, folder: Path, further: Mapping[str, Any]) -> None:
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self._further_tokens,
            **{f"{role}_token": token for role, token in self.special_tokens.items()},
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **further,
        }
        (folder / _SETTINGS).write_text(
            json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )

    @cached_property
    def _framed_text(self) -> str:
        rules = framed(
            self.rules(),
            self.special_tokens,
            vocabulary=self.vocabulary(),
            separator=self.separator_ids,
        )
        # Without `indent`, which takes ten times as long: it has no encoder in C.
        return json.dumps(rules, ensure_ascii=False) + "\n"

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    @cached_property
    def within_text(self) -> TextTokenizer:
        """The tokenizer of text that another text precedes, such as text after a mask."""
        rules = self.rules()
        if (changed := continuing(rules)) == rules:
            return self
        return TextTokenizer(Tokenizer.from_str(json.dumps(changed)), self.special_tokens)

    def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of one text, and the start and end of each in it, in characters."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    @property
    def separator_ids(self) -> list[int]:
        """Ids between a question and its context: a line break, or EOS where text has none."""
        return self.encode("\n") or [self.eos_id]

    def rules(self) -> dict[str, Any]:
        """Return the content of `tokenizer.json`: vocabulary, model, and rules."""
        return json.loads(self._tokenizer.to_str())

    def vocabulary(self) -> dict[str, int]:
        """Return all tokens with their ids, including added and special ones."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def with_mask(self, token: str) -> TextTokenizer:
        """Return a tokenizer whose mask is `token`, added to the vocabulary if it is new."""
        # Text that spells it stays text, unless the vocabulary itself contains the spelling.
        is_new = self._tokenizer.token_to_id(token) is None
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        special_tokens = {**self.special_tokens, "mask": token}
        changed = TextTokenizer(tokenizer, special_tokens, further_tokens=self._further_tokens)
        # The library uses the number of entries as the next id, which is taken if there are gaps.
        if is_new and changed.mask_id != self.vocab_size:
            raise DataError(
                f"the tokenizer's vocabulary has gaps ({len(self.vocabulary())} entries, ids up to "
                f"{self.vocab_size - 1}), so no token can be added; use another tokenizer"
            )
        return changed

    @property
    def mask_id(self) -> int:
        """The mask token."""
        if "mask" not in self.special_tokens:
            raise DataError(
                "the tokenizer has no mask token, which masked language modelling needs; set "
                f"'mask_token' in its {_SETTINGS} to a token that no text contains"
            )
        return self._special_id("mask")

    @cached_property
    def unknown_token(self) -> str | None:
        """The token of text that the vocabulary lacks; None without one, or if it has a role."""
        model = self.rules()["model"]
        place = model.get("unk_id")  # of Unigram; the other models name the token
        token = model.get("unk_token") if place is None else model["vocab"][place][0]
        is_used = token in self.vocabulary() and token not in self.special_tokens.values()
        return token if is_used else None

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the four roles: bos, eos, pad and, if there is one, mask."""
        return {role: self._special_id(role) for role in self.special_tokens}

    def _special_id(self, role: str) -> int:
        token = self.special_tokens[role]
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise DataError(
                f"the tokenizer's {role} token {token!r} is not in its vocabulary; correct the "
                f"special tokens in its {_SETTINGS}"
            )
        return token_id


def load_tokenizer(name_or_folder: str | Path, *, revision: str | None = None) -> TextTokenizer:
    """Read a tokenizer from a folder or, if there is none, that of a model on the hub."""
    folder = expanded(name_or_folder)
    refuse_file(folder)
    if str(name_or_folder) and is_folder(folder):
        if revision:
            raise DataError(f"{folder}: a folder has no revisions; omit '{revision}'")
        _refuse_edited(folder)
        return TextTokenizer.load(folder)
    if isinstance(name_or_folder, Path):
        raise DataError(f"{folder}: no such folder")
    files = (_VOCABULARY, _SETTINGS, _SPECIAL_TOKENS, _MODEL)
    return _read(fetch_files(name_or_folder, files, revision=revision), name_or_folder)


def _refuse_edited(folder: Path) -> None:
    """Check a tokenizer's files, if its folder has a manifest or card with their hashes."""
    for kind, remedy in ((TOKENIZER, _EDITED), (EXPORT, None)):
        if kind.is_sealed(folder):
            sealed = kind.open(folder, remedy=remedy)
            for name in (_VOCABULARY, _SETTINGS, _SPECIAL_TOKENS):
                if is_file(folder / name):
                    sealed.check(name)


def _read(folder: Path, name: str) -> TextTokenizer:
    """Read a tokenizer; `name` is used in messages."""
    path = folder / _VOCABULARY
    if not path.is_file():
        raise DataError(_only_fast(name))
    settings = _settings(folder, name)
    declared = _declared_tokens(settings, name)
    special_tokens = {}
    for role, names in _ROLES.items():
        token = next((declared[key] for key in names if key in declared), None)
        if token is not None:
            special_tokens[role] = token
        elif role != "mask":
            raise DataError(
                f"{name}: the tokenizer has no {role} token; set '{names[0]}' in "
                f"{_SETTINGS} to a token of its vocabulary"
            )
    try:
        text = path.read_text(encoding="utf-8")
        tokenizer = _parsed(text, json.dumps(settings.get(_OWN)), special_tokens.get("mask"))
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        raise DataError(f"{path}: cannot be read ({error})") from None
    # Transformers would add a token that is not in the vocabulary.
    further = {
        key: declared[key]
        for key in _FURTHER
        if key in declared and tokenizer.token_to_id(declared[key]) is not None
    }
    warning = _pattern_warning(tokenizer, folder, name)
    return _wrapped(tokenizer, tuple(special_tokens.items()), tuple(further.items()), warning)


def _pattern_warning(tokenizer: Tokenizer, folder: Path, name: str) -> str:
    """Say that words are split by Mistral's wrong pattern; transformers has the same rule."""
    if tokenizer.get_vocab_size() <= _MISTRAL_VOCABULARY or not (folder / _MODEL).is_file():
        return ""
    config = read_json_object(folder / _MODEL)
    # Later releases write the pattern with which a model was trained.
    is_old = str(config.get("transformers_version") or "4").partition(".")[0] in {"3", "4"}
    if not is_old or config.get("model_type") not in _MISTRAL:
        return ""
    rules = str(json.loads(tokenizer.to_str())["pre_tokenizer"])
    if "Regex" not in rules or r"\p{Lu}" in rules:  # the right one tells upper from lower case
        return ""
    return (
        f"{name}: {_VOCABULARY} splits words by the wrong pattern that Mistral published with some "
        "models, so ids differ from those that the model was trained on; correct it with "
        f"AutoTokenizer.from_pretrained({name!r}, fix_mistral_regex=True).save_pretrained(FOLDER), "
        "where FOLDER has the model's other files"
    )


# A command reads the same tokenizer many times: of the model, the corpus, the state, and so on.
@lru_cache(maxsize=4)
def _parsed(text: str, own: str, mask: str | None) -> Tokenizer:
    """Parse a `tokenizer.json`; `own` are the rules that framing replaced, as JSON."""
    if own == "null":
        return Tokenizer.from_str(text)
    return Tokenizer.from_str(json.dumps(unframed(json_value(text), json.loads(own), mask)))


@lru_cache(maxsize=4)
def _wrapped(
    tokenizer: Tokenizer,
    special: tuple[tuple[str, str], ...],
    further: tuple[tuple[str, str], ...],
    warning: str,
) -> TextTokenizer:
    """Return the tokenizer with its roles: one object, whose hash is computed once."""
    return TextTokenizer(tokenizer, dict(special), further_tokens=dict(further), warning=warning)


def _settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the settings in a tokenizer's files, without empty ones."""
    files = [file for file in (_SPECIAL_TOKENS, _SETTINGS) if (folder / file).is_file()]
    if not files:
        raise DataError(f"{name}: no {_SETTINGS}, which declares the special tokens")
    declared: dict[str, Any] = {}
    for file in files:
        content = read_json(folder / file)
        if not isinstance(content, dict):
            raise DataError(f"{folder / file}: expected a mapping of settings")
        declared.update({key: value for key, value in content.items() if value})
    return declared


def _declared_tokens(declared: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the special tokens that settings declare, by the files' names for them."""
    known_keys = {key for names in _ROLES.values() for key in names} | set(_FURTHER)
    tokens: dict[str, Any] = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in declared.items()
        if key in known_keys
    }
    for key, token in tokens.items():
        if not isinstance(token, str):
            raise DataError(
                f"{name}: '{key}' is declared as {declared[key]!r}, which is not a token"
            )
    return tokens


def _only_fast(name: str) -> str:
    return (
        f"{name}: no {_VOCABULARY}; only fast tokenizers are supported: load it with transformers' "
        "AutoTokenizer, save it to a folder with save_pretrained, and use that folder"
    )


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> TextTokenizer:
    """Train a byte-level BPE tokenizer.

    Reference: Radford et al. 2019, "Language models are unsupervised multitask learners",
    section 2.2.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TextTokenizer(tokenizer, {"bos": BOS, "eos": EOS, "pad": PAD, "mask": MASK})


def write_tokenizer(tokenizer: TextTokenizer, folder: Path, **notes: str) -> None:
    """Write a tokenizer as a separate complete folder; its manifest keeps the notes."""
    with complete_folder(folder, sha256=tokenizer.sha256, **notes) as partial:
        tokenizer.save(partial)


@dataclass(frozen=True, repr=False)
class TrainedTokenizer(Shown):
    """The result of `tokenizer.train`.

    Attributes:
        folder: Folder of the tokenizer.
        vocab_size: Entries of its vocabulary.
        notes: What was read; a note if it was made before.
    """

    folder: Path
    vocab_size: int
    notes: tuple[str, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for the tokenizer."""
        return [{"folder": str(self.folder), "vocab_size": self.vocab_size}]

    def lines(self) -> Sequence[str]:
        """Return what was read, and the folder."""
        return self.notes


@dataclass(frozen=True, repr=False)
class CheckedTokenizer(Shown):
    """The result of `tokenizer.check`.

    Attributes:
        special: Each special token's role, text and id; the last is the mask token of a corpus.
        mask_reason: Why this is the mask token.
        vocab_size: Number of ids, with the mask token.
        warning: A known error of the files, and its remedy; empty if there is none.
    """

    special: tuple[tuple[str, str, int], ...]
    mask_reason: str
    vocab_size: int
    warning: str = ""

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each special token."""
        return [{"role": role, "token": token, "id": id_} for role, token, id_ in self.special]

    def lines(self) -> Iterator[str]:
        """Return the special tokens, the size of the vocabulary, and a warning."""
        for role, token, id_ in self.special:
            reason = f": {self.mask_reason}" if role == "mask" else ""
            yield f"{role:<13} {token} ({id_}){reason}"
        yield f"{'vocabulary':<13} {self.vocab_size:,} ids"
        yield f"{'bytes per id':<13} {2 if self.vocab_size <= 1 << 16 else 4}"
        if self.warning:
            yield f"warning: {self.warning}"
