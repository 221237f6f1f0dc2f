"""Which token stands for hidden ones, and that no text has it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from biphasic.data.building.mask_token import (
    count_special_tokens,
    refuse_if_present,
    with_mask_token,
)
from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import MASK, TextTokenizer, write_tokenizer
from biphasic.errors import DataError
from text_corpus import write_corpus

TEXT = "the array of rows holds tokens and their weights"
ENDS = "<|end|>"
FIRST = 260  # the id of the first entry that a test adds


def byte_level(*special: str, plain: tuple[str, ...] = ()) -> TextTokenizer:
    """A decoder's tokenizer, without a mask: `FIRST` entries, then the given ones in order."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=FIRST,
        special_tokens=[ENDS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 5, trainer)
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    made.add_tokens([AddedToken(token, special=False) for token in plain])
    return TextTokenizer(made, {"bos": ENDS, "eos": ENDS, "pad": ENDS})


def unigram(*pieces: str) -> TextTokenizer:
    """A vocabulary that holds spellings as T5's does: pieces that any text can use."""
    letters = [(letter, -5.0) for letter in sorted(set(TEXT))]
    entries = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), *letters]
    made = Tokenizer(models.Unigram([*entries, *((piece, 0.0) for piece in pieces)], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(["</s>", *pieces])
    return TextTokenizer(made, {"bos": "</s>", "eos": "</s>", "pad": "</s>"})


def chosen(tokenizer: TextTokenizer) -> tuple[str, int, bool]:
    """Return the mask token, its id, and whether it is new."""
    masked, _ = with_mask_token(tokenizer)
    is_new = masked.vocab_size > tokenizer.vocab_size
    return masked.special_tokens["mask"], masked.mask_id, is_new


def test_a_declared_mask_token_is_kept(tokenizer):
    masked, reason = with_mask_token(tokenizer)
    assert masked is tokenizer
    assert chosen(tokenizer) == (MASK, 3, False)
    assert "declares" in reason


@pytest.mark.parametrize("role", ["bos", "eos", "pad"])
def test_a_mask_token_with_another_role_is_none(role):
    made = Tokenizer.from_str(json.dumps(byte_level("<unused0>").rules()))
    tokens = {"bos": ENDS, "eos": ENDS, "pad": ENDS, "mask": "<mask>", role: "<mask>"}
    made.add_special_tokens(["<mask>"])
    tokenizer = TextTokenizer(made, tokens)
    assert chosen(tokenizer) == ("<unused0>", FIRST, False)
    _, reason = with_mask_token(tokenizer)
    assert reason.startswith(f"the declared <mask> is also the {role} token; the vocab")


@pytest.mark.parametrize(
    "names",
    [
        ("<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
        ("<|reserved_special_token_247|>",),
        ("<unused0>", "<unused1>"),
        ("[unused0]", "[unused99]"),
        ("<|reserved_token_163600|>",),
        (">>UNUSED_119<<",),
        ("<|placeholder1|>",),
        ("<|dummy_0|>",),
        ("[control_8]",),
    ],
    ids=lambda names: names[0],
)
@pytest.mark.parametrize("is_special", [True, False])
def test_the_first_entry_that_is_kept_free_is_taken(names, is_special):
    tokenizer = byte_level(*names) if is_special else byte_level(plain=names)
    assert chosen(tokenizer) == (names[0], FIRST, False)
    assert tokenizer.vocabulary()[names[0]] == FIRST
    assert names[0] in with_mask_token(tokenizer)[1]


@pytest.mark.parametrize(
    "name",
    [
        "<|fim_prefix|>",
        "<extra_id_0>",
        "<|im_start|>",
        "<|reserved|>",
        "unused0",
        "<unused>",
        "<reserved_106>",
        "[UNUSED_TOKEN_145]",
        "<SPECIAL_10>",
        "<|finetune_right_pad_id|>",
        "a<unused0>",
    ],
)
def test_entries_that_models_are_trained_with_are_not_reused(name):
    assert chosen(byte_level(name)) == (MASK, FIRST + 1, True)
    assert "a spare row of the embedding, or a new one" in with_mask_token(byte_level(name))[1]


def test_a_reserved_entry_that_serves_another_role_is_not_taken():
    tokenizer = byte_level("<unused0>", "<unused1>")
    declared = {**tokenizer.special_tokens, "pad": "<unused0>"}
    taken = TextTokenizer(Tokenizer.from_str(json.dumps(tokenizer.rules())), declared)
    assert chosen(taken) == ("<unused1>", FIRST + 1, False)


@pytest.mark.parametrize("name", [MASK, "<mask>", "[MASK]"])
def test_a_mask_token_that_nothing_declares_goes_before_reserved_ones(name):
    tokenizer = byte_level("<unused0>", name)
    assert chosen(tokenizer) == (name, FIRST + 1, False)
    assert "although it is not declared" in with_mask_token(tokenizer)[1]


def test_a_candidate_that_text_can_spell_is_passed_over():
    tokenizer = unigram("<unused0>", "<mask>")
    # The danger is real: the spelling alone gives the id.
    assert tokenizer.vocabulary()["<unused0>"] in tokenizer.encode("<unused0>")
    assert chosen(tokenizer) == (MASK, tokenizer.vocab_size, True)


def test_a_new_token_s_name_is_free():
    tokenizer = unigram(MASK, "<|mask_1|>")
    assert chosen(tokenizer) == ("<|mask_2|>", tokenizer.vocab_size, True)


@given(st.lists(st.sampled_from(["<unused0>", " ", "the", "<", "0", ">", "\n"]), max_size=12))
@pytest.mark.parametrize(
    "tokenizer",
    [
        byte_level("<unused0>"),
        byte_level(plain=("<unused0>",)),
        byte_level(),
        unigram(),
        unigram("<unused0>", "<mask>"),
    ],
    ids=["special", "plain", "new", "unigram", "unigram-spelt"],
)
def test_no_text_gets_the_chosen_id(tokenizer, parts):
    masked, _ = with_mask_token(tokenizer)
    text = "".join(parts).replace("<unused0>", masked.special_tokens["mask"])
    assert masked.mask_id not in masked.encode(text)
    assert masked.mask_id not in masked.encode_many([text])[0]


def test_a_choice_survives_saving(tmp_path):
    masked, _ = with_mask_token(byte_level(plain=("<unused0>",)))
    write_tokenizer(masked, tmp_path / "masked")
    loaded = TextTokenizer.load(tmp_path / "masked")
    assert loaded.sha256 == masked.sha256
    assert FIRST not in loaded.encode("a <unused0> b")
    assert chosen(loaded) == ("<unused0>", FIRST, False)


def with_gap(entry_id: int) -> TextTokenizer:
    """The ids up to 259, and one more."""
    content = byte_level().rules()
    content["model"]["vocab"]["zz"] = entry_id
    roles = {"bos": ENDS, "eos": ENDS, "pad": ENDS}
    return TextTokenizer(Tokenizer.from_str(json.dumps(content)), roles)


def test_nothing_can_be_appended_to_a_vocabulary_with_gaps():
    # The next id would be the number of entries, 261, which the last entry may have already.
    for entry_id in (FIRST + 1, FIRST + 50):
        with pytest.raises(DataError, match="has gaps"):
            with_mask_token(with_gap(entry_id))
    assert chosen(with_gap(FIRST)) == (MASK, FIRST + 1, True)


class Ids:
    """Ids as given."""

    sha256, vocab_size = "0" * 64, 300

    def rules(self):
        return {}

    def encode_many(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


def build(folder, *texts, **options) -> Corpus:
    documents = [(f"doc {number}", text) for number, text in enumerate(texts)]
    return write_corpus(folder, documents, Ids(), provenance={}, **options)


@pytest.mark.parametrize("block_tokens", [3, 1 << 22])
@pytest.mark.parametrize("block_bytes", [1, 6, 1 << 20])
def test_a_corpus_with_the_mask_token_is_refused(tmp_path, monkeypatch, block_bytes, block_tokens):
    monkeypatch.setattr("biphasic.data.corpus._BLOCK_TOKENS", block_tokens)
    texts = ("1 2 3", "4", "5 6 7", "8 9 7")
    corpus = build(tmp_path / "c", *texts, block_bytes=block_bytes)
    for mask_id, document in [(1, 0), (3, 0), (4, 1), (5, 2), (7, 2), (9, 3)]:
        with pytest.raises(DataError) as refused:
            refuse_if_present(corpus, mask_id)
        assert str(refused.value) == (
            f"{corpus.folder}: document 'doc {document}' contains the mask token (id {mask_id}), "
            "so hidden tokens and text would look the same; remove documents that spell it, or "
            "use another tokenizer"
        )
    for absent in (0, 10, 299):
        refuse_if_present(corpus, absent)


def test_special_tokens_that_text_spells_are_counted(tmp_path):
    tokenizer = unigram("<mask>")  # its </s> is in the vocabulary, as in T5's
    pairs = [("a", "the rows"), ("b", "the </s> rows </s>"), ("c", "</s>")]
    corpus = write_corpus(tmp_path / "c", pairs, tokenizer, provenance={}, block_bytes=10)
    assert count_special_tokens(corpus, tokenizer) == {"</s>": 3}
    corpus = write_corpus(tmp_path / "d", pairs[:1], tokenizer, provenance={})
    assert count_special_tokens(corpus, tokenizer) == {}
