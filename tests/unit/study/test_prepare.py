"""Data are built once, resumed where interrupted, and never shared between different settings."""

import json

import pytest

from biphasic.data.corpus import write_corpus
from biphasic.data.pydocs import Document
from biphasic.data.tokenizer import train_tokenizer, write_tokenizer
from biphasic.errors import CheckpointError, DataError
from biphasic.study import prepare as module
from biphasic.study.config import CorpusConfig
from biphasic.study.prepare import data_origin, prepare
from biphasic.tasks.builtin import BUILTIN_TASKS

CONFIG = CorpusConfig(libraries=("rich",), vocab_size=300)


@pytest.fixture
def loads(monkeypatch, documents, make_task):
    """Replace documentation and tasks by tiny ones; return the calls that read documentation."""
    calls = []

    def load_documents(libraries=None):
        calls.append(libraries)
        return [
            Document(
                id=name,
                text=text,
                module=name,
                library="rich",
                split="train" if number % 5 else "validation",
            )
            for number, (name, text) in enumerate(documents)
        ]

    def build_tasks(_, out):
        for name in BUILTIN_TASKS:
            make_task(out / name)

    monkeypatch.setattr(module, "load_documents", load_documents)
    monkeypatch.setattr(module, "build_tasks", build_tasks)
    return calls


def run(store, config=CONFIG):
    said = []
    return prepare(config, store, say=said.append), said


def test_data_are_built_once(loads, tmp_path):
    paths, said = run(tmp_path)
    data = paths.open()
    assert (len(data.corpus), len(data.heldout)) == (48, 12)
    assert data.tokenizer.vocab_size <= 300
    assert {path.name for path in paths.tasks.iterdir()} == set(BUILTIN_TASKS)
    assert len(said) == 5
    assert run(tmp_path) == (paths, [])
    assert loads == [("rich",)]


def test_held_out_text_is_not_trained_on(loads, tmp_path):
    paths, _ = run(tmp_path)
    names = [
        (folder / "documents.jsonl").read_text().splitlines()
        for folder in (paths.train, paths.heldout)
    ]
    assert not set(names[0]) & set(names[1])


def test_an_interrupted_build_goes_on_where_it_stopped(loads, tmp_path, monkeypatch):
    class Killed(BaseException):
        """Like the end of the process."""

    def die_at_heldout(folder, *arguments, **options):
        if folder.name == "heldout":
            raise Killed
        write_corpus(folder, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_corpus", die_at_heldout)
        with pytest.raises(Killed):
            run(tmp_path)
    [folder] = (tmp_path / "data").iterdir()
    (folder / ".partial-heldout-1234").mkdir()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("t*/*") if path.is_file()}
    assert before
    paths, said = run(tmp_path)
    assert [sentence.split()[0] for sentence in said] == ["reading", "tokenising", "making"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(folder.rglob(".partial-*"))
    assert run(tmp_path) == (paths, [])


@pytest.mark.parametrize("part", ["tokenizer", "train", "heldout", "tasks/pydocs-sc"])
def test_a_part_that_was_deleted_is_made_again(loads, tmp_path, part):
    paths, _ = run(tmp_path)
    before = paths.open().ground
    manifest = paths.tokenizer.parent / part / "manifest.json"
    content = manifest.read_text()
    for path in manifest.parent.iterdir():
        path.unlink()
    manifest.parent.rmdir()
    assert run(tmp_path)[1]
    assert manifest.read_text() == content
    assert paths.open().ground == before


def test_damage_is_found_when_data_are_opened(loads, tmp_path):
    paths, _ = run(tmp_path)
    path = paths.train / "tokens-00000.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokens-00000\.bin: damaged"):
        run(tmp_path)[0].open()


def tokenizer_folder(folder, documents, **settings):
    write_tokenizer(train_tokenizer([text for _, text in documents], vocab_size=310), folder)
    path = folder / "tokenizer_config.json"
    changed = {**json.loads(path.read_text()), **settings}
    kept = {name: value for name, value in changed.items() if value is not None}
    path.write_text(json.dumps(kept))
    return folder


def test_a_given_tokenizer_is_kept_with_the_data(loads, tmp_path, documents):
    folder = tokenizer_folder(tmp_path / "given", documents)
    paths, said = run(tmp_path / "store", CorpusConfig(libraries=("rich",), tokenizer=folder))
    assert not [sentence for sentence in said if "training a tokenizer" in sentence]
    given = json.loads((folder / "tokenizer.json").read_text())
    assert json.loads((paths.tokenizer / "tokenizer.json").read_text()) == given


def test_a_tokenizer_without_mask_token_is_refused_before_any_work(loads, tmp_path, documents):
    folder = tokenizer_folder(tmp_path / "given", documents, mask_token=None)
    with pytest.raises(DataError, match=r"no mask token.*'mask_token'"):
        run(tmp_path / "store", CorpusConfig(libraries=("rich",), tokenizer=folder))
    assert loads == []
    assert not list((tmp_path / "store").rglob("tokenizer"))


@pytest.mark.parametrize(
    "other",
    [
        {"libraries": ("rich", "typer")},
        {"libraries": ("rich", "python")},
        {"libraries": ()},
        {"libraries": None},
        {"vocab_size": 301},
    ],
)
def test_different_settings_have_data_of_their_own(other):
    assert data_origin(CONFIG) != data_origin(CONFIG.model_copy(update=other))


def test_all_but_the_standard_library_is_not_all():
    from biphasic.data.pydocs import LIBRARIES

    every = data_origin(CorpusConfig(libraries=tuple(LIBRARIES)))
    assert every != data_origin(CorpusConfig())
    assert data_origin(CorpusConfig(libraries=(*LIBRARIES, "python"))) == data_origin(
        CorpusConfig()
    )
