"""What people see who load an export with transformers 4.57, the last release before 5.

It is installed once in a folder of its own, which stays until `make clean`, before everything else
on the path. Skipped where no package index can be reached.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from filelock import FileLock
from transformers import AutoModel

from biphasic import export_model
from biphasic.data.tokens.tokenizer import TextTokenizer
from families import save_family
from warm import forking

pytestmark = pytest.mark.slow

OLD = "transformers==4.57.*"
FOLDER = Path(__file__).parents[2] / "build/transformers-4.57"
# What it needs beside what is installed: without these names pip would fetch torch's company too.
NEEDED = ("tokenizers==0.22.*", "huggingface-hub==0.36.*", "requests", "urllib3")
NEEDED += ("charset-normalizer", "idna", "certifi")
NO_INDEX = (
    "No matching distribution",
    "Connection",
    "Temporary failure",
    "Read timed out",
    "Proxy",
)

# Libraries that transformers imports where it finds them, which takes a third of the time.
WITHOUT_OPTIONAL = """
import sys
sys.modules.update(dict.fromkeys(["datasets", "pandas", "pyarrow", "scipy", "sklearn"]))
"""
LOOK = """
import json, sys
import torch, transformers
from transformers import AutoModel, AutoTokenizer
qwen3, eurobert, own, check = sys.argv[1:]
found = {"version": transformers.__version__}
model, tokenizer = AutoModel.from_pretrained(qwen3), AutoTokenizer.from_pretrained(qwen3)
found["is_causal"] = model.config.is_causal
found["ids"] = tokenizer("rows of tokens").input_ids
ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]])
with torch.no_grad():
    states = [model(row[None]).last_hidden_state[0] for row in ids]
found["states"] = states[0].tolist()
found["changed"] = (states[0] != states[1]).any(-1).tolist()
with torch.no_grad():
    body = AutoModel.from_pretrained(own, trust_remote_code=True)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    found["own"] = [body(row[None]).last_hidden_state[0].tolist() for row in ids]
    found["padded"] = body(ids, attention_mask=mask).last_hidden_state[0, :3].tolist()
    found["shorter"] = body(ids[:1, :3]).last_hidden_state[0].tolist()
try:
    exec(check)
    found["check"] = "passes"
except AssertionError as error:
    found["check"] = str(error)
try:
    AutoModel.from_pretrained(eurobert)
    found["eurobert"] = "loads"
except ValueError as error:
    found["eurobert"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def old_transformers() -> Path:
    """The folder with transformers 4.57 and what it needs of old packages."""
    FOLDER.parent.mkdir(exist_ok=True)
    with FileLock(FOLDER.with_suffix(".lock")):
        if not FOLDER.is_dir():
            with TemporaryDirectory(dir=FOLDER.parent) as partial:
                _install(Path(partial) / "packages")
                (Path(partial) / "packages").rename(FOLDER)
    return FOLDER


def _install(folder: Path) -> None:
    # Few of its modules are imported: compiling them all takes longer than all else here.
    options = ["--quiet", "--no-compile", "--no-deps", "--only-binary", ":all:", "--retries", "1"]
    options += ["--timeout", "15"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), OLD, *NEEDED],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and any(words in done.stderr for words in NO_INDEX):
        pytest.skip(f"no package index can be reached for {OLD}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer) -> list[Path]:
    """An exported Qwen3, a native EuroBERT, and a Llama exported as a class of its own."""
    root = tmp_path_factory.mktemp("exports")
    base = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}  # far from 10,000
    save_family("qwen3", root / "decoder", tokenizer=tokenizer, **base)
    save_family("eurobert", root / "eurobert")
    save_family("llama", root / "llama", tokenizer=tokenizer, **base)
    with forking():
        own = export_model(root / "llama", root / "own", as_="own")
        return [export_model(root / "decoder", root / "qwen3"), root / "eurobert", own]


def look(folders: list[Path], first_on_path: Path | None) -> dict[str, Any]:
    """Return what another process finds."""
    card = (folders[0] / "README.md").read_text("utf-8")
    (check,) = re.findall(r"^## Needs transformers.*?^```python\n(.*?)^```", card, re.M | re.S)
    assert len(check.splitlines()) == 3
    paths = {"PYTHONPATH": str(first_on_path)} if first_on_path else {}
    program = f"{WITHOUT_OPTIONAL if first_on_path else ''}{LOOK}"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, folders), check],
        capture_output=True, text=True, check=False,
        env={**os.environ, **paths, "HF_MODULES_CACHE": str(folders[0].parent / "modules")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def old(old_transformers: Path, folders: list[Path]) -> dict[str, Any]:
    return look(folders, old_transformers)


@pytest.fixture(scope="module")
def new(folders: list[Path]) -> dict[str, Any]:
    with forking():
        return look(folders, None)


def test_old_release_runs_a_decoder_causally(old):
    assert old["version"].startswith("4.57.")
    assert old["is_causal"] is False  # read, and ignored without a word
    assert old["changed"] == [False, False, False, True]


def test_old_release_reads_the_base_of_the_rotary_frequencies(old, folders):
    """Run causally, it gives the states of the decoder that was exported."""
    with torch.no_grad():
        decoder = AutoModel.from_pretrained(folders[0].parent / "decoder")
        expected = decoder(torch.tensor([[5, 6, 7, 8]])).last_hidden_state[0]
    torch.testing.assert_close(torch.tensor(old["states"]), expected, rtol=0, atol=1e-4)


def test_the_card_tells(old):
    assert "runs causally" in old["check"]


def test_old_release_refuses_eurobert(old):
    assert "does not recognize this architecture" in old["eurobert"]


def test_new_release_reads_both_ways(new):
    assert new["changed"] == [True] * 4
    assert new["check"] == "passes"
    assert new["eurobert"] == "loads"


def test_both_read_a_class_of_ours_both_ways(old, new):
    for found in (old, new):
        states, other = map(torch.tensor, found["own"])
        assert bool((states != other).any(-1).all())
        for name in ("own", "padded"):
            torch.testing.assert_close(
                torch.tensor(found[name]), torch.tensor(new[name]), rtol=0, atol=1e-4
            )
        padded, shorter = torch.tensor(found["padded"]), torch.tensor(found["shorter"])
        torch.testing.assert_close(padded, shorter, rtol=0, atol=1e-5)


def test_tokens_are_the_same(old, new):
    assert old["ids"] == new["ids"]
