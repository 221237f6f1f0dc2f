"""Tokenizers of exports: everyone's AutoTokenizer gives the ids that we train with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.export.hf import pair_ids, write_tokenizer
from biphasic.tasks.encoding import frame
from biphasic.tasks.kinds.questions import Answer, Question, question_windows
from biphasic.tasks.protocol import FinetuneProtocol
from tiny_use import sentencepiece

TEXT = "the rows of an array hold tokens [CLS] and their weights ?"


@pytest.fixture(scope="module")
def theirs(tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(tokenizer, folder, max_seqlen=20)
    return AutoTokenizer.from_pretrained(folder)


def wordpiece(post_processor: Any, prefix: bool = False) -> TextTokenizer:
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["[UNK]", *names.values()], show_progress=False
    )
    words.train_from_iterator([TEXT], trainer)
    words.post_processor = post_processor
    return TextTokenizer(words, names, further_tokens={"unk_token": "[UNK]"})


class TestIds:
    @settings(max_examples=60)
    @given(text=st.text(max_size=30))
    @example(text="<|mask|>")
    def test_single(self, text, tokenizer, theirs):
        expected = frame(tokenizer.encode(text), tokenizer, max_seqlen=20).tolist()
        assert theirs(text, truncation=True, split_special_tokens=True)["input_ids"] == expected
        if not any(token in text for token in tokenizer.special_tokens.values()):
            assert theirs(text, truncation=True)["input_ids"] == expected

    def test_pair_is_a_window_of_question_answering(self, tokenizer, theirs):
        question = Question("1", "what holds?", "an array holds", (Answer("array", 3),))
        protocol = FinetuneProtocol(max_seqlen=64, max_question_tokens=32, window_overlap=8)
        [window] = question_windows([question], tokenizer, protocol=protocol).windows
        found = theirs(question.question, question.context)["input_ids"]
        assert found == window.sequence.tolist()
        assert found == pair_ids(tokenizer, question.question, question.context)

    def test_padding_on_the_right(self, tokenizer, theirs):
        batch = theirs(["rows", "rows of the array"], padding=True)
        assert batch["input_ids"][0][-1] == tokenizer.pad_id
        assert batch["attention_mask"][0][-1] == 0
        assert set(batch) == {"input_ids", "attention_mask"}

    def test_roles(self, tokenizer, theirs):
        assert theirs.mask_token_id == tokenizer.mask_id
        assert theirs.pad_token_id == tokenizer.pad_id
        assert theirs.model_max_length == 20

    def test_spelling_of_a_special_token(self, tokenizer, tmp_path):
        """Everyone reads it as the token, which fill-mask needs; it can be asked to stay text."""
        write_tokenizer(tokenizer, tmp_path, max_seqlen=None)
        text = "the <|mask|> array"
        as_token = AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
        as_text = AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)(text)
        assert as_token.count(tokenizer.mask_id) == 1
        assert as_text["input_ids"] == [
            tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id
        ]  # fmt: skip
        assert tokenizer.mask_id not in as_text["input_ids"]


class TestPostProcessor:
    """What corrects offsets stays; what adds tokens of its own goes."""

    @pytest.mark.parametrize(
        "given",
        [
            None,
            processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
            processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1)),
            processors.Sequence(
                [
                    processors.ByteLevel(trim_offsets=True),
                    processors.TemplateProcessing(
                        single="[CLS] $A", special_tokens=[("[CLS]", 1)], pair="[CLS] $A $B"
                    ),
                ]
            ),
        ],
        ids=["none", "bert", "roberta", "sequence"],
    )
    def test_replaced(self, given, tmp_path):
        tokenizer = wordpiece(given)
        write_tokenizer(tokenizer, tmp_path, max_seqlen=None)
        ids = AutoTokenizer.from_pretrained(tmp_path)("the rows")["input_ids"]
        assert ids == [tokenizer.bos_id, *tokenizer.encode("the rows"), tokenizer.eos_id]

    def test_without_line_breaks_pairs_are_parted_by_the_end(self, tmp_path):
        tokenizer = wordpiece(None)
        write_tokenizer(tokenizer, tmp_path, max_seqlen=None)
        ids = AutoTokenizer.from_pretrained(tmp_path)("the", "rows")["input_ids"]
        expected = [tokenizer.bos_id, *tokenizer.encode("the"), tokenizer.eos_id]
        assert ids == [*expected, *tokenizer.encode("rows"), tokenizer.eos_id]

    @pytest.mark.parametrize("trims", [True, False])
    def test_offsets_are_those_of_training(self, trims, tokenizer, tmp_path):
        inner = Tokenizer.from_str(json.dumps(tokenizer.rules()))
        inner.post_processor = processors.ByteLevel(trim_offsets=trims)
        trained = TextTokenizer(inner, tokenizer.special_tokens)
        write_tokenizer(trained, tmp_path, max_seqlen=None)
        text = "rows of the array"
        encoded = AutoTokenizer.from_pretrained(tmp_path)(text, return_offsets_mapping=True)
        _, offsets = trained.encode_offsets(text)
        assert encoded["offset_mapping"][1:-1] == offsets

    def test_ids_of_training_do_not_change(self, tokenizer, tmp_path):
        write_tokenizer(tokenizer, tmp_path, max_seqlen=None)
        again = TextTokenizer.load(tmp_path)
        assert again.encode("rows of") == tokenizer.encode("rows of")
        assert again.special_ids == tokenizer.special_ids
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert "model_max_length" not in settings


def test_qwen_rebuilds_its_own_class(make_family):
    """transformers knows `qwen2` by a class of its own, so the check compares ids."""
    folder = make_family("qwen2")
    assert type(AutoTokenizer.from_pretrained(folder)).__name__ == "Qwen2Tokenizer"


def test_a_mask_takes_the_space_before_it_as_in_training(theirs, tokenizer):
    """Training hides whole tokens, and byte-level tokens hold the space before a word."""
    found = theirs(f"the rows {theirs.mask_token} tokens")["input_ids"]
    before, after = tokenizer.encode("the rows"), tokenizer.encode(" tokens")
    expected = [tokenizer.bos_id, *before, tokenizer.mask_id, *after, tokenizer.eos_id]
    assert found == expected


def test_a_mask_takes_the_space_that_llama_2_would_put_after_it(tmp_path):
    """Its rules begin each stretch of text with a space, also the one after a mask."""
    tokenizer = sentencepiece(normalizers.Sequence([normalizers.Prepend("▁")]))
    write_tokenizer(tokenizer, tmp_path, max_seqlen=None)
    hidden = tokenizer.encode("the big cat")
    assert len(hidden) == 3
    hidden[1] = tokenizer.mask_id
    for text in ("the <mask> cat", "the<mask>cat"):
        ids = AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
        assert ids == [tokenizer.bos_id, *hidden, tokenizer.eos_id]


@pytest.mark.parametrize("normalizer", [normalizers.Prepend("▁"), None])
def test_a_state_s_tokenizer_has_the_hash_of_its_corpus(normalizer, tmp_path):
    tokenizer = sentencepiece(normalizer)
    tokenizer.save_with_model(tmp_path)
    assert TextTokenizer.load(tmp_path).sha256 == tokenizer.sha256
