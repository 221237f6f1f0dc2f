# ruff: noqa: T201 - a script
"""Measure every family anew and write `docs/families.md`.

`.venv/bin/python tests/record_families.py` runs all tests in files named `test_families*.py`; what
they `record` fills the tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

from families import FAMILIES, PADDED_ONLY, RECORDS, REFUSED, Column

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "families.md"
COLUMNS: dict[Column, str] = {
    "contract": "contract",
    "clm": "CLM",
    "mlm": "MLM",
    "packed": "packed = alone",
    "export": "export",
    "onnx": "ONNX",
}
Measured = dict[tuple[str, str], float | str]
NOT_MEASURED = "not measured"

_INTRODUCTION = """# Model families

Written by `.venv/bin/python tests/record_families.py` from a run of the tests; do not edit;
{versions}.

Any Hugging Face decoder or encoder whose layers accept an attention function can be trained,
adapted and exported. These families are tested, each with a small random model that is saved in the
hub's format and loaded again. Numbers are the largest absolute differences from the reference, in
fp32 on a CPU; the test fails if one exceeds the limit.

Every model, also of a family that is not listed, is probed when it is loaded, and refused if it
fails. The probe covers its layers, its head and its hidden states: packed documents must give the
same hidden states as each document alone and as transformers' own forward, on texts longer than
every window. Families that make windows only by masks (PhiMoE, Qwen2-MoE, Llama 4's chunks) or
compute over a whole row (ESM's token dropout) are therefore refused on packed rows. `encode`,
`export`, and fine-tuning with `batching: padded` use such models on padded rows.

- **contract** (`kept`): with CLM no layer reads later tokens, with MLM every layer does. No token
  reads another document of its row, or padding. Hidden states equal transformers' own.
- **CLM**: mean loss on a fixed batch, against transformers' own causal loss of the same weights
  (EuroBERT: `LlamaForCausalLM`; BERT and RoBERTa: their classes with `is_decoder`; ModernBERT: its
  own class with causal masks). Gradients of all weights are compared too. Limit 1e-5.
- **MLM**: the same against the family's own masked-LM class; for decoders, which have none, against
  their own class with `is_causal: false`. Limit 1e-5.
- **packed = alone**: hidden states of documents that share rows, against each in its own row.
  Limit 1e-5.
- **export**: hidden states of the exported folder, loaded by transformers alone, against ours.
  Limit 1e-5.
- **ONNX**: outputs of onnxruntime against torch. Limit 1e-4.

"""
_REFUSED = """
## Refused

These families need computations that biphasic does not have. They are refused when they are loaded:

| family | why |
|---|---|
"""
_PADDED = """
## Only on padded rows

Encoders whose attention cannot read packed rows cannot be pretrained. They can be fine-tuned and
scored with `batching: padded`.

| family | why |
|---|---|
"""


def main() -> None:
    """Run the tests and write the page; an earlier page stays where a test fails."""
    measured = measure(sorted(ROOT.glob("tests/**/test_families*.py")))
    PAGE.write_text(page(measured), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")


def measure(files: list[Path]) -> Measured:
    """Run tests, and return what they recorded: by family and column, the worst of each."""
    with tempfile.TemporaryDirectory(prefix="families-") as folder:
        records = Path(folder) / "records.jsonl"
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", *map(str, files)]
        environment = {**os.environ, RECORDS: str(records), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        return worst(records.read_text(encoding="utf-8").splitlines())


def worst(lines: list[str]) -> Measured:
    """Return the largest of the numbers of each family and column; words win over numbers."""
    measured: Measured = {}
    for line in map(json.loads, lines):
        key, value = (line["family"], line["column"]), line["value"]
        before = measured.get(key)
        if before is None or isinstance(value, str):
            measured[key] = value
        elif not isinstance(before, str):
            measured[key] = max(before, value)
    return measured


def page(measured: Measured) -> str:
    """Return the page as Markdown."""
    versions = f"transformers {version('transformers')} and torch {version('torch').split('+')[0]}"
    head = f"| family | {' | '.join(COLUMNS.values())} | tested with |\n|---|"
    table = head + "---|" * (len(COLUMNS) + 1) + "\n"
    for name, family in FAMILIES.items():
        cells = [_cell(measured.get((name, column))) for column in COLUMNS]
        table += f"| {family.title} | {' | '.join(cells)} | {family.features} |\n"
    refused = "".join(
        f"| {family.title} | {_cell(measured.get((name, 'refused')))} |\n"
        for name, family in REFUSED.items()
    )
    padded = "".join(f"| {family.title} | {family.features} |\n" for family in PADDED_ONLY.values())
    return _INTRODUCTION.format(versions=versions) + table + _REFUSED + refused + _PADDED + padded


def _cell(value: float | str | None) -> str:
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        return value
    return f"{value:.0e}" if value else "0"


if __name__ == "__main__":
    main()
