"""From one's own files to predictions and vectors, by the command line alone."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny_use import read_jsonl, write_jsonl, write_model

pytestmark = pytest.mark.slow

SETTINGS = ["--set", "max_steps=12", "--set", "batch_size=16", "--set", "max_epochs=5"]
REVIEWS = {"good": "the cat sat on the mat", "bad": "the dog ran to Paris"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model and with reviews as somebody has them."""
    place = tmp_path_factory.mktemp("use")
    write_model(place / "model", "llama")
    (place / "reviews").mkdir()
    for split in ("train", "dev", "test"):
        with (place / f"reviews/{split}.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["sentence", "label"])
            for number in range(24):
                label = ("good", "bad")[number % 2]
                writer.writerow([f"{REVIEWS[label]}, {number}", label])
    return place


def test_from_reviews_to_predictions(cli, place, monkeypatch):
    monkeypatch.chdir(place)
    rates = ["--learning-rate", "1e-3", "--learning-rate", "3e-3", "--seed", "0", "--extend", "0"]
    arguments = ["finetune", "model", "--task", "sc:reviews", *rates, *SETTINGS, "--root", "root"]
    code, out, err = cli(*arguments, "--workers", "2", "--out", "sorter")
    assert code == 0, err
    assert "reviews: 2 runs, 0 of them finished; each has about 10 steps of 16" in err
    assert "reads 24 examples 5 times" in err
    assert "few steps of fine-tuning: reviews (10); the paper takes up to 1,000" in err
    assert "repeating it" not in err  # two processes kept their best, and one of them the best
    assert "kept: rate " in out
    assert "  floors: majority 50.00; references: bag of words " in out
    assert "sorter: loads with AutoModelForSequenceClassification" in out
    record = json.loads((place / "sorter/head.json").read_text())
    assert (record["model"], record["labels"]) == ("model", ["bad", "good"])
    assert record["baselines"]["floor:majority"] == 0.5

    code, out, err = cli(*arguments, "--workers", "1", "--out", "again")
    assert code == 0, err
    assert "repeating it" in err
    weights = [(place / name / "model.safetensors").read_bytes() for name in ("sorter", "again")]
    assert weights[0] == weights[1]

    code, out, err = cli("predict", "sorter", "reviews/test.csv", "--out", "out.jsonl")
    assert (code, out) == (0, "out.jsonl: 24 predictions\n"), err
    found = read_jsonl(place / "out.jsonl")
    right = sum(row["label"] == ("good", "bad")[n % 2] for n, row in enumerate(found))
    assert right / 24 == pytest.approx(record["test"]["accuracy"])
    code, out, err = cli("predict", "sorter", "reviews/test.csv")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == found


def test_from_texts_to_vectors(cli, place, monkeypatch):
    monkeypatch.chdir(place)
    texts = [*REVIEWS.values(), "", "with the cat " * 60]
    (place / "texts.txt").write_text("\n".join(texts) + "\n")
    encode = ("encode", "model", "texts.txt", "--out", "x.npy", "--normalize")
    code, _, err = cli(*encode)
    assert (code, "texts.txt:4: longer than the 64 tokens" in err) == (2, True)
    code, out, err = cli(*encode, "--long-texts", "truncate")
    assert code == 0, err
    assert out.startswith("x.npy: 4 vectors, ")
    assert "truncated: 1 of 4, longer than 64 tokens\nempty: 1 of 4\n" in err
    vectors = np.load(place / "x.npy")
    assert vectors.shape == (4, 32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    write_jsonl(place / "texts.jsonl", [{"body": text} for text in texts])
    encode = ("encode", "model", "texts.jsonl", "--column", "body", "--out", "y.npy")
    assert cli(*encode, "--long-texts", "mean")[0] == 0
    code, out, err = cli("encode", "model", "texts.jsonl", "--out", "z.npy")
    assert (code, out) == (2, "")
    assert (
        err == "error: texts.jsonl:1: no column 'text'; there are 'body'; name it with --column\n"
    )
    assert not (place / "z.npy").exists()


@pytest.mark.usefixtures("warm")
def test_texts_come_from_another_program(place):
    program = "from biphasic.cli.main import main; main()"
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "encode",
            place / "model",
            "-",
            "--out",
            place / "piped.npy",
        ],
        input="\n".join(REVIEWS.values()) + "\n",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    assert np.load(place / "piped.npy").shape == (2, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "model", "--task", "sc:reviews", "--out", "model"], "already exists; choose"),
        (["finetune", "model", "--task", "sc:none", "--out", "o"], "'sc:none': no such folder"),
        (
            ["finetune", "model", "--task", "sc:reviews", "--out", "o", "--set", "max_step=1"],
            "protocol: unknown key 'max_step' (did you mean 'max_steps'?)",
        ),
        (["predict", "model", "reviews/test.csv"], "no fine-tuned model here"),
        (["predict", "reviews/test.csv", "reviews/test.csv"], "a file, not a fine-tuned model"),
        (["predict", "model", "reviews/test.csv", "--out", "o.xls"], "unknown suffix"),
        (["encode", "model", "reviews/none.csv", "--out", "o.npy"], "no such file"),
        (["encode", "model", "reviews/test.csv", "--out", "o.txt"], "unknown suffix"),
        (["encode", "none", "reviews/test.csv", "--out", "o.npy"], "no folder 'none' here"),
    ],
)
def test_bad_input_is_one_line(cli, place, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = sorted(Path().rglob("*"))
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    *_, last = err.splitlines()  # a task tells what it holds as soon as it is read
    assert last.startswith("error: ")
    assert message in last
    assert [path for path in sorted(Path().rglob("*")) if "runs" not in path.parts] == [
        path for path in before if "runs" not in path.parts
    ]


def test_encoding_with_an_unadapted_decoder_warns(cli, place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "one.txt").write_text("the cat sat on the mat\n", encoding="utf-8")
    code, _, err = cli("encode", "model", "one.txt", "--out", "one.npy")
    assert code == 0, err
    assert "warning: model is a decoder not trained for bidirectional attention" in err
