"""Every family and kind of head: transformers alone gives the labels that `predict` gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from biphasic.export.check import FITTED_TOLERANCE as TOLERANCE
from biphasic.export.check import example_sequences
from biphasic.export.finetuned import forms_of, write_model
from biphasic.model.compute.forward import batching_of
from biphasic.model.loading.build import load_encoder
from biphasic.tasks.inputs import open_input
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.use import HeadRecord, predict_file
from families import DISTINCT, PADDED_ONLY, save_family
from tiny_use import ANIMALS, LABELS, read_jsonl, tiny_tokenizer, write_jsonl
from warm import forking, probe_nothing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

TEXTS = ["the cat sat on the mat", "to Paris with Anna and the dog", "Anna", "dog ran"]
QUESTIONS = [("cat", "the cat sat on the mat"), ("Anna", "to Paris with Anna and the dog ran")]
ROWS: dict[str, list[dict[str, Any]]] = {
    "sc": [{"text": text} for text in TEXTS],
    "tc": [{"tokens": text.split()} for text in TEXTS],
    "qa": [{"question": question, "context": context} for question, context in QUESTIONS],
}
ROWS["ml"] = ROWS["sr"] = ROWS["sc"]
NAMES = {"sc": ANIMALS, "ml": ANIMALS, "sr": ["LABEL_0"], "tc": LABELS, "qa": ["start", "end"]}
MAX_ANSWER = 3
# The heads on pooled states take turns: all families treat them alike.
ALL = [
    (family, kind)
    for number, family in enumerate([*DISTINCT, *PADDED_ONLY])
    for kind in (("sc", "ml", "sr")[number % 3], "tc", "qa")
]
EXACT = {
    **{(family, kind): "EuroBert" for family in ("llama", "llama3", "eurobert")
       for kind in ("sc", "ml", "sr", "tc")},
    **{("modernbert", kind): "ModernBert" for kind in ("sc", "ml", "sr", "tc", "qa")},
    **{(family, "tc"): name for family, name in {
        "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3",
        "mistral": "Mistral", "gemma2": "Gemma2", "phi3": "Phi3",
        "bert": "Bert", "roberta": "Roberta", "mpnet": "MPNet", "deberta-v2": "DebertaV2",
        "biogpt": "BioGpt", "layoutlm": "LayoutLM",
    }.items()},
    **{(family, "qa"): name for family, name in {
        "mistral": "Mistral", "bert": "Bert", "roberta": "Roberta", "mpnet": "MPNet",
        "deberta-v2": "DebertaV2",
    }.items()},
}  # fmt: skip
"""Classes of transformers that compute the same; every other folder has a class of its own."""

# What somebody does who has never heard of this package. Folders that need code are first opened
# without it: everything in transformers that could make a new head must refuse.
STRANGER = """
import json, sys, warnings
sys.modules["biphasic"] = None
import torch, transformers
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, pipeline
PIPELINES = {"tc": "token-classification", "sc": "text-classification"}
request = json.load(open(sys.argv[1]))

def answer(folder, question, context, longest):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, trust_remote_code=True).eval()
    inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        output = model(**inputs)
    start, end = output.start_logits[0].tolist(), output.end_logits[0].tolist()
    inside = [n for n, part in enumerate(inputs.sequence_ids()) if part == 1]
    spans = [(a, b) for a in inside for b in inside if a <= b < a + longest]
    a, b = max(spans, key=lambda span: start[span[0]] + end[span[1]])
    return context[offsets[a][0]:offsets[b][1]].strip()

def outputs(folder, kind, texts):
    if kind == "qa":
        return [answer(folder, *text, request["longest"]) for text in texts]
    pipe = pipeline(PIPELINES.get(kind, "text-classification"), model=folder, device="cpu",
                    trust_remote_code=True, batch_size=len(texts))
    if kind == "tc":
        tagged = pipe(texts, ignore_labels=[])
        return [{each["start"]: each["entity"] for each in text} for text in tagged]
    if kind == "ml":
        labels = pipe(texts, top_k=None)
        return [sorted(each["label"] for each in text if each["score"] > 0.5) for text in labels]
    return [each["label"] if kind == "sc" else each["score"] for each in pipe(texts)]

def refusal(folder, kind):
    try:
        if kind == "qa":
            AutoModelForQuestionAnswering.from_pretrained(folder, trust_remote_code=False)
        else:
            pipeline(PIPELINES.get(kind, "text-classification"), model=folder)
    except ValueError as error:
        return str(error)

refusals = {name: refusal(folder, kind) for name, (folder, kind) in request["refusing"].items()}
given = {
    name: outputs(folder, kind, request["texts"][kind])
    for name, (folder, kind) in request["folders"].items()
}
json.dump({"refusals": refusals, "given": given}, open(sys.argv[2], "w"))
"""


def write(folder: Path, encoder: Path, kind: str, *, body: Any = None, labels: Any = None) -> Path:
    """Write a fine-tuned folder with a random head."""
    tokenizer, body = tiny_tokenizer(), body or load_encoder(encoder)
    names = labels or NAMES[kind]
    draw, number, width = torch.Generator().manual_seed(3), len(names), body.config.hidden_size
    head = {
        "weight": torch.randn(number, width, generator=draw),
        "bias": torch.randn(number, generator=draw),
    }
    protocol = FinetuneProtocol(
        max_seqlen=64, max_question_tokens=8, window_overlap=8, batching=batching_of(body)
    )
    draft = HeadRecord.model_validate(
        {
            "format": "biphasic.head/1",
            "kind": kind,
            "form": "sentence-transformers",
            **dict.fromkeys(("task", "title", "metric", "model", "model_identity"), "t"),
            "learning_rate": 1e-3,
            "seed": 0,
            "steps": 1,
            "protocol": protocol.model_dump(mode="json"),
            "labels": () if kind in {"sr", "qa"} else names,
            "fields": ("text",) if kind in {"sc", "ml", "sr"} else (),
            **({"mean": 100.0, "deviation": 7.0} if kind == "sr" else {}),
            "max_answer_tokens": MAX_ANSWER,
        }
    )
    texts = QUESTIONS if kind == "qa" else TEXTS
    sequences = example_sequences(texts, tokenizer, max_seqlen=64)
    forms = forms_of(encoder, body.state_dict(), head, draft, tokenizer)
    folder.mkdir()
    _, difference = write_model(folder, forms, draft, tokenizer, sequences)
    assert difference < TOLERANCE / 10
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """A folder of every family, and of each kind that it has in `ALL`."""
    base, made = tmp_path_factory.mktemp("heads"), {}
    with pytest.MonkeyPatch.context() as patch:
        probe_nothing(patch)
        for family in [*DISTINCT, *PADDED_ONLY]:
            encoder = save_family(family, base / family, tokenizer=tiny_tokenizer())
            body = load_encoder(encoder, batching="padded" if family in PADDED_ONLY else "packed")
            for kind in (kind for other, kind in ALL if other == family):
                out = base / f"{family}-{kind}"
                made[family, kind] = write(out, encoder, kind, body=body)
    return made


@pytest.fixture(scope="module")
def strange(folders, tmp_path_factory) -> dict[str, Any]:
    """What transformers says without biphasic, of all folders in one process."""
    work = tmp_path_factory.mktemp("stranger")
    named = {f"{family} {kind}": (str(path), kind) for (family, kind), path in folders.items()}
    request = {
        "folders": named,
        "refusing": {n: x for n, x in named.items() if tuple(n.split()) not in EXACT},
        "texts": dict.fromkeys(ROWS, TEXTS) | {"qa": QUESTIONS},
        "longest": MAX_ANSWER,
    }
    (work / "request.json").write_text(json.dumps(request))
    with forking():
        ended = subprocess.run(
            [sys.executable, "-I", "-c", STRANGER, f"{work}/request.json", f"{work}/out.json"],
            capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False,
            env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(work), "PATH": ""},
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads((work / "out.json").read_text())


@pytest.mark.parametrize(("family", "kind"), ALL)
def test_transformers_gives_the_labels_of_predict(
    one_thread, folders, strange, tmp_path, family, kind
):
    folder = folders[family, kind]
    source = write_jsonl(tmp_path / "rows.jsonl", ROWS[kind])
    predict_file(folder, open_input(str(source)), tmp_path / "predicted.jsonl")
    ours = read_jsonl(tmp_path / "predicted.jsonl")
    theirs = strange["given"][f"{family} {kind}"]
    expected = {
        "sc": lambda row: row["label"],
        "ml": lambda row: sorted(row["labels"]),
        "sr": lambda row: pytest.approx(row["score"], rel=1e-5),
        "qa": lambda row: row["answer"],
        "tc": lambda row: row["tags"],
    }[kind]
    if kind == "tc":
        theirs = list(map(_by_word, TEXTS, theirs))
    assert theirs == [expected(row) for row in ours]


def _by_word(text: str, tags: dict[str, str]) -> list[str]:
    """Return the tag of each word's first token, which may include the space before it."""
    starts = [sum(len(word) + 1 for word in text.split()[:n]) for n in range(len(text.split()))]
    return [tags.get(str(start)) or tags[str(start - 1)] for start in starts]


@pytest.mark.parametrize(("family", "kind"), ALL)
def test_a_folder_names_its_class(folders, strange, family, kind):
    config = json.loads((folders[family, kind] / "config.json").read_text())
    record = json.loads((folders[family, kind] / "head.json").read_text())
    assert config["id2label"] == {str(n): name for n, name in enumerate(NAMES[kind])}
    refusal = strange["refusals"].get(f"{family} {kind}")
    if (family, kind) in EXACT:
        [name] = config["architectures"]
        assert name.startswith(f"{EXACT[family, kind]}For")
        assert (record["needs_code"], "auto_map" in config, refusal) == (False, False, None)
        return
    assert record["needs_code"]
    assert config["model_type"] == "biphasic_encoder_with_head"
    assert "trust_remote_code=True" in refusal


def test_many_labels_need_code(one_thread, tmp_path):
    encoder = save_family("eurobert", tmp_path / "encoder", tokenizer=tiny_tokenizer())
    names = [f"label {n}" for n in range(17)]  # more than half of 32 units
    out = write(tmp_path / "out", encoder, "sc", labels=names)
    assert json.loads((out / "head.json").read_text())["needs_code"]
