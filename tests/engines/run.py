"""Ask other engines for the vectors of a small encoder's exports, and compare these with ours.

    make test-engines                                    # an hour, most of it for installing
    .venv/bin/python tests/engines/run.py --only llama   # print those with this in their name

Each engine has an environment of its own in `build/engines`, which stays until `make clean`. A run
of all engines writes the outcomes to `src/biphasic/export/engines.json`, which model cards read,
and to `docs/export.md`: all rows are of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biphasic import encode, export_model, pretrain
from biphasic.data.tokens.tokenizer import TextTokenizer

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "engines"
RECORD = ROOT / "src" / "biphasic" / "export" / "engines.json"
PAGE = ROOT / "docs" / "export.md"
BEGIN, END = "<!-- engines -->\n\n", "\n<!-- end -->"
# An open range of torch's versions would bring gigabytes of CUDA.
TORCH, TRANSFORMERS = "torch==2.13.0", "transformers==4.57.6"
LEAST_COSINE = 0.9999
INSTALLING, ASKING = 7200, 600  # limits in seconds; one engine is compiled
AT_ONCE = 4  # engines that are asked; each uses one core
LLAMA_CPP = "llama_cpp_python-0.3.36"


@dataclass(frozen=True)
class Engine:
    """An engine, and how it is asked."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str = ""  # its folder; empty: that of biphasic
    package: str = ""  # whose version is its own; empty: that of its name
    packages: tuple[str, ...] = ()
    forms: tuple[str, ...] = ("eurobert", "llama", "own")
    is_graph: bool = False  # it reads ONNX
    is_exact: bool = True  # weights are not rounded


GRAPHS: Any = {"forms": ("eurobert", "llama"), "is_graph": True}
OLD: Any = {
    "environment": "transformers-4",
    "packages": (TORCH, TRANSFORMERS, "sentence-transformers==5.7.0", "optimum-onnx==0.1.0",
                 "onnx==1.23.2", "onnxruntime==1.32.0"),
}  # fmt: skip
INFINITY = "infinity-emb[torch]==0.0.78"
GGUF: Any = {
    "environment": "llama-cpp",
    "package": "llama-cpp-python",
    "packages": (TORCH, TRANSFORMERS, "sentencepiece", "protobuf", f"{BUILD / LLAMA_CPP}.tar.gz"),
}
CONVERTER = str(BUILD / LLAMA_CPP / "vendor" / "llama.cpp")
ENGINES = (
    Engine("transformers", "ask_transformers.py"),
    Engine("transformers", "ask_transformers.py", **OLD),
    Engine("sentence-transformers", "ask_sentence_transformers.py", ("torch",)),
    Engine("sentence-transformers", "ask_sentence_transformers.py", ("onnx",),
           **OLD, **GRAPHS),
    Engine("fastembed", "ask_fastembed.py", environment="fastembed",
           packages=("fastembed==0.9.1",), **GRAPHS),
    Engine("infinity", "ask_infinity.py", ("torch",), environment="infinity",
           package="infinity-emb", packages=(TORCH, TRANSFORMERS, INFINITY)),
    # Later releases of optimum do not find the file that infinity names.
    Engine("infinity", "ask_infinity.py", ("optimum",), environment="infinity-onnx",
           package="infinity-emb", packages=(TORCH, "transformers==4.48.3", INFINITY,
           "optimum==1.24.0", "onnx==1.23.2", "onnxruntime==1.32.0"), **GRAPHS),
    Engine("transformers.js", "ask_transformers_js.mjs", environment="node",
           package="@huggingface/transformers",
           packages=("@huggingface/transformers@4.3.2",), **GRAPHS),
    Engine("llama-cpp-python", "ask_llama_cpp.py", ("f32", CONVERTER), **GGUF),
    Engine("llama-cpp-python (q8_0)", "ask_llama_cpp.py", ("q8_0", CONVERTER), **GGUF,
           is_exact=False),
)  # fmt: skip


def main() -> int:
    """Return 1 if an engine gave other vectors than before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of an engine's name")
    parser.add_argument("--work", type=Path, help="folder of exports, which are kept")
    options = parser.parse_args()
    before = json.loads(RECORD.read_text("utf-8"))
    engines = [engine for engine in ENGINES if options.only in engine.name]
    with tempfile.TemporaryDirectory(prefix="biphasic-engines-") as folder:
        trial = Trial.made((options.work or Path(folder)).resolve())
        faults = {engine: installed(engine) for engine in engines}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rows = [*pool.map(trial.row, engines, faults.values())]
    if len(rows) < len(ENGINES):
        return 0
    RECORD.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(rows, PAGE.read_text("utf-8")), "utf-8")
    return [*map(outcomes_of, before)] != [*map(outcomes_of, rows)]


def outcomes_of(row: dict[str, Any]) -> dict[str, str]:
    return {form: outcome["outcome"] for form, outcome in row["outcomes"].items()}


@dataclass(frozen=True)
class Trial:
    """Exports of one encoder by form, texts, and what their vectors should be."""

    work: Path
    texts: list[str]  # the last one is cut
    ours: np.ndarray  # [num_texts, width]
    causal: np.ndarray  # the same of the model, read from left to right

    @classmethod
    def made(cls, work: Path) -> Trial:
        """Train and export an encoder."""
        work.mkdir(parents=True, exist_ok=True)
        text = work / "text.jsonl"
        if not text.is_file():
            pages = [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
            parts = [part for page in pages for part in page.split("\n\n")]
            text.write_text("\n".join(json.dumps({"text": part}) for part in parts), "utf-8")
        recipe = {
            "model": "pico",
            "max_seqlen": MAX_SEQLEN,
            "learning_rate": {"peak": 4e-3, "warmup_steps": 10},
            "phases": [{"objective": "clm", "steps": 100}, {"objective": "mlm", "steps": 100}],
        }
        corpus = {"sources": [str(text)], "vocab_size": 1000}
        state = pretrain(recipe, corpus=corpus, root=work / "root")
        for form in ("eurobert", "llama", "own"):
            export_model(state, work / form, format="sentence-transformers", as_=form)
            if form != "own":
                export_model(state, work / f"{form}-onnx", format="onnx", as_=form)
        texts = texts_for(TextTokenizer.load(state))
        return cls(
            work,
            texts,
            encode(state, texts, long_texts="truncate").vectors,
            causal_vectors(work / "llama", texts),
        )

    def row(self, engine: Engine, fault: str) -> dict[str, Any]:
        """Return what an engine makes of each form, or the fault of its installation."""
        untested = {"outcome": "untested", "message": fault}
        row = {
            "name": engine.name,
            "environment": engine.environment,
            "version": "" if fault else version_of(engine),
            "is_graph": engine.is_graph,
            "outcomes": {
                form: untested if fault else self.asked(engine, form) for form in engine.forms
            },
        }
        print(json.dumps(row), flush=True)
        return row

    def asked(self, engine: Engine, form: str) -> dict[str, Any]:
        """Return what an engine makes of its own copy of an export: optimum writes into it."""
        source = self.work / (f"{form}-onnx" if engine.is_graph else form)
        with tempfile.TemporaryDirectory(prefix="biphasic-engines-") as copies:
            return self.outcome(engine, form, shutil.copytree(source, Path(copies) / source.name))

    def outcome(self, engine: Engine, form: str, folder: Path) -> dict[str, Any]:
        """Ask an engine for the vectors of a folder, and compare them with ours."""
        request = {
            "folder": str(folder),
            "texts": self.texts,
            "width": self.ours.shape[1],
            "max_seqlen": MAX_SEQLEN,
            "needs_code": form == "own",
        }
        words = "-".join((engine.name, *engine.arguments[:1], engine.environment, form))
        script = Path(__file__).with_name(engine.script)
        try:
            done = subprocess.run(
                [interpreter(engine), str(script), *engine.arguments],
                input=json.dumps(request), capture_output=True, text=True, check=False,
                env=self.environment(words), cwd=BUILD / "node", timeout=ASKING,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"outcome": "untested", "message": f"no answer in {ASKING} seconds"}
        (BUILD / f"{words}.log").write_text(done.stdout + done.stderr)
        if done.returncode:
            lines = [*done.stderr.splitlines(), f"status {done.returncode}"]
            line = next((line for line in lines if "error:" in line.lower()), lines[-1])
            return {"outcome": "refuses", "message": line.replace(f"{folder.parent}/", "")[:200]}
        return self.compared(engine, json.loads(done.stdout.splitlines()[-1]))

    def environment(self, name: str) -> dict[str, str]:
        """Return variables with which nothing is asked of the hub, or kept in a home."""
        offline = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HOME": str(self.work / "hf" / name),
        }
        return {**os.environ, **offline, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}

    def compared(self, engine: Engine, answer: dict[str, Any]) -> dict[str, Any]:
        """Compare an answer with our vectors, alone and in a batch."""
        theirs = [np.array(answer[way]) for way in ("alone", "together")]
        ours, causal = (
            [cosines(vectors, some) for some in theirs] for vectors in (self.ours, self.causal)
        )
        whole = [min(row[:-1].min() for row in some) for some in (ours, causal)]
        outcome = "same" if whole[0] >= LEAST_COSINE or not engine.is_exact else "differs"
        outcome = "causal" if whole[1] >= max(LEAST_COSINE, whole[0]) else outcome
        cut = min(row[-1] for row in ours)
        return {
            "outcome": outcome,
            "cosine": round(float(whole[0]), 6),
            "cut": round(float(cut), 6),
        }


MAX_SEQLEN = 64


def texts_for(tokenizer: TextTokenizer) -> list[str]:
    """Return texts of one and two tokens, of as many as a model reads, of more, and others."""
    [one, two] = (
        next(t for t in ("a", "the", "a the", "of the") if len(tokenizer.encode(t)) == n)
        for n in (1, 2)
    )
    longest = "an encoder reads a sentence in both directions, " * 9
    while len(tokenizer.encode(longest)) > MAX_SEQLEN - 2:
        longest = longest[:-1]
    return [
        one,
        two,
        longest,
        "An encoder reads a sentence in both directions.",
        "Zwölf Boxkämpfer: 世界, naïve cafés & 3.14 😀",
        "def add(a, b):\n    return a + b  # two\tspaces",
        longest + " and more than it reads" * 9,
    ]


def causal_vectors(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """Return the mean states of a Llama that ignores what its configuration says."""
    import torch
    from transformers import AutoTokenizer, LlamaModel

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaModel.from_pretrained(folder, is_causal=True).eval()
    rows = [tokenizer(text, truncation=True, return_tensors="pt").input_ids for text in texts]
    with torch.no_grad():
        return np.stack([model(row).last_hidden_state[0].mean(0).numpy() for row in rows])


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return (ours * theirs).sum(1) / norms


def installed(engine: Engine) -> str:
    """Make the environment of an engine; return what went wrong."""
    folder = BUILD / engine.environment
    (BUILD / "node").mkdir(parents=True, exist_ok=True)
    stamp = folder / "installed.txt"
    if not engine.environment or (stamp.is_file() and stamp.read_text() == str(engine.packages)):
        return ""
    try:
        install(engine, folder)
    except (subprocess.SubprocessError, OSError) as error:
        return f"not installed: {error}"[:200]
    stamp.write_text(str(engine.packages))
    return ""


def install(engine: Engine, folder: Path) -> None:
    def call(*command: str, cwd: Path = BUILD) -> None:
        subprocess.run(command, check=True, cwd=cwd, timeout=INSTALLING)

    if engine.environment == "node":
        call("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *engine.packages,
             cwd=folder)  # fmt: skip
        return
    call(sys.executable, "-m", "venv", str(folder))
    pip = (interpreter(engine), "-m", "pip")
    if engine.environment == "llama-cpp" and not (BUILD / LLAMA_CPP).is_dir():
        source = LLAMA_CPP.replace("_", "-").replace("-cpp-python-", "-cpp-python==")
        call(*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(BUILD), source)
        call("/bin/tar", "xzf", f"{LLAMA_CPP}.tar.gz")
    call(*pip, "install", "--quiet", *engine.packages)


def interpreter(engine: Engine) -> str:
    if engine.environment == "node":
        return "node"
    python = BUILD / engine.environment / "bin" / "python"
    return str(python) if engine.environment else sys.executable


def version_of(engine: Engine) -> str:
    """Return the version of an engine that is installed."""
    package = engine.package or engine.name
    if engine.environment == "node":
        file = BUILD / "node" / "node_modules" / package / "package.json"
        return json.loads(file.read_text("utf-8"))["version"]
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    command = [interpreter(engine), "-c", ask]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def page(record: Sequence[dict[str, Any]], text: str) -> str:
    """Return a page with the table of what engines made of the forms."""
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:start] + "\n".join(table(record)) + "\n" + text[end:]


def table(record: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| Engine | Reads | `eurobert` | `llama` | `own` | A text that is cut |"
    yield "|---|---|---:|---:|---:|---:|"
    for row in record:
        outcomes = row["outcomes"]
        cells = [cell(outcomes.get(form)) for form in ("eurobert", "llama", "own")]
        cuts = [each["cut"] for each in outcomes.values() if each["outcome"] in ("same", "differs")]
        cut = f"{min(cuts):.4f}" if cuts else ""
        reads = "ONNX" if row["is_graph"] else "weights"
        yield f"| {row['name']} {row['version']} | {reads} | {' | '.join(cells)} | {cut} |"


def cell(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return ""
    return (
        outcome["outcome"]
        if "cosine" not in outcome or outcome["outcome"] == "causal"
        else f"{outcome['cosine']:.4f}"
    )


if __name__ == "__main__":
    sys.exit(main())
