"""Fine-tuned folders: others compute the same with them, and `predict` what was scored."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers.utils import logging

from biphasic import finetune
from biphasic.errors import ConfigError, DataError
from biphasic.export import ExportSettings, write
from biphasic.export.check import check_tokenizer
from biphasic.export.finetuned import FinetunedFolder
from biphasic.export.hf import write_sentence_transformers
from biphasic.model.loading.build import load_encoder
from biphasic.tasks.encoding import Encoder, encode_texts
from biphasic.tasks.inputs import open_input
from biphasic.tasks.use import load_finetuned, predict_file, read_head
from tiny_use import (
    ANIMALS,
    LABELS,
    read_jsonl,
    tiny_tokenizer,
    write_jsonl,
    write_model,
    write_task,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

PROTOCOL = {"max_steps": 8, "batch_size": 16, "max_question_tokens": 8, "window_overlap": 8}
# The forms of all families are in test_finetuned_families.py.
FORMS = {
    ("eurobert", "sc"): "sequence-classification",
    ("eurobert", "ml"): "sequence-classification",
    ("eurobert", "sr"): "sequence-classification",
    ("eurobert", "tc"): "token-classification",
    ("eurobert", "qa"): "question-answering",
    ("eurobert", "zs"): "sentence-transformers",
    ("llama", "sc"): "sequence-classification",
    ("qwen3", "sr"): "sequence-classification",
    ("modernbert", "ir"): "sentence-transformers",
    ("modernbert", "sc"): "sequence-classification",
}
OWN_CLASS = {("eurobert", "qa"), ("qwen3", "sr")}
# What somebody does who has never heard of this package.
STRANGER = """
import json, sys
sys.modules["biphasic"] = None
import torch, transformers
found = []
for folder, kind in json.loads(sys.argv[2]):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(json.loads(sys.argv[1]), padding=True, return_tensors="pt")
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    with torch.no_grad():
        output = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    names = [model.config.id2label[n] for n in range(model.config.num_labels)]
    found.append({"logits": output.logits.tolist(), "names": names})
print(json.dumps(found))
"""


def fine_tune(
    model: Path, task: Path | str, out: Path, *, root: Path, **changes
) -> FinetunedFolder:
    """Fine-tune with one learning rate where no other are given."""
    settings = {"learning_rates": [3e-3], "extend": 0, "protocol": PROTOCOL, **changes}
    return finetune(model, task, out, root=root, **settings)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory):
    """Write a model of a family and a task of a kind, each once."""
    base = tmp_path_factory.mktemp("finetuned")

    def get(family: str, kind: str) -> tuple[Path, Path]:
        model, task = base / family, base / f"task-{kind}"
        if not model.exists():
            write_model(model, family)
        if not task.exists():
            write_task(task, kind)
        return model, task

    return get


@pytest.fixture(scope="module")
def make(given):
    """Fine-tune a family on a kind of task, each once; `sr` with two learning rates."""
    made: dict[tuple[str, str], FinetunedFolder] = {}

    def get(family: str, kind: str) -> FinetunedFolder:
        if (family, kind) not in made:
            model, task = given(family, kind)
            out, root = model.parent / f"{family}-{kind}", model.parent / "root"
            rates = [1e-3, 3e-3] if kind == "sr" else [3e-3]
            made[family, kind] = fine_tune(model, task, out, root=root, learning_rates=rates)
        return made[family, kind]

    return get


def scores_of(made: FinetunedFolder) -> list[dict]:
    """Return the recorded scores of the kept run on test, by example."""
    record = made.record
    [run] = [
        result
        for result in made.evaluation.results
        if (result.learning_rate, result.seed) == (record.learning_rate, record.seed)
    ]
    rows = pq.read_table(made.evaluation.folder / run.id / "scores.parquet").to_pylist()
    return [row for row in rows if row["split"] == "test"]


def task_of(made: FinetunedFolder) -> Path:
    return made.folder.parent / f"task-{made.record.kind}"


@pytest.mark.parametrize("family", ["qwen3", "modernbert"])
def test_the_need_for_code_is_said_before_training(one_thread, given, tmp_path, capsys, family):
    model, task = given(family, "sr")
    made = fine_tune(model, task, tmp_path / "out", root=tmp_path / "root")
    assert made.record.needs_code == (family == "qwen3")
    assert ("trust_remote_code" in capsys.readouterr().err) == made.record.needs_code


@pytest.mark.parametrize(("family", "kind"), FORMS)
def test_a_folder_has_the_best_form_and_agrees_with_transformers(one_thread, make, family, kind):
    made = make(family, kind)
    assert made.record.form == FORMS[family, kind]
    assert made.difference < 2e-6
    assert read_head(made.folder) == made.record
    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: ")
    assert str(made.folder.parent) not in card
    is_of_pairs = "The text template is" in card and len(made.record.fields) > 1
    assert ("`text_pair` reads other input than training" in card) == is_of_pairs
    config = json.loads((made.folder / "config.json").read_text())
    assert made.record.needs_code == ((family, kind) in OWN_CLASS)
    assert ("trust_remote_code=True" in card) == ("custom_code" in card) == made.record.needs_code
    assert ("tokens=True, trust_remote_code" in card) == made.record.needs_code
    body = config["encoder"] if made.record.needs_code else config
    assert body["model_type"] == ("eurobert" if family == "llama" else family)
    # Only a decoder is opened, and only its card says that old releases run it causally.
    assert body.get("is_causal") == (False if family == "qwen3" else None)
    assert ("Needs transformers 5.2" in card) == (family == "qwen3" and not made.record.needs_code)


@pytest.mark.parametrize(("family", "kind"), [key for key in FORMS if key[1] not in {"ir", "zs"}])
def test_predictions_match_the_scores(one_thread, make, tmp_path, family, kind):
    made = make(family, kind)
    out = tmp_path / "predicted.jsonl"
    summary = predict_file(made.folder, open_input(str(task_of(made) / "test.jsonl")), out)
    assert (summary.num_examples, summary.num_cut, summary.num_empty) == (24, 0, 0)
    rows, scored = read_jsonl(out), scores_of(made)
    assert [row["id"] for row in rows] == [score["id"] for score in scored]
    ours = {
        "sc": lambda row: row["label"],
        "ml": lambda row: row["labels"],
        "sr": lambda row: row["score"],
        "qa": lambda row: row["answer"],
        "tc": lambda row: len(row["entities"]),
    }[kind]
    theirs = "num_predicted" if kind == "tc" else "predicted"
    assert [ours(row) for row in rows] == [score[theirs] for score in scored]
    if kind == "tc":
        expected = read_jsonl(task_of(made) / "test.jsonl")
        right = [
            sum(entity in _entities(example["tags"]) for entity in _predicted(row))
            for row, example in zip(rows, expected, strict=True)
        ]
        assert right == [score["num_right"] for score in scored]


def _entities(tags):
    return [(tag[2:], n, n + 1) for n, tag in enumerate(tags) if tag != "O"]  # all of one word


def _predicted(row):
    return [(entity["type"], entity["start"], entity["end"]) for entity in row["entities"]]


def test_plain_transformers_gives_the_same_for_a_padded_batch(one_thread, make, warm):
    texts = ["the cat sat", "to Paris with Anna and the dog ran on the mat"]
    sequence, token = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
    kinds = {"sc": sequence, "ml": sequence, "sr": sequence, "tc": token}
    folders = [(str(make("eurobert", kind).folder), name) for kind, name in kinds.items()]
    ended = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, json.dumps(texts), json.dumps(folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    all_found = json.loads(ended.stdout.splitlines()[-1])
    names = [found["names"] for found in all_found]
    assert names == [["cat", "dog"], ANIMALS, ["LABEL_0"], LABELS]
    for kind, found in zip(kinds, all_found, strict=True):
        for mine, logits in zip(
            _outputs(make("eurobert", kind), texts), found["logits"], strict=True
        ):
            np.testing.assert_allclose(mine, np.array(logits)[: len(mine)], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("family", "kind", "keys"),
    [
        ("llama", "sc", {"rope_theta": "rope_theta"}),
        ("qwen3", "sr", {"rope_theta": "rope_theta"}),
        ("modernbert", "ir", {"global_rope_theta": "full_attention"}),
    ],
)
def test_older_releases_find_rotary_frequencies_where_they_look(
    one_thread, make, family, kind, keys
):
    config = json.loads((make(family, kind).folder / "config.json").read_text())
    config = config.get("encoder", config)
    for key, place in keys.items():
        stated = config["rope_parameters"][place]
        assert config[key] == (stated["rope_theta"] if isinstance(stated, dict) else stated)


def test_a_folder_with_a_class_of_its_own_is_fine_tuned_again(one_thread, make, tmp_path):
    """Its code is not run: our own loader reads the encoder's part of the configuration."""
    made = make("qwen3", "sr")
    (made.folder / "encoder_with_head.py").write_text("raise SystemExit('code was run')")
    (made.folder / "README.md").unlink()  # the card vouches for the files as they were
    again = fine_tune(made.folder, task_of(make("eurobert", "sc")), tmp_path / "x", root=tmp_path)
    assert again.record.labels == ("cat", "dog")


def test_a_multi_label_model_declares_its_problem_type(one_thread, make):
    made = make("eurobert", "ml")
    config = json.loads((made.folder / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert "assigns any of 3 labels to a text" in card
    assert "A label applies if its output is above 0" in card


def test_a_probe_is_kept_as_the_head_of_its_encoder(one_thread, given, tmp_path):
    model, task = given("eurobert", "sc")
    protocol = {**PROTOCOL, "train": "head"}
    made = fine_tune(
        model, task, tmp_path / "x", root=tmp_path, learning_rates=None, protocol=protocol
    )
    assert "kept: linear model: validation accuracy" in str(made)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, made.folder))
    shared = before.keys() & after.keys()
    assert shared
    assert all(torch.equal(before[name], after[name]) for name in shared)
    texts = [row["text"] for row in read_jsonl(task / "test.jsonl")]
    predicted = [made.record.labels[output.argmax()] for output in _outputs(made, texts)]
    assert predicted == [row["predicted"] for row in scores_of(made)]


@pytest.mark.parametrize("what", ["layer: ", "task 'pairs': .* both texts of a pair.* template"])
def test_a_probe_of_another_input_than_final_means_is_not_written(what, given, tmp_path):
    model, task = given("eurobert", "sc")
    protocol = {**PROTOCOL, "train": "head"} | ({"layer": 1} if what == "layer: " else {})
    if "pairs" in what:
        task = shutil.copytree(task, tmp_path / "pairs")
        (task / "task.json").write_text('{"kind": "sc"}', encoding="utf-8")
        for split in ("train", "validation", "test"):
            rows = read_jsonl(task / f"{split}.jsonl")
            pairs = [{"text_a": row.pop("text"), "text_b": "that", **row} for row in rows]
            write_jsonl(task / f"{split}.jsonl", pairs)
    with pytest.raises(ConfigError, match=what):
        fine_tune(
            model, task, tmp_path / "x", root=tmp_path, learning_rates=None, protocol=protocol
        )
    assert not (tmp_path / "x").exists()


def _outputs(made, texts):
    """Return the outputs of the head, each text by itself."""
    finetuned = load_finetuned(made.folder)
    sequences, _ = encode_texts(texts, finetuned.tokenizer, max_seqlen=64)
    outputs = []
    for each in sequences:
        with torch.inference_mode():
            states, spans = finetuned.encoder.states([each])
            states = states[slice(*spans[0])]
            if made.record.kind == "tc":
                outputs.append(finetuned.head(states).numpy())
                continue
            outputs.append(finetuned.head(states.mean(0)).numpy())
            outputs[-1] = outputs[-1] * made.record.deviation + made.record.mean
    return outputs


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("sr", {"precision": "bf16"}),
        ("sr", {"precision": "paper"}),
        ("qa", {"precision": "paper"}),
        ("sr", {"batching": "padded"}),
    ],
)
def test_predict_computes_as_the_model_was_scored(one_thread, given, tmp_path, kind, changes):
    model, task = given("eurobert", kind)
    protocol, root = {**PROTOCOL, **changes}, tmp_path / "root"
    made = fine_tune(model, task, tmp_path / "model", protocol=protocol, root=root)
    out = tmp_path / "predicted.parquet"
    predict_file(made.folder, open_input(str(task / "test.jsonl")), out)
    rows = pq.read_table(out).to_pylist()
    column = "score" if kind == "sr" else "answer"
    assert [row[column] for row in rows] == [score["predicted"] for score in scores_of(made)]


@pytest.mark.parametrize(
    ("family", "kind", "architecture"),
    [
        ("llama", "sc", "EuroBertForSequenceClassification"),
        ("eurobert", "ml", "EuroBertForSequenceClassification"),
        ("eurobert", "sr", "EncoderForSequenceClassification"),  # its outputs are scaled
        ("bert", "sc", "EncoderForSequenceClassification"),
    ],
)
def test_a_dense_head_is_written_and_read(one_thread, given, tmp_path, family, kind, architecture):
    model, task = given(family, kind)
    protocol, root = {**PROTOCOL, "head": "dense"}, tmp_path / "root"
    made = fine_tune(model, task, tmp_path / "model", protocol=protocol, root=root)
    assert made.difference < 2e-6
    config = json.loads((made.folder / "config.json").read_text())
    assert config["architectures"] == [architecture]
    predict_file(made.folder, open_input(str(task / "test.jsonl")), tmp_path / "x.parquet")
    column = {"sc": "label", "ml": "labels", "sr": "score"}[kind]
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [row[column] for row in rows] == [score["predicted"] for score in scores_of(made)]


def test_sentence_transformers_reads_a_retrieval_model(one_thread, make):
    from sentence_transformers import SentenceTransformer

    made = make("modernbert", "ir")
    model = SentenceTransformer(str(made.folder), device="cpu")
    finetuned = load_finetuned(made.folder)
    for theirs, prefix in ((model.encode_query, "Query: "), (model.encode_document, "Document: ")):
        sequences, _ = encode_texts(
            [f"{prefix}cat", f"{prefix}dog"], finetuned.tokenizer, max_seqlen=64
        )
        with torch.inference_mode():
            ours = finetuned.encoder.pooled(sequences).numpy()
        np.testing.assert_allclose(theirs(["cat", "dog"]), ours, atol=2e-6)


@pytest.mark.parametrize("pooling", ["first", "last"])
def test_sentence_transformers_pools_as_the_model_was_scored(one_thread, given, tmp_path, pooling):
    from sentence_transformers import SentenceTransformer

    model, task = given("eurobert", "zs")
    made = fine_tune(
        model, task, tmp_path / "out", root=tmp_path, protocol={**PROTOCOL, "pooling": pooling}
    )
    tokenizer = tiny_tokenizer()
    sequences, _ = encode_texts(["the cat sat", "dog"], tokenizer, max_seqlen=64)
    encoder = Encoder(load_encoder(model).eval(), tokenizer.pad_id, pooling=pooling)
    with torch.inference_mode():
        ours = encoder.pooled(sequences).numpy()
    theirs = SentenceTransformer(str(made.folder), device="cpu").encode(["the cat sat", "dog"])
    np.testing.assert_allclose(theirs, ours, atol=2e-6)


def test_weights_of_an_earlier_run_are_reproduced_bitwise(one_thread, make, tmp_path, capsys):
    made, rates = make("eurobert", "sr"), [1e-3, 3e-3]
    capsys.readouterr()
    model, root = made.folder.parent / "eurobert", made.folder.parent / "root"
    again = fine_tune(model, task_of(made), tmp_path / "again", root=root, learning_rates=rates)
    message = capsys.readouterr().err
    assert "2 runs, 2 of them finished" in message
    assert "repeating it" in message
    assert "other scores" not in message
    assert again.record == made.record
    first, second = (load_file(x.folder / "model.safetensors") for x in (made, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_an_export_warns_that_the_head_is_left_out(make, tmp_path, monkeypatch):
    made, said = make("eurobert", "sc"), []
    monkeypatch.setattr(write, "_write", lambda *_, **__: pytest.fail("stop"))
    with pytest.raises(pytest.fail.Exception, match="stop"):
        write.write_export(made.folder, tmp_path / "out", ExportSettings(), say=said.append)
    assert said[0].startswith(f"warning: the export has no head for {made.record.task}, ")


def test_an_export_warns_that_it_makes_other_vectors(given, tmp_path, monkeypatch):
    model, _ = given("eurobert", "sc")
    folder, said = shutil.copytree(model, tmp_path / "model"), []
    how = {"hidden_size": 32, "max_seqlen": 64}
    monkeypatch.setattr(write, "_write", lambda *_, **__: pytest.fail("stop"))
    for format_ in ("hf", "sentence-transformers"):
        for prompts in ({}, {"query": "query: "}):
            write_sentence_transformers(folder, **how, prompts=prompts, pooling="first")
            settings = ExportSettings(format_)
            with pytest.raises(pytest.fail.Exception, match="stop"):
                write.write_export(folder, tmp_path / "out", settings, say=said.append)
    messages = [text.partition(": its own vectors have ")[2] for text in said]
    assert messages == [
        f"{own}; the export has the plain mean, without prompts"
        for own in ("pooling first", "pooling first, prompts")
    ]


def test_the_best_on_validation_is_kept(one_thread, make):
    made = make("eurobert", "sr")
    by_rate = {r.learning_rate: (r.validation or {})["spearman"] for r in made.evaluation.results}
    assert len(by_rate) == 2
    assert by_rate[made.record.learning_rate] == max(by_rate.values())
    assert made.record.validation["spearman"] == max(by_rate.values())


def test_the_same_again_is_done(make, monkeypatch, capsys):
    made = make("eurobert", "sc")
    before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")}
    monkeypatch.setattr("biphasic.export.finetuned.finetune_grid", None)
    model, root = made.folder.parent / "eurobert", made.folder.parent / "root"
    found = fine_tune(model, task_of(made), made.folder, root=root)
    assert found == made
    assert "already made from the same" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")} == before
    with pytest.raises(ConfigError, match="made from another model"):
        fine_tune(model, task_of(made), made.folder, root=root, seeds=[1])
    weights = made.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model\.safetensors: wrong size"):
        fine_tune(model, task_of(made), made.folder, root=root)


def test_nothing_is_overwritten_and_nothing_begun(make, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        finetune(tmp_path / "model", "sst2", out)
    with pytest.raises(DataError, match="a model: no such folder"):
        finetune(tmp_path / "a model", "sst2", tmp_path / "new", root=tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_causal_model_is_not_written(make, tmp_path):
    made = make("eurobert", "sc")
    model, out = made.folder.parent / "eurobert", tmp_path / "out"
    causal = {**PROTOCOL, "attention": "causal"}
    with pytest.raises(ConfigError, match="'finetune' writes bidirectional models"):
        fine_tune(model, task_of(made), out, root=tmp_path, protocol=causal)
    assert not out.exists()


def test_a_task_that_gives_no_model_is_refused(given, tmp_path):
    model, _ = given("llama", "sc")
    pairs = write_jsonl(tmp_path / "mp.jsonl", [{"sentence_good": "a cat", "sentence_bad": "a a"}])
    with pytest.raises(ConfigError, match=r"task 'mp': .* kind mp trains nothing .* 'evaluate'"):
        fine_tune(model, f"mp:{pairs}", tmp_path / "out", root=tmp_path)
    assert not (tmp_path / "out").exists()


def test_what_is_no_fine_tuned_model_is_refused(make, tmp_path):
    made = make("eurobert", "sc")
    with pytest.raises(DataError, match="no fine-tuned model here"):
        read_head(made.folder.parent / "eurobert")
    with pytest.raises(DataError, match="no such folder"):
        read_head(tmp_path / "none")
    source = open_input(str(task_of(make("modernbert", "ir")) / "queries.jsonl"))
    with pytest.raises(DataError, match="biphasic encode"):
        predict_file(make("modernbert", "ir").folder, source, None)


def test_a_long_context_is_checked_without_a_warning_of_transformers(tmp_path, caplog):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    logging.enable_propagation()
    try:
        check_tokenizer(
            tiny_tokenizer(), [("who sat", "the cat " * 80)], max_seqlen=64, scratch=scratch
        )
    finally:
        logging.disable_propagation()
    assert "longer than" not in caplog.text
