"""What training refuses of plugins in files: it names what is wrong, and where."""

import json
import os
import re
import threading

import numpy as np
import pytest

from plugin_files import STRIDE, forget_plugins, page_code
from tiny_use import words

RETURNED = "return (Supervision(rows=hidden, positions=positions, labels=labels, causal=False),)"
BOTH_WAYS = (
    (RETURNED, f"{RETURNED} + {RETURNED.removeprefix('return ').replace('False', 'True')}"),
    ("frozenset({False})", "frozenset({False, True})"),
)
OBJECTIVES = {
    "none": ([(RETURNED, "return None")], "error: stride: breaks the rule 'rows': "),
    "labels": ([("labels=labels", "labels=labels + 400")], "'positions': a label is not in"),
    "lists": ([("labels=labels", "labels=list(labels)")], "'positions': .* must be int64"),
    "direction": ([("causal=False", "causal=True")], "'directions': a part has causal=True"),
    "twice": ([*BOTH_WAYS, ("False, True", "False")], "'directions': a part has causal=True"),
    "error": ([("self.every]", "self.evry]")], r"stride\.py:\d+: AttributeError: .*'evry'"),
}
"""Edits of an objective, and what the message says."""
QUIET = ("--quiet",)


@pytest.fixture
def train(cli, tmp_path):
    """Train some steps by the code of a plugin's file; return exit code and message."""
    forget_plugins()
    rng = np.random.default_rng(0)
    texts = [{"text": " ".join(words(rng))} for _ in range(40)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    corpus = {"sources": ["texts.jsonl"], "vocab_size": 300, "heldout_fraction": 0.2}
    (tmp_path / "corpus.yaml").write_text(json.dumps(corpus))

    def run(text, *edits, objective="./stride.py:Stride", optimizer=None, options=QUIET, **own):
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new)
        (tmp_path / "stride.py").write_text(text)
        recipe = {
            "model": "pico",
            "max_seqlen": 32,
            "rows_per_step": 2,
            "precision": "fp32",
            "learning_rate": {"peak": 1e-3},
            "phases": [{"objective": objective, "steps": 1, **own}],
            "optimizer": optimizer or {"name": "adamw"},
        }
        (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
        options = ("--corpus", tmp_path / "corpus.yaml", "--root", tmp_path / "root", *options)
        code, _, error = cli("pretrain", tmp_path / "recipe.yaml", *options)
        return code, error

    yield run
    forget_plugins()


pytestmark = pytest.mark.usefixtures("unprobed", "warm")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_that_returns_something_else_is_refused(train, name):
    edits, message = OBJECTIVES[name]
    code, error = train(STRIDE, *edits)
    assert code == 2
    assert re.search(message, error), error
    # TensorBoard's writer has ended; otherwise it would write later, when the folder may be gone.
    assert not [each for each in threading.enumerate() if "Writer" in type(each).__name__]


def test_rows_may_be_read_both_ways_in_one_step(train):
    assert train(STRIDE, *BOTH_WAYS) == (0, "")
    own, half = {"objective": "./stride.py:Stride"}, [0.5, 0.5]
    parts = {"objectives": [own, {"objective": "clm"}], "shares": half}
    assert train(STRIDE, *BOTH_WAYS, objective="mix", **parts) == (0, "")
    code, error = train(STRIDE, (RETURNED, "return None"), objective="mix", **parts)
    assert (code, "stride: breaks the rule 'rows'" in error) == (2, True)


def test_a_loss_has_the_unit_that_its_class_declares(train, tmp_path):
    measure = """    @property
    def heldout_measures(self):
        return {"strided": (self, 1)}

    def supervise("""
    own = {"objective": "./stride.py:Stride"}
    mixed = {"objective": "mix", "shares": [0.5, 0.5], "objectives": [own, {"objective": "clm"}]}
    bits, bare = ("    every:", '    loss_unit = "bits"\n    every:'), ("    every:", "    every:")
    for unit, phase, units in (
        (bits, own, {"stride": "bits", "strided": "bits"}),
        (bits, mixed, {"mix": "", "strided": "bits"}),
        (bare, own, {}),
    ):
        assert train(STRIDE, unit, ("    def supervise(", measure), **phase) == (0, "")
        state = max((tmp_path / "root/store/states").glob("*/state.json"), key=os.path.getmtime)
        record = json.loads(state.read_text())
        assert record.get("loss_units", {}) == units
        assert {*record["heldout"]} == {"clm", "mlm", "strided"}
    _, said = train(STRIDE, bits, ("    def supervise(", measure), options=(), steps=2)
    assert re.search(r"loss in nats per token: CLM .*, MLM .*; held-out loss in bits: STRID", said)


@pytest.mark.parametrize(
    ("loss", "returned"), [("plain.sum()", r"\[\]"), ("plain.detach()", r"\[\d+\]")]
)
def test_a_loss_is_one_number_with_a_gradient_for_each_label(train, loss, returned):
    edit = ("plain + z_loss * logits.logsumexp(-1).square()", loss)
    code, error = train(page_code("Smoothed"), edit, objective="./stride.py:Smoothed")
    assert code == 2
    assert re.search(rf"per_label returns {returned} for \d+ labels; .* \[\d+\]", error), error


OPTIMIZERS = {
    "one left out": [("masters.values()", "masters.values()][1:]"), ("(weights.m", "([*weights.m")],
    "no optimizer": [("return [Steps(", "return [print("), ("values(), {", "values(), 1) or ({")],
    "no list": [("return [Steps(", "return (Steps("), ("momentum})]", "momentum}))")],
    "error": [("add_(weight.grad)", "add_(weight.grads)")],
    "no tensor": [("self.state[weight]\n", "self.state[weight]; state['n'] = 1\n")],
}
MESSAGES = {
    "one left out": "optimizer momentum: updates .*weight 0 times",
    "no optimizer": "optimizer momentum: build must return a list",
    "no list": "optimizer momentum: build must return a list",
    "error": r"stride\.py:\d+: AttributeError: .*'grads'",
    "no tensor": r"optimizer momentum: keeps a int as .*\.n; keep a tensor",
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_does_something_else_is_refused(train, name):
    named = {"name": "./stride.py:Momentum"}
    code, error = train(page_code("Momentum"), *OPTIMIZERS[name], objective="mlm", optimizer=named)
    assert code == 2
    assert re.search(MESSAGES[name], error), error
