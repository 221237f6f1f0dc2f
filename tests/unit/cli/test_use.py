"""The commands for everyday use: names of options, and what they refuse."""

import subprocess
import sys

import pytest

from biphasic.export import write
from tiny_use import write_head, write_model


@pytest.mark.parametrize(
    ("given", "dtype"), [([], "float32"), (["--precision", "bf16"], "bfloat16")]
)
def test_an_export_has_a_precision(run, monkeypatch, given, dtype):
    exported = {}
    monkeypatch.setattr(write, "write_export", lambda *given, **_: exported.update(vars(given[2])))
    assert run("export", "model", "out", *given)[0] == 0
    assert exported["dtype"] == dtype


UNCLEAR = {
    "rates with commas": (
        "evaluate", "encoder", "--task", "sc:x", "--learning-rate", "1e-3,2e-3",
        "not '1e-3,2e-3'; repeat the option for several",
    ),
    "a rank alone": (
        "adapt", "encoder", "--corpus", "c.txt", "--out", "o", "--lora", "4",
        "--lora 4: expected KEY=VALUE, e.g. rank=16",
    ),
    "a way that is not there": (
        "predict", "finetuned", "body.csv", "--long-texts", "men",
        "'--long-texts': 'men' is not one of 'mean', 'max', 'truncate'",
    ),
    "encode names --column": ("encode", "encoder", "body.csv", "--out", "o.npy", "--column"),
    "a semicolon": ("encode", "encoder", "semicolons.csv", "--out", "o.npy", "semicolons separate"),
    "a semicolon, predicting": (
        "predict", "finetuned", "semicolons.csv", "--out", "o.jsonl", "semicolons separate",
    ),
    "a rank that is no number": (
        "adapt", "encoder", "--corpus", "body.csv", "--out", "o", "--steps", "1", "--lora",
        "rank=x",
        "error: lora: rank: input should be a valid integer",
    ),
    "an empty study": ("study", "plan", "empty.yaml", "empty.yaml: is empty"),
    "an empty recipe": ("pretrain", "empty.yaml", "--corpus", "x", "empty.yaml: is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLEAR)
def test_messages_say_what_to_do(run, tmp_path, case):
    for name in ("encoder", "finetuned"):
        write_model(tmp_path / name, "eurobert")
    write_head(tmp_path / "finetuned", "sc")
    (tmp_path / "body.csv").write_text("id,body\n1,the cat\n")
    (tmp_path / "semicolons.csv").write_text("id;text\n1;the cat\n")
    (tmp_path / "empty.yaml").touch()
    *command, wanted = UNCLEAR[case]
    code, _, error = run(*command)
    assert code == 2
    assert wanted in error


def test_adapt_refuses_wrong_options_before_torch_is_imported(tmp_path):
    """Torch takes seconds to import, and a model minutes to fetch."""
    wrong = {
        "format": {"format": "onxx"},
        "as": {"as_": "bert"},
        "as: own": {"format": "onnx", "as_": "own"},
        "no-such.txt": {"corpus": "no-such.txt"},
        "lora": {"lora": {"rank": 0}},
        "corpus: 'vocab_size'": {"corpus": {"sources": ["t.txt"], "vocab_size": 400}},
    }
    program = f"""
import sys, biphasic, biphasic.errors
for options in {[*wrong.values()]}:
    try:
        biphasic.adapt("owner/model", "out", **{{"steps": 1, "corpus": "t.txt", **options}})
    except biphasic.errors.BiphasicError as error:
        print(error)
assert "torch" not in sys.modules
"""
    (tmp_path / "t.txt").write_text("text")
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for line, start in zip(ended.stdout.splitlines(), wrong, strict=True):
        assert line.startswith(start)
