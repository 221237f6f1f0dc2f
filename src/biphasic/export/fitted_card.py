"""The card of a fine-tuned model: what it does, how well, and how to use it."""

from __future__ import annotations

import json
from pathlib import Path

from biphasic.analysis.text import metric_name, points, rate
from biphasic.export.direction import direction_section
from biphasic.export.markdown import escape, section, table
from biphasic.files import read_json
from biphasic.tasks.fitted import HeadRecord
from biphasic.tasks.records import TEXT_KINDS

CARD = "README.md"
_PIPELINES = {
    "sc": "text-classification",
    "ml": "text-classification",
    "sr": "text-classification",
    "tc": "token-classification",
    "qa": "question-answering",
    "ir": "sentence-similarity",
    "zs": "sentence-similarity",
}
_DOES = {
    "sc": "gives a text one of {number} labels",
    "ml": "gives a text any of {number} labels",
    "sr": "gives a text a number",
    "tc": "finds entities in a text",
    "qa": "finds the answer to a question in a context",
    "ir": "embeds queries and documents so that those which belong together are close",
    "zs": "embeds queries and documents so that those which belong together are close",
}
_LOAD = """\
from transformers import {kind}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}", split_special_tokens=True)
model = {kind}.from_pretrained("{name}")
"""
_USE = {
    "sequence-classification": """\
inputs = tokenizer([text], truncation=True, padding=True, return_tensors="pt")
logits = model(**inputs).logits
""",
    "token-classification": """\
inputs = tokenizer(" ".join(words), truncation=True, return_tensors="pt")
logits = model(**inputs).logits  # of each token; a word's tag is that of its first token
""",
    "question-answering": """\
inputs = tokenizer(question, context, return_tensors="pt")
output = model(**inputs)  # .start_logits and .end_logits; position 0 stands for no answer
""",
    "separate-head": """\
from safetensors.torch import load_file

head = load_file("{name}/head.safetensors")
inputs = tokenizer({inputs}, return_tensors="pt")
states = model(**inputs).last_hidden_state  # [1, num_tokens, hidden_size]
outputs = {pooled} @ head["weight"].T + head["bias"]
""",
}
_KINDS = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "separate-head": "AutoModel",
}


def write_fitted_card(folder: Path, record: HeadRecord, *, name: str, difference: float) -> None:
    """Write the card.

    Args:
        folder: The model's.
        record: What it is.
        name: What the folder will be called.
        difference: Between transformers' outputs and ours, as a share of the largest.
    """
    parts = [
        _metadata(record),
        f"# {escape(name)}",
        f"`{escape(record.model)}`, fine-tuned on {escape(record.title)}: it {_does(record)}.",
        section("Use", *_usage(record, name)),
        section("Scores", _scores(record)),
        section("Training", _training(record)),
        section("Check", _check(difference)),
        _direction(folder, name),
    ]
    (folder / CARD).write_text("\n\n".join(part for part in parts if part) + "\n", "utf-8")


def _direction(folder: Path, name: str) -> str:
    """Warn of releases that run the model causally, where that can happen."""
    if read_json(folder / "config.json").get("is_causal") is not False:
        return ""
    load = f'model = AutoModel.from_pretrained("{name}")'
    code = _code(f"from transformers import AutoModel\n\n{load}\n")
    return direction_section() + f"\n\nwith `tokenizer` as above and\n\n{code}"


def _metadata(record: HeadRecord) -> str:
    library = "sentence-transformers" if record.form == "sentence-transformers" else "transformers"
    lines = [f"library_name: {library}", f"pipeline_tag: {_PIPELINES[record.kind]}"]
    return "\n".join(["---", *lines, "# license: to fill in", "---"])


def _does(record: HeadRecord) -> str:
    return _DOES[record.kind].format(number=len(record.labels))


def _usage(record: HeadRecord, name: str) -> list[str]:
    if record.form == "sentence-transformers":
        return [_code(_sentences(record, name)), _code(f"biphasic encode {name} texts.txt", "sh")]
    return [
        _code(_transformers(record, name)),
        f"Inputs hold at most {record.protocol['max_seqlen']} tokens. {_reading(record)}".strip(),
        "Or, for files:",
        _code(f"biphasic predict {name} texts.jsonl --out predictions.jsonl", "sh"),
    ]


def _transformers(record: HeadRecord, name: str) -> str:
    load = _LOAD.format(kind=_KINDS[record.form], name=name)
    is_pair = record.kind == "qa"
    is_pooled = record.kind in TEXT_KINDS
    return load + _USE[record.form].format(
        name=name,
        inputs="question, context" if is_pair else "text",
        pooled="states.mean(1)" if is_pooled else "states",
    )


def _sentences(record: HeadRecord, name: str) -> str:
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("{name}")',
    ]
    if record.kind == "ir":
        lines.append("queries = model.encode_query(questions)")
        lines.append("documents = model.encode_document(texts)")
    else:
        lines.append("embeddings = model.encode(texts)")
    return "\n".join([*lines, ""])


def _reading(record: HeadRecord) -> str:
    """Say what is not plain from the code: how two texts become one, what an output means."""
    told = []
    if record.kind in TEXT_KINDS and (record.template or len(record.fields) > 1):
        template = record.template or "Sentence 1: {text_a}\nSentence 2: {text_b}"
        told.append(f"A text is written as {_inline(template)}.")
    if record.kind == "ml":
        told.append("A label holds where its output is above 0, a probability above one half.")
    if record.form == "separate-head":
        told.append("transformers has no class with this function, so the head stands beside.")
        if record.kind == "sr":
            told.append(f"The value is {record.mean!r} + {record.deviation!r} times the output.")
        if record.labels:
            told.append("The labels are in `head.json`, in the order of the outputs.")
    return " ".join(told)


def _inline(text: str) -> str:
    return f"`{escape(json.dumps(text, ensure_ascii=False))}`"


def _scores(record: HeadRecord) -> str:
    splits = {"validation": record.validation, "test": record.test}
    held = {split: metrics for split, metrics in splits.items() if metrics}
    names = [record.metric, *sorted({n for m in held.values() for n in m} - {record.metric})]
    rows = [
        [metric_name(each), *(points(m[each]) if each in m else "" for m in held.values())]
        for each in names
    ]
    return table(["", *held], rows, numbers=len(held))


def _training(record: HeadRecord) -> str:
    if record.kind == "zs":
        return "None: the encoder is as it was."
    return (
        f"{record.steps} steps of {record.protocol['batch_size']}, learning rate "
        f"{rate(record.learning_rate)}, seed {record.seed}: the best on validation of what was "
        "tried. All constants are in `head.json`."
    )


def _check(difference: float) -> str:
    return (
        f"Outputs by transformers alone agree with ours to {difference:.0e} of the largest, on "
        "texts of the test split, in fp32."
    )


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text.rstrip()}\n```"
