"""Data are built once, resumed where interrupted, and never shared between different settings."""

import io
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import BertForMaskedLM, BertModel, RobertaForMaskedLM

from biphasic.config import parse_config
from biphasic.data.building.build import corpus_origin
from biphasic.data.building.config import CorpusConfig
from biphasic.data.pairs import Pair, write_pairs
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer, write_tokenizer
from biphasic.errors import CheckpointError, ConfigError, DataError, ModelError, StoppedError
from biphasic.execution.job import save_job
from biphasic.model.loading import footprint
from biphasic.model.loading.footprint import stored_parameters
from biphasic.model.loading.hub import fetch_model
from biphasic.model.shape import PRESETS
from biphasic.pydocs import documents as documentation
from biphasic.pydocs.documents import LIBRARIES, Document
from biphasic.pydocs.tasks import BUILTIN_TASKS
from biphasic.study.inputs import corpus as module
from biphasic.study.inputs import models
from biphasic.study.inputs.corpus import (
    CorpusJob,
    builtin_tasks_folder,
    corpus_settings,
    locate_corpus,
    prepare_builtin_tasks,
    prepare_corpus,
)
from biphasic.study.inputs.tasks import TaskResolver
from biphasic.study.run.jobs import load_job
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from biphasic.training.compute import ComputeConfig
from custom_tasks import write_splits
from families import tiny_config
from tiny_use import write_model

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

    monkeypatch.setattr(documentation, "load_documents", load_documents)
    monkeypatch.setattr(module, "load_documents", load_documents)
    monkeypatch.setattr(module, "build_tasks", build_tasks)
    return calls


def run(store, config=CONFIG, **options):
    shown = io.StringIO()
    folder = locate_corpus(config, store)
    console = Console(file=shown, width=200)
    paths = prepare_corpus(config, folder, store, console=console, **options)
    return paths, shown.getvalue().splitlines()


def tasks(store, libraries=("rich",)):
    said = []
    return prepare_builtin_tasks(libraries, store, say=said.append), said


def test_a_corpus_is_built_once(loads, tmp_path):
    paths, said = run(tmp_path)
    data = paths.open()
    assert (len(data.corpus), len(data.heldout)) == (48, 12)
    assert data.tokenizer.vocab_size <= 300
    assert said
    loads.clear()
    assert run(tmp_path) == (paths, [])
    assert loads == []


def test_a_phase_with_longer_rows_than_positions_is_refused_before_text_is_read(
    loads, tmp_path, make_recipe
):
    # RoBERTa reserves two of its positions.
    settings = tiny_config("roberta", max_position_embeddings=64)
    RobertaForMaskedLM(settings).save_pretrained(tmp_path / "model")
    phases = [{"objective": "mlm", "steps": 2}, {"objective": "mlm", "steps": 2, "max_seqlen": 63}]
    recipe = make_recipe(*phases, model={"pretrained": str(tmp_path / "model")}, max_seqlen=62)
    with pytest.raises(ConfigError, match=r"phases\.1: .* reads at most 62 tokens"):
        run(tmp_path / "store", recipes=[recipe])
    assert loads == []


@pytest.mark.parametrize(
    ("model", "rows", "reason"),
    [
        (BertModel, 32, "it was saved without its language-model head"),
        (BertForMaskedLM, 65, "max_seqlen 65 exceeds the model's 64 positions"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_text_is_read(
    loads, tmp_path, make_recipe, model, rows, reason
):
    folder = tmp_path / "model"
    model(tiny_config("bert", max_position_embeddings=64)).save_pretrained(folder)
    phase = {"objective": "mlm", "steps": 2}
    recipe = make_recipe(phase, model={"pretrained": str(folder)}, max_seqlen=rows)
    with pytest.raises((ConfigError, ModelError), match=reason):
        run(tmp_path / "store", recipes=[recipe])
    assert loads == []
    run(tmp_path / "store", recipes=[make_recipe(phase)])
    assert loads


def test_a_tokenizer_that_cannot_have_the_model_s_tokens_is_not_trained(
    loads, tmp_path, make_recipe
):
    model = write_model(tmp_path / "model", "eurobert")
    size = TextTokenizer.load(model).vocab_size
    recipe = make_recipe({"objective": "mlm", "steps": 2}, model={"pretrained": str(model)})
    smaller = CorpusConfig(libraries=("rich",), vocab_size=size - 1)
    with pytest.raises(ModelError, match=rf"has {size} entries, .* --corpus$"):
        run(tmp_path / "store", smaller, recipes=[recipe])
    assert loads == []


@pytest.mark.parametrize("trains", [True, False])
def test_a_tokenizer_with_other_tokens_than_the_model_is_refused_before_text_is_tokenised(
    loads, tmp_path, make_recipe, trains
):
    model = write_model(tmp_path / "model", "eurobert")
    recipe = make_recipe({"objective": "mlm", "steps": 2}, model={"pretrained": str(model)})
    write_tokenizer(train_tokenizer(["other words"] * 9, vocab_size=300), tmp_path / "words")
    chosen = {"vocab_size": 400} if trains else {"tokenizer": str(tmp_path / "words")}
    config, shown = CorpusConfig(libraries=("rich",), **chosen), io.StringIO()
    folder = locate_corpus(config, tmp_path / "store")
    with pytest.raises(ModelError, match=r"build the corpus with '--tokenizer .*model'"):
        prepare_corpus(
            config, folder, tmp_path / "store", console=Console(file=shown), recipes=[recipe]
        )
    assert "tokenising" not in shown.getvalue()
    own = CorpusConfig(libraries=("rich",), tokenizer=str(model))
    assert run(tmp_path / "store", own, recipes=[recipe])[0].open().corpus


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        ({"freeze": ["model.embeddings.*"]}, r"phases\.1\.freeze: no parameter's name matches"),
        ({"lora": {"rank": 2, "targets": ["query"]}}, r"phases\.1\.lora\.targets: no linear layer"),
    ],
)
def test_parameters_that_a_new_model_lacks_are_refused(make_recipe, phase, reason):
    clm = {"objective": "clm", "steps": 2}
    with pytest.raises(ConfigError, match="arm 'b': " + reason):
        models.check_fit({"b": make_recipe(clm, {**clm, **phase})})
    fitting = {"freeze": ["model.embed_tokens.*", "lm_head.*"]}
    models.check_fit({"": make_recipe(clm, {**clm, **fitting})})


@pytest.mark.parametrize("is_new", [False, True])
def test_pairs_that_lack_what_a_phase_reads_are_refused(tmp_path, make_recipe, is_new):
    folder = write_pairs(tmp_path / "pairs", [Pair("a", "b"), Pair("c", "d")], origin={}).folder
    model = {"pretrained": str(write_model(tmp_path / "model", "eurobert"))}
    phase = {"objective": "contrastive", "steps": 2, "pairs": str(folder), "batch": 2}

    def check(**changes):
        given = {} if is_new else {"model": model}
        recipe = make_recipe({"objective": "clm", "steps": 2}, {**phase, **changes}, **given)
        models.check_fit({"": recipe, "again": recipe})

    width = PRESETS["pico"].hidden_size if is_new else 32
    check(matryoshka=[width])
    with pytest.raises(ConfigError, match=f"{width + 1} dimensions are more than the model's"):
        check(matryoshka=[width + 1])
    with pytest.raises(ConfigError, match="has no vectors of a teacher"):
        check(objective="distill")


def test_words_that_a_tokenizer_does_not_mark_are_refused_before_text_is_tokenised(
    loads, tmp_path, make_recipe
):
    marked, folder = run(tmp_path)[0].tokenizer, tmp_path / "unmarked"
    rules = TextTokenizer.load(marked).rules() | {"pre_tokenizer": None, "decoder": None}
    shutil.copytree(marked, folder, ignore=shutil.ignore_patterns("manifest.json"))
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    unmarked = CorpusConfig(libraries=("rich",), tokenizer=str(folder))
    recipe = make_recipe({"objective": "mlm", "steps": 2, "selection": "word"})
    with pytest.raises(ConfigError, match="does not mark word starts"):
        run(tmp_path, unmarked, recipes=[recipe])
    assert not (locate_corpus(unmarked, tmp_path) / "train").exists()


def test_held_out_text_is_not_trained_on(loads, tmp_path):
    paths, _ = run(tmp_path)
    names = [
        (folder / "documents.jsonl").read_text().splitlines()
        for folder in (paths.train, paths.heldout)
    ]
    assert not set(names[0]) & set(names[1])


def test_what_a_corpus_skips_is_said(tmp_path):
    for number in range(40):
        (text := tmp_path / f"text/{number}.txt").parent.mkdir(exist_ok=True)
        text.write_text(f"number {number}" if number else " ")
    (tmp_path / "text/page.html").write_text("<p>number 41</p>")
    said = run(tmp_path, CorpusConfig(sources=(str(text.parent),), heldout_fraction=0.3))[1]
    assert any("documents skipped: 1 empty" in line for line in said)
    assert any("1 files skipped" in line for line in said)


def test_built_in_tasks_are_made_once(loads, tmp_path):
    folder, said = tasks(tmp_path)
    assert {path.name for path in folder.iterdir()} == set(BUILTIN_TASKS)
    assert said == ["building the four built-in tasks"]
    assert tasks(tmp_path) == (folder, [])


@pytest.mark.parametrize("part", ["tokenizer", "train", "heldout"])
def test_a_part_of_a_corpus_that_was_deleted_is_made_again(loads, tmp_path, part):
    paths, _ = run(tmp_path)
    before = paths.open().fingerprint
    manifest = paths.tokenizer.parent / part / "manifest.json"
    content = manifest.read_text()
    for path in manifest.parent.iterdir():
        path.unlink()
    manifest.parent.rmdir()
    assert run(tmp_path)[1]
    assert manifest.read_text() == content
    assert paths.open().fingerprint == before


def test_a_task_that_was_deleted_is_made_again(loads, tmp_path):
    folder, _ = tasks(tmp_path)
    manifest = folder / "pydocs-sc/manifest.json"
    content = manifest.read_text()
    manifest.unlink()
    (folder / ".partial-pydocs-tc-1234").mkdir()
    assert tasks(tmp_path)[1]
    assert manifest.read_text() == content
    assert not list(folder.glob(".partial-*"))


def test_damage_is_reported_when_data_are_opened(loads, tmp_path):
    paths, _ = run(tmp_path)
    path = paths.train / "tokens-00000.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokens-00000\.bin: damaged"):
        run(tmp_path)[0].open()


def test_a_tokenizer_is_checked_when_data_are_opened(loads, tmp_path):
    paths, _ = run(tmp_path)
    path = paths.tokenizer / "tokenizer.json"
    content = path.read_text()
    rules = json.loads(content)
    vocabulary = rules["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(rules))
    for read in (paths.open, lambda: paths.extended([])):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*; delete the folder"):
            read()
    # Whole, but of another corpus.
    other = TextTokenizer.load(paths.tokenizer)
    shutil.rmtree(paths.tokenizer)
    write_tokenizer(other, paths.tokenizer)
    with pytest.raises(DataError, match=r"not the tokenizer that .*train"):
        paths.open()


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_tokenizer_is_detected(loads, tmp_path, bit):
    paths, _ = run(tmp_path)
    for path in (paths.tokenizer / name for name in ("tokenizer.json", "tokenizer_config.json")):
        whole = path.read_bytes()
        for place in range(bit, len(whole), len(whole) // 5):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            with pytest.raises(CheckpointError, match=f"{path.name}: damaged"):
                paths.extended([])
        path.write_bytes(whole)
    paths.open()


def test_a_corpus_that_was_built_before_is_taken_as_it_is(loads, tmp_path):
    built, _ = run(tmp_path / "store")
    folder = built.tokenizer.parent
    found, said = run(tmp_path / "other", CorpusConfig(folder=folder))
    assert (found, said) == (built, [])
    assert not (tmp_path / "other").exists()


def test_a_split_of_a_corpus_is_not_read_as_text(loads, tmp_path):
    built, _ = run(tmp_path / "store")
    with pytest.raises(DataError, match="one split of a corpus; give the folder of the whole"):
        corpus_settings(built.train)


def test_a_folder_without_a_corpus_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no finished corpus here; build one with"):
        locate_corpus(CorpusConfig(folder=tmp_path), tmp_path / "store")


def test_text_is_named_as_for_adapt(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("{}")
    assert corpus_settings(file) == corpus_settings({"sources": [str(file)]})
    with pytest.raises(DataError, match=r"b\.jsonl: no such file"):
        corpus_settings(tmp_path / "b.jsonl")
    for name, message in (("hf:a?c=d", "key 'c'"), ("builtin:a", "builtin:pydocs"), ("", "empty")):
        with pytest.raises(ConfigError, match=f"^corpus: .*{message}"):
            corpus_settings(name)


def test_a_folder_of_text_may_have_a_folder_train(loads, tmp_path):
    (tmp_path / "texts" / "train").mkdir(parents=True)
    (tmp_path / "texts" / "train" / "a.txt").write_text("rows of tokens")
    texts = str(tmp_path / "texts")
    assert corpus_settings(texts) == corpus_settings({"sources": [texts]})
    built, _ = run(tmp_path / "store")
    folder = built.tokenizer.parent
    assert corpus_settings(folder) == CorpusConfig(folder=folder)
    (folder / "built.json").unlink()  # interrupted before its end
    assert corpus_settings(folder) == CorpusConfig(folder=folder)


def test_the_corpus_of_a_study_file_leaves_out_texts_of_a_task(tmp_path, documents):
    rows = [{"text": text} for _, text in documents]
    (tmp_path / "text.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "task").mkdir()
    for split, (_, text) in zip(("train", "validation", "test"), documents, strict=False):
        lines = (json.dumps({"text": text, "label": label}) + "\n" for label in "ab")
        (tmp_path / "task" / f"{split}.jsonl").write_text("".join(lines))
    settings = "sources: [text.jsonl]\nvocab_size: 300\nheldout_fraction: 0.2\n"
    folders = []
    for name, more in (("plain", ""), ("without", "against: [sc:task]\n")):
        (tmp_path / f"{name}.yaml").write_text(settings + more)
        config = corpus_settings(tmp_path / f"{name}.yaml")
        paths, said = run(tmp_path / "store", config)
        folders.append(paths.train.parent)
        assert ("text.jsonl: documents skipped: 2 in evaluation task" in said) == bool(more)
    assert folders[0] != folders[1]
    job = CorpusJob.of(config, folders[1], tmp_path / "store")
    job.run(lambda _: None)  # it finds the corpus
    (tmp_path / "task" / "test.jsonl").write_text('{"text": "new", "label": "a"}\n')
    assert locate_corpus(config, tmp_path / "store") not in folders


def test_files_of_other_text_have_another_corpus_and_copies_the_same(tmp_path):
    def write(folder, text):
        file = tmp_path / folder / "a.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"text": text}))
        os.utime(file, ns=(1, 1))
        return locate_corpus(CorpusConfig(sources=(str(file.parent),)), tmp_path / "store")

    first = write("v1/docs", "rows of tokens")
    assert write("v2/docs", "rows of labels") != first
    copy = shutil.copytree(tmp_path / "v1/docs", tmp_path / "copy")
    os.utime(copy / "a.jsonl", ns=(2, 2))
    assert locate_corpus(CorpusConfig(sources=(str(copy),)), tmp_path / "store") == first


def test_a_file_that_a_folder_skips_makes_no_other_corpus_of_a_study(tmp_path):
    pages, store = tmp_path / "pages", tmp_path / "store"
    pages.mkdir()
    (pages / "a.txt").write_text("rows of tokens")
    config = CorpusConfig(sources=(str(pages),))
    first = locate_corpus(config, store)
    (pages / ".DS_Store").write_text("x")
    assert locate_corpus(config, store) == first


def test_a_corpus_records_its_origin(loads, tmp_path):
    paths, _ = run(tmp_path)
    assert paths.origin() == json.loads(json.dumps(corpus_origin(CONFIG)))


STORE = Path("store")


@pytest.mark.parametrize("missing", ["placeholder", "build"])
def test_the_files_of_a_task_are_looked_up_once(missing, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    write_splits(folder, ".csv", "text,label\na,x\nb,y\n")
    (folder / "mood.yaml").write_text("kind: sc\nfolder: .\n")
    finished = {"name": "a", "encoder": {"pretrained": "model"}}
    sources = {"mood": f"{folder}/mood.yaml", "raw": f"sc:{folder}"}
    tasks = [{"name": name, "source": source} for name, source in sources.items()]
    raw = {"name": "s", "title": "s", "arms": [finished], "tasks": tasks}
    study = Study(parse_config(StudyConfig, raw, where="study"), tmp_path)
    resolver = TaskResolver(study)
    opened, is_on = Counter[str](), True

    def note(event: str, given: tuple) -> None:
        if is_on and event == "open" and str(given[0]).startswith(f"{folder}/"):
            opened[Path(given[0]).name] += 1

    sys.addaudithook(note)  # which cannot be removed
    [resolver.outline(task) for task in study.config.tasks]
    resolver.resolve(missing=missing, assumed=[])
    is_on = False
    # Each of the two tasks reads the examples once for their hash, and once to copy them.
    assert opened == {"mood.yaml": 1, **dict.fromkeys(("train.csv", "dev.csv", "test.csv"), 4)}


@pytest.mark.parametrize("other", [("rich", "typer"), ("rich", "python"), (), None])
def test_other_libraries_have_separate_tasks(other):
    assert builtin_tasks_folder(("rich",), STORE) != builtin_tasks_folder(other, STORE)


def test_all_but_the_standard_library_is_not_all():
    default = builtin_tasks_folder(None, STORE)
    assert builtin_tasks_folder(tuple(LIBRARIES), STORE) != default
    assert builtin_tasks_folder((*LIBRARIES, "python"), STORE) == default


def test_a_corpus_is_a_job_too(loads, tmp_path):
    job = CorpusJob.of(CONFIG, locate_corpus(CONFIG, tmp_path), tmp_path)
    save_job(job)
    found = load_job(tmp_path, job.id)
    assert found == job
    assert not found.is_done()
    found.check_needs()
    with pytest.raises(StoppedError):
        found.run(lambda _: None, should_stop=lambda: True)
    assert not found.is_done()
    reports = []
    found.run(reports.append)
    assert found.is_done()
    assert reports[-1].done == reports[-1].total > 0
    loads.clear()
    paths, said = run(tmp_path)
    assert (paths.train.parent, said, loads) == (job.folder, [], [])


def test_a_model_that_only_fits_divided_is_trained_divided(tmp_path, monkeypatch, make_recipe):
    """Each of eight GPUs has room for 15 bytes a parameter, and all of training takes 20."""
    folder = write_model(tmp_path / "llama", "llama")
    free = 15 * stored_parameters(folder)
    monkeypatch.setattr(footprint, "compute_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(models, "compute_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    monkeypatch.setattr(models, "check_training", lambda *_: None)
    local, recipe = fetch_model(folder), make_recipe({"objective": "mlm", "steps": 1})
    models.check_model(local, recipe, ComputeConfig(processes=8, shard="full"), name="llama")
    for whole in (ComputeConfig(processes=8), ComputeConfig(shard="full")):
        with pytest.raises(ModelError, match="GPU's memory to be trained in bf16"):
            models.check_model(local, recipe, whole, name="llama")
