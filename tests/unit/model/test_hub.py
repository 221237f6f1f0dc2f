"""Models by folder and by id: from the disk, from the hub's cache, or refused in one line."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import constants

from biphasic.data.tokens.tokenizer import load_tokenizer
from biphasic.errors import CheckpointError, ConfigError, DataError, ModelError
from biphasic.files import digest, file_sha256
from biphasic.model.contract import model_limits
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.hub import check_model, fetch_model, find_model
from biphasic.store import seal_folder

COMMIT, OLDER = "c" * 40, "b" * 40
Settings = dict[str, object]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, with the files that people put beside one."""
    folder = tmp_path_factory.mktemp("model")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=48,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Path:
    """The hub's cache on a machine without network: `owner/name` at two commits."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "models--owner--name"
    for commit in (COMMIT, OLDER):
        shutil.copytree(model_folder, repository / "snapshots" / commit)
    (repository / "snapshots" / OLDER / "tokenizer.json").write_text('{"older": 1}')
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "v1").write_text(OLDER)
    return repository / "snapshots" / COMMIT


def change(folder: Path, name: str, **settings: object) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**before, **settings}))


def test_a_folder_stays_where_it_is(model_folder, monkeypatch):
    monkeypatch.chdir(model_folder.parent)
    found = fetch_model(model_folder.name)
    assert (found.folder, found.revision) == (model_folder.resolve(), None)
    assert found.identity == files_digest(model_folder)


def test_an_identity_follows_weights_and_settings_alone(tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "copy")
    identity = fetch_model(model_folder).identity
    (folder / "README.md").write_text("read me")
    (folder / "all_results.json").write_text("{}")
    (folder / "adapter.safetensors").write_bytes(b"of another model")
    assert fetch_model(folder).identity == identity
    change(folder, "tokenizer_config.json", model_max_length=8)
    assert fetch_model(folder).identity != identity


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_adapters_are_refused_by_name(tmp_path, model_folder, name, whole):
    folder = shutil.copytree(model_folder, tmp_path / "copy")
    (folder / name).write_text("{}")
    if not whole:
        (folder / "config.json").unlink()
    with pytest.raises(DataError, match=rf"copy: .*\({name}\).*merge_and_unload"):
        fetch_model(folder)


def test_an_adapter_that_came_after_the_plan_is_not_loaded(tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "copy")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match="has an adapter"):
        load_encoder(folder)


NAME = "f" * 64


@pytest.fixture
def state(tmp_path: Path, model_folder: Path) -> Path:
    """A folder with a state's records."""
    folder = shutil.copytree(model_folder, tmp_path / "state")
    change(folder, "state.json", identity=NAME)
    seal_folder(folder, identity=NAME)
    return folder


def files_digest(folder: Path) -> str:
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    return digest({name: file_sha256(folder / name) for name in names})


def test_a_whole_state_has_a_name_already(state, tmp_path):
    (state / "notes.txt").write_text("mine")
    assert fetch_model(state).identity == NAME
    assert fetch_model(shutil.copytree(state, tmp_path / "copy")).identity == NAME


def flip(name: str) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return harm


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (flip("model.safetensors"), r"model\.safetensors: damaged"),
        (flip("state.json"), r"state\.json: damaged"),
        (lambda folder: (folder / "state.json").unlink(), r"state\.json: missing"),
        (lambda folder: (folder / "manifest.json").unlink(), r"incomplete \(no manifest\.json\)"),
        (
            lambda folder: change(folder, "manifest.json", identity="e" * 64),
            r"state\.json and manifest\.json name two states",
        ),
        (
            lambda folder: change(folder, "manifest.json", files={}),
            r"manifest\.json: damaged \(does not list state\.json\)",
        ),
        (
            lambda folder: (folder / "model-00001-of-00001.safetensors").touch(),
            r"model-00001-of-00001\.safetensors: not part of state fff",
        ),
    ],
    ids=["weights", "record", "no-record", "no-manifest", "two-names", "empty-manifest", "added"],
)
def test_a_state_that_was_changed_is_refused(harm, message, state):
    harm(state)
    with pytest.raises(CheckpointError, match=rf"{message}.*; take another copy of the state"):
        fetch_model(state)
    for name in ("manifest.json", "state.json"):  # as the message says
        (state / name).unlink(missing_ok=True)
    (state / "model-00001-of-00001.safetensors").unlink(missing_ok=True)
    assert fetch_model(state).identity == files_digest(state)


def test_a_folder_is_hashed_once_until_it_changes(state, monkeypatch):
    hashed: list[str] = []

    def sha256(path: Path) -> str:
        hashed.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr("biphasic.model.loading.hub._AT_REST_SECONDS", -1)
    monkeypatch.setattr("biphasic.store.file_sha256", sha256)
    monkeypatch.setattr("biphasic.model.loading.hub.file_sha256", sha256)
    for _ in range(3):
        check_model(fetch_model(state).folder, NAME, remedy="")
    assert hashed.count("model.safetensors") == 1
    weights = state / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: wrong size"):
        fetch_model(state)
    assert hashed.count("model.safetensors") == 1


def test_a_model_that_was_named_before_must_be_the_same(state, tmp_path):
    check_model(state, NAME, remedy="again")
    check_model(state, files_digest(state), remedy="again")  # as the hub names it
    flip("model.safetensors")(state)
    with pytest.raises(CheckpointError, match=r"/model\.safetensors: damaged .*; again$"):
        check_model(state, NAME, remedy="again")
    with pytest.raises(CheckpointError, match=r"/state: .* another model than 0{12}"):
        check_model(state, "0" * 64, remedy="again")
    with pytest.raises(CheckpointError, match=r"/gone: no such folder; again"):
        check_model(tmp_path / "gone", NAME, remedy="again")
    (tmp_path / "emptied").mkdir()
    with pytest.raises(CheckpointError, match=r"/emptied: .* another model than 0{12}; again"):
        check_model(tmp_path / "emptied", "0" * 64, remedy="again")


@pytest.mark.parametrize("foreign", ['{"step": 3}', '{"identity": 3}', "[]"])
def test_states_of_other_programs_name_nothing(foreign, tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "other")
    (folder / "state.json").write_text(foreign)
    assert fetch_model(folder).identity == fetch_model(model_folder).identity


def test_a_model_comes_from_the_cache_without_a_network(cache, model_folder):
    found = fetch_model("owner/name")
    assert (found.folder, found.revision) == (cache, COMMIT)
    load_encoder(found.folder)
    older = fetch_model("owner/name", revision="v1")
    assert older.revision == OLDER
    assert older.identity != found.identity
    assert fetch_model("owner/name", revision=OLDER) == older


def test_what_other_programs_cached_is_no_part_of_the_model(cache):
    identity = fetch_model("owner/name").identity
    change(cache, "trainer_state.json", steps=3)
    (cache / "model.fp16.safetensors").write_bytes(b"another variant")
    assert fetch_model("owner/name").identity == identity
    change(cache, "sentence_bert_config.json", max_seq_length=8)
    assert fetch_model("owner/name").identity != identity


def test_weights_in_several_files_are_weights(cache):
    whole = fetch_model("owner/name")
    (cache / "model.safetensors").rename(cache / "model-00001-of-00001.safetensors")
    parted = fetch_model("owner/name")
    assert parted.folder == whole.folder
    assert parted.identity != whole.identity


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def pickle_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        (remove("config.json"), DataError, "no config.json"),
        (pickle_alone, ModelError, "no weights as safetensors"),
    ],
)
def test_a_repository_without_a_usable_model_is_refused(damage, error, reason, cache):
    damage(cache)
    with pytest.raises(error, match=f"^model owner/name: {reason}"):
        fetch_model("owner/name")


@pytest.mark.parametrize(
    ("name", "revision", "reason"),
    [
        ("owner/other", None, "no folder 'owner/other' here, and hub access is disabled"),
        ("owner/name", "v2", "model owner/name at revision 'v2': .* hub access is disabled"),
        ("./runs/nothing", None, "no such folder, and not a hub id"),
        ("../owner", None, "no such folder, and not a hub id"),
        ("a/b/c", None, "no such folder, and not a hub id"),
        ("owner/na--me", None, "Cannot have -- or .."),
    ],
)
def test_what_is_nowhere_is_named_in_one_line(name, revision, reason, cache):
    with pytest.raises(DataError, match=reason) as error:
        fetch_model(name, revision=revision)
    assert "\n" not in str(error.value)


def test_an_unreachable_hub_is_distinguished_from_a_wrong_name(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(DataError, match="the hub cannot be reached"):
        fetch_model("owner/other")
    assert fetch_model("owner/name").folder == cache


def test_a_hub_that_never_answers_is_not_waited_for(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("biphasic.hub.ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(DataError, match=r"other: .* the hub cannot be reached"):
            fetch_model("owner/other")
        assert fetch_model("owner/name").folder == cache


def test_folders_have_no_revisions_and_hold_models(tmp_path, model_folder):
    with pytest.raises(ConfigError, match=r"revision 'v1': only hub models have one"):
        fetch_model(model_folder, revision="v1")
    with pytest.raises(DataError, match=r"no model here \(no config\.json\)"):
        fetch_model(tmp_path)
    (tmp_path / "m.Q4_1.gguf").touch()
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper/M.GGUF").touch()
    for given in (tmp_path, tmp_path / "m.Q4_1.gguf", tmp_path / "upper/M.GGUF"):
        with pytest.raises(DataError, match=r"(?i)m.*\.gguf: .* gguf_file='m"):
            fetch_model(given)
    with pytest.raises(DataError, match=r"none\.gguf: no such folder"):
        fetch_model(tmp_path / "none.gguf")
    (tmp_path / "config.json").touch()
    for find in (fetch_model, load_tokenizer):
        with pytest.raises(DataError, match=r"config\.json: a file, not the folder of a model"):
            find(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("files", "longest", "positions"),
    [
        ({}, 48, 48),
        ({"sentence_bert_config.json": {"max_seq_length": 32}}, 32, 48),
        ({"sentence_bert_config.json": {"max_seq_length": 64}}, 48, 48),
        ({"sentence_bert_config.json": {"max_seq_length": None}}, 48, 48),
        # What its makers used is less than what the model has.
        ({"tokenizer_config.json": {"model_max_length": 24}}, 24, 48),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 48, 48),
        ({"config.json": {"max_position_embeddings": 8192}}, 2048, 8192),
        ({"config.json": {"model_type": "bloom", "max_position_embeddings": None}}, 2048, None),
        ({"config.json": {"model_type": "roberta", "pad_token_id": 1}}, 46, 46),
        ({"config.json": {"model_type": "mpnet", "pad_token_id": 1}}, 46, 46),
    ],
)
def test_limits(files, longest, positions, tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "copy")
    for name, settings in files.items():
        change(folder, name, **settings)
    limits = model_limits(folder)
    assert (limits.longest_input, limits.positions, limits.num_embeddings) == (
        longest,
        positions,
        40,
    )
    assert limits.num_layers >= 1


def test_a_limit_of_minus_one_is_none(tmp_path):
    change(tmp_path, "config.json", model_type="xlnet", n_layer=1)
    limits = model_limits(tmp_path)
    assert limits.positions is None
    assert limits.longest_input == 2048


def test_a_model_of_characters_has_no_embeddings_of_tokens(tmp_path):
    change(tmp_path, "config.json", model_type="canine", num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"config\.json states no vocab_size"):
        model_limits(tmp_path)


def test_limits_need_a_model_that_transformers_knows(tmp_path):
    change(tmp_path, "config.json", model_type="nonesuch")
    with pytest.raises(ModelError, match="cannot be loaded"):
        model_limits(tmp_path)


def test_what_was_fetched_is_found_without_the_hub(cache, model_folder):
    for revision in (None, "v1"):
        assert find_model("owner/name", revision=revision) == fetch_model(
            "owner/name", revision=revision
        )
    assert find_model(str(model_folder)) == fetch_model(model_folder)
    assert find_model("owner/other") is None
    assert find_model("not/a/name") is None
    next(cache.glob("*.safetensors")).unlink()
    assert find_model("owner/name") is None
