"""A tokenizer as the data path uses it: ids, character offsets, and four special tokens.

Any folder with `tokenizer.json` and `tokenizer_config.json` in Hugging Face's format will do; the
`tokenizers` library reads it directly, so nothing here imports transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from biphasic.errors import DataError
from biphasic.files import canonical_json, complete_folder, read_json

BOS, EOS, PAD, MASK = "<|bos|>", "<|eos|>", "<|pad|>", "<|mask|>"
# The names under which a tokenizer_config.json may declare each role, in order of preference.
_ROLES = {
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "pad": ("pad_token", "eos_token", "sep_token"),
    "mask": ("mask_token",),
}


class TextTokenizer:
    """Text to ids and back, without special tokens; their ids stand beside.

    A tokenizer may lack a mask token; then whoever asks for it is told.
    """

    def __init__(self, tokenizer: Tokenizer, special_tokens: dict[str, str]) -> None:
        # Text that spells a special token stays text: it must not become one.
        tokenizer.encode_special_tokens = True
        # Some makers save these with the vocabulary; they would cut or pad documents unseen.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self.bos_id = self._special_id("bos")
        self.eos_id = self._special_id("eos")
        self.pad_id = self._special_id("pad")
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        identity = canonical_json([json.loads(tokenizer.to_str()), special_tokens])
        self.sha256 = hashlib.sha256(identity.encode()).hexdigest()

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """Read a tokenizer from a folder in Hugging Face's format.

        Raises:
            DataError: A file is missing, or the tokenizer lacks a token that training needs.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise DataError(f"{folder}: no tokenizer.json; only fast tokenizers can be used")
        declared = read_json(folder / "tokenizer_config.json")
        special_tokens = {}
        for role, names in _ROLES.items():
            token = next((declared[name] for name in names if declared.get(name)), None)
            if token is None and role == "mask":
                continue
            if token is None:
                raise DataError(
                    f"{folder}: the tokenizer has no {role} token; set '{names[0]}' in "
                    "tokenizer_config.json to a token of its vocabulary"
                )
            special_tokens[role] = token["content"] if isinstance(token, dict) else token
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
            raise DataError(f"{path}: cannot be read ({error})") from None
        return cls(tokenizer, special_tokens)

    def save(self, folder: Path) -> None:
        """Write the two files that Hugging Face's `AutoTokenizer` reads."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{role}_token": token for role, token in self._special_tokens.items()},
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of one text, and where each begins and ends in it, in characters."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    @property
    def mask_id(self) -> int:
        """The mask token.

        Raises:
            DataError: There is none.
        """
        if "mask" not in self._special_tokens:
            raise DataError(
                "the tokenizer has no mask token, which masked language modelling needs; set "
                "'mask_token' in its tokenizer_config.json to a token that no text contains"
            )
        return self._special_id("mask")

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the four roles: bos, eos, pad and, where there is one, mask."""
        return {role: self._special_id(role) for role in self._special_tokens}

    def _special_id(self, role: str) -> int:
        token = self._special_tokens[role]
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise DataError(f"the tokenizer's {role} token {token!r} is not in its vocabulary")
        return token_id


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


def write_tokenizer(tokenizer: TextTokenizer, folder: Path) -> None:
    """Write a tokenizer as a complete folder of its own."""
    with complete_folder(folder, sha256=tokenizer.sha256) as partial:
        tokenizer.save(partial)
