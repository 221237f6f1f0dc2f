"""Minimal pairs against a plain loop over transformers' own models, sentence by sentence."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from biphasic import evaluate
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError
from biphasic.tasks.folder import load_task_file
from biphasic.tasks.kinds.minimal_pairs import usual_reading
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from tiny_use import words, write_jsonl, write_model

pytestmark = pytest.mark.usefixtures("unprobed", "one_thread")
TWO = [{"objective": "clm"}, {"objective": "mlm"}]
WORDS = ["Anna", "Annas", "Parisian", "dogs", "concat"]  # several tokens each


def pairs(number: int = 12) -> list[dict[str, str]]:
    rng = np.random.default_rng(1)
    drawn = [[*words(rng), str(rng.choice(WORDS)), *words(rng)] for _ in range(number)]
    return [
        {
            "sentence_good": " ".join(sentence) + ".",
            "sentence_bad": " ".join(rng.permutation(sentence)) + ".",
            "UID": ("island", "agreement")[index % 2],
            "pairID": str(index // 2),
        }
        for index, sentence in enumerate(drawn)
    ]


@pytest.fixture
def file(tmp_path) -> Path:
    """A file as BLiMP's, compressed."""
    path = tmp_path / "blimp.jsonl.gz"
    with gzip.open(path, "wt") as stream:
        stream.writelines(json.dumps(pair) + "\n" for pair in pairs())
    return path


def run(model: Path, task, root: Path, **protocol):
    settings = {"protocol": {"max_seqlen": 64, **protocol}, "root": root}
    return evaluate(model, task, **settings, quiet=True)


def table(result):
    return pq.read_table(result.folder / result.results[0].id / "scores.parquet").to_pydict()


@cache
def loaded(folder: Path, kind: type) -> tuple[TextTokenizer, Any]:
    return TextTokenizer.load(folder), kind.from_pretrained(folder).eval()


@torch.no_grad()
def by_hand(folder: Path, text: str, reading: str) -> float:
    kind = AutoModelForCausalLM if reading == "clm" else AutoModelForMaskedLM
    tokenizer, model = loaded(folder, kind)
    ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
    if reading == "clm":
        chances = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(float(chances[at - 1, ids[at]]) for at in range(1, len(ids) - 1))
    total = 0.0
    for at in range(1, len(ids) - 1):
        shown = [*ids[:at], tokenizer.mask_id, *ids[at + 1 :]]
        chances = model(torch.tensor([shown])).logits[0].log_softmax(-1)
        total += float(chances[at - (reading == "mntp"), ids[at]])
    return total


CASES = [
    ("llama", "clm", {}),
    ("qwen3", "clm", {}),
    ("bert", "mlm", {}),
    ("modernbert", "mlm", {}),
    ("eurobert", "mlm", {}),
    ("eurobert", "mntp", {"reading": "mntp"}),
]


@pytest.mark.parametrize(("family", "reading", "protocol"), CASES)
def test_probabilities_are_those_of_a_plain_loop(tmp_path, file, family, reading, protocol):
    model = write_model(tmp_path / family, family)
    result = run(model, f"mp:{file}", tmp_path / "root", **protocol)
    scores = table(result)
    for name in ("good", "bad"):
        wanted = [by_hand(model, p[f"sentence_{name}"], reading) for p in pairs()]
        assert scores[name] == pytest.approx(wanted, abs=1e-4)
    assert scores["reading"] == [reading] * 12
    right = np.array(scores["good"]) > np.array(scores["bad"])
    assert result.results[0].test == {"accuracy": right.mean(), "ties": 0.0}
    assert result.estimate is not None
    assert result.estimate.mean == pytest.approx(100 * right.mean())


@pytest.mark.parametrize(
    ("family", "phases", "reading"),
    [
        ("eurobert", [{"objective": "mlm"}, {"objective": "clm"}], "clm"),
        ("eurobert", [{"objective": "clm"}, {"objective": "mntp"}], "mntp"),
        ("llama", [{"objective": "clm"}, {"objective": "mlm"}], "mlm"),
        ("eurobert", [{"objective": "mix", "objectives": TWO, "shares": [0.5, 0.5]}], "mlm"),
        ("eurobert", [], "mlm"),
        ("llama", [], "clm"),
        ("llama", None, "clm"),
    ],
)
def test_a_state_is_read_as_its_last_objective_trained_it(tmp_path, family, phases, reading):
    model = write_model(tmp_path / "model", family)
    if phases is not None:
        costs = dict.fromkeys(("steps", "documents", "tokens", "supervised_tokens", "flops"), 1)
        state = {
            "format": "biphasic.state/1",
            "identity": "i",
            "step": 1,
            "rows_sha256": "00",
            "recipe": {"phases": phases},
            "ledger": [
                {"phase": place, "objective": phase["objective"], **costs}
                for place, phase in enumerate(phases)
            ],
        }
        (model / "state.json").write_text(json.dumps(state))
    assert usual_reading(model) == reading


def test_the_protocol_decides_before_the_model(tmp_path):
    kind, model = KINDS["mp"], write_model(tmp_path / "eurobert", "eurobert")
    readings = [
        (protocol.reading, protocol.attention)
        for settings in ({}, {"attention": "causal"}, {"reading": "clm"}, {"reading": "mntp"})
        for protocol in [kind.learner.protocol_for(FinetuneProtocol(**settings), model)]
    ]
    assert readings == [
        *(("mlm", "bidirectional"), ("clm", "causal")),
        *(("clm", "causal"), ("mntp", "bidirectional")),
    ]
    with pytest.raises(ValueError, match="mlm needs attention: bidirectional"):
        FinetuneProtocol(attention="causal", reading="mlm")
    decoder = write_model(tmp_path / "llama", "llama")
    config = json.loads((decoder / "config.json").read_text())
    (decoder / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    with pytest.raises(ConfigError, match="set reading to mlm or mntp"):
        usual_reading(decoder)


def test_paradigms_have_accuracies(tmp_path, file):
    model = write_model(tmp_path / "llama", "llama")
    result = run(model, f"mp:{file}", tmp_path / "root")
    [record], scores = result.results, table(result)
    assert record.by_type["test"].keys() == {"island", "agreement"}
    for name, values in record.by_type["test"].items():
        correct = [
            c for c, p in zip(scores["correct"], scores["paradigm"], strict=True) if p == name
        ]
        assert values == {"accuracy": np.mean(correct), "pairs": 6}
    assert record.is_zero_shot
    assert record.about.title == "minimal pairs"


def test_ties_count_as_half_and_are_listed(tmp_path):
    """One pair is equal, as seven of BLiMP's; another is cut to 8 tokens, before it differs."""
    model = write_model(tmp_path / "eurobert", "eurobert")
    same = "the cat sat on the mat and the dog"
    rows = [
        {"sentence_good": good, "sentence_bad": bad}
        for good, bad in (
            ("the cat sat", "cat the sat"),
            (f"{same} ran", f"{same} sat"),
            ("the cat", "the cat"),
        )
    ]
    folder = tmp_path / "pairs"
    folder.mkdir()
    write_jsonl(folder / "test.jsonl", rows)
    result = run(model, f"mp:{folder}", tmp_path / "root", max_seqlen=8)
    scores, [record] = table(result), result.results
    assert scores["correct"][0] in {0, 1}
    assert scores["correct"][1:] == [0.5, 0.5]
    assert scores["score"][1:] == [0, 0]
    assert record.test == {"accuracy": np.mean(scores["correct"]), "ties": 2 / 3}
    assert record.by_type == {}
    assert record.num_truncated == {"test": 2}


def test_a_sample_is_drawn_in_each_paradigm(tmp_path, file):
    model = write_model(tmp_path / "llama", "llama")
    drawn = {}
    for seed in (0, 1):
        path = tmp_path / f"sample{seed}.yaml"
        path.write_text(f"kind: mp\ntest: {file}\npairs_per_paradigm: 2\nseed: {seed}\n")
        scores = table(run(model, path, tmp_path / "root"))
        assert sorted(scores["paradigm"]) == ["agreement"] * 2 + ["island"] * 2
        assert scores["id"] == sorted(scores["id"], key=int)
        drawn[seed] = scores["id"]
        # Ids are lines of the file, in which the two paradigms alternate.
        places = [(int(line) - 1) // 2 for line in drawn[seed]]
        assert len(set(places)) > 2, "both paradigms have the same draw"
    assert drawn[0] != drawn[1]
    path.write_text("kind: sc\nfolder: x\npairs_per_paradigm: 2\n")
    with pytest.raises(ConfigError, match=r"'pairs_per_paradigm' .* mp, not sc"):
        load_task_file(path)


def test_a_sentence_without_tokens_is_refused(tmp_path, file, monkeypatch):
    def without_tokens(self, texts):
        return [[] if index == 1 else self.encode(text) for index, text in enumerate(texts)]

    monkeypatch.setattr(TextTokenizer, "encode_many", without_tokens)
    model = write_model(tmp_path / "llama", "llama")
    with pytest.raises(DataError, match="the tokenizer finds no token in"):
        run(model, f"mp:{file}", tmp_path / "root", reading="clm")
