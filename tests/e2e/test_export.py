"""From training to a folder for everyone, by the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mini_study import Cli

pytestmark = pytest.mark.slow

RECIPE = {
    "model": "pico",
    "phases": [{"objective": "clm", "steps": 2}, {"objective": "mlm", "steps": 2}],
    "learning_rate": {"peak": 2e-3, "warmup_steps": 1},
    "max_seqlen": 32,
    "rows_per_step": 2,
}
# What somebody does who has never heard of us.
STRANGER = """
import sys
sys.modules["biphasic"] = None
import torch
from transformers import AutoModel, AutoTokenizer, pipeline
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModel.from_pretrained(sys.argv[1])
batch = tokenizer(["one text", "another, longer text"], padding=True, return_tensors="pt")
print(tuple(model(**batch).last_hidden_state.shape))
fill = pipeline("fill-mask", model=sys.argv[1], device="cpu")
print(len(fill(f"some {fill.tokenizer.mask_token} text")))
"""


@pytest.fixture
def state(tmp_path: Path, cli: Cli) -> Path:
    """A state by the shortest of pretrainings."""
    text = tmp_path / "text.jsonl"
    lines = [json.dumps({"text": f"the rows of an array hold {n} tokens"}) for n in range(600)]
    text.write_text("\n".join(lines))
    code, _, message = cli(
        "corpus", "build", text, "--out", tmp_path / "corpus", "--vocab-size", "300"
    )
    assert code == 0, message
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    arguments = ("--corpus", tmp_path / "corpus", "--root", tmp_path / "runs")
    code, printed, message = cli("pretrain", tmp_path / "recipe.yaml", *arguments)
    assert code == 0, message
    return Path(printed.strip()).resolve()


def test_pretrain_export_push(state, tmp_path, cli, warm):
    out = tmp_path / "my-encoder"
    code, printed, message = cli("export", state, out)
    assert (code, printed) == (0, f"{out}\n"), message
    assert "in a separate process" in message

    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(out)],
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shape, answers = done.stdout.splitlines()
    assert shape.endswith(", 64)")
    assert answers == "5"

    card = (out / "README.md").read_text()
    held = json.loads((state / "state.json").read_text())
    assert f"| MLM | {held['heldout']['mlm']:.3f} |" in card
    assert held["identity"] in card
    assert held["ground"]["corpus_hash"] in card
    assert str(tmp_path) not in card

    code, printed, message = cli("push", out, "me/my-encoder")
    assert code == 0
    assert "model.safetensors" in printed
    assert "nothing uploaded; add --go" in printed
    assert "'license' is not filled in" in message
