"""Damaged input of every kind: read all the same, or refused in one line.

Mutations are seeded, so a failure names the one that shows it: `study, mutation 17`. The tests try
a few of each kind; `BIPHASIC_FUZZ=400 pytest tests/fault/test_fuzz.py` tries 400 of each.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/analysis"))

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from fake_study import ARMS, TASKS, FakeStudy

from biphasic import locks
from biphasic.analysis.records import load_study as load_records
from biphasic.analysis.scores.layout import read_layout
from biphasic.config import load_config
from biphasic.data.building.config import CorpusConfig
from biphasic.data.text.files import read_text_files
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import BiphasicError
from biphasic.model.checks.limits import model_limits
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.hub import fetch_model
from biphasic.study.spec.load import load_resolved, load_study, save_resolved
from biphasic.tasks.custom.inputs import open_input
from biphasic.tasks.embedding import Choices, embedding_settings
from biphasic.tasks.source import prepare_task
from biphasic.training.recipe import Recipe
from custom_tasks import jsonl, write_beir, write_splits
from mini_study import STUDY
from tiny_use import write_model, write_task

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("BIPHASIC_FUZZ", "6"))
LONGEST = 2000
DIGITS = "9" * 5000
# Put in the place of a word: what YAML, JSON, CSV or a person's mistake can make of a value.
WORDS = (
    *("2024-02-30", "2024-01-01", "0x_", "0b_", "1_0", "1:60", "=", "<<", "~", "null", "true"),
    *("!!int x", "!!int ''", "!!bool x", "!!float x", "!!timestamp x", "!!binary é", "!!set {a}"),
    *("!!python/object:os.system {}", "!!null x", "!x y", "&a [*a]", "&a {b: *a}", "*nobody", "%"),
    *("{? [a] : b}", "{1: 2}", "{null: 1}", "[[[]]]", "[]", "{}", '""', "''", "-", "- -", "|", ">"),
    *(DIGITS, f"-{DIGITS}", f"0x{'f' * 5000}", f"1e{'9' * 30}", "1e999", "-1e999", ".inf", ".nan"),
    *("NaN", "Infinity", "-0", "-1", "0", "1e-320", "1" + "0" * 400, "99999999999999999999"),
    *(
        "²",
        "٣",
        "½",
        "~nosuchuser",
        "~nosuchuser/x",
        "../..",
        "/",
        "/dev/null",
        "x" * 300,
        "a/" * 99,
    ),
    *("\0", "\x1b[31m", "\u202e", "\ud800", "\\ud800", "\ufeff", "\u2028", "\r", "\t", "\n", " "),
    *("[" * 3000 + "]" * 3000, "{a: " * 3000 + "}" * 3000, '{"a":' * 3000 + "1" + "}" * 3000),
    *(
        "[" * 100_000,
        "x" * 100_000,
        "*",
        "**",
        "hf:",
        "hf:a/b?x",
        "sc:",
        "zs:x",
        "builtin:x",
        "{0}",
    ),
    *('["a"]', '{"a": 1}', '"a', "b-PER", "I-", "B-", "{text_a}", "{", "}", "mlm", "pico"),
)
WORD = re.compile(rb"[^\s,:\[\]{}\"']+|\"[^\"]*\"")
Read = Callable[[Path], object]


def study(folder: Path) -> Read:
    base = {key: STUDY[key] for key in ("recipe", "corpus", "tasks")}
    rest = {key: value for key, value in STUDY.items() if key not in base}
    rest["arms"] = [
        *rest["arms"][:2],
        {
            "steps": 40,
            "phases": [
                {"objective": "clm", "share": 0.5},
                {
                    "objective": "mix",
                    "objectives": [{"objective": "clm"}, {"objective": "mlm"}],
                    "shares": [0.5, 0.5],
                },
            ],
            "axes": {"recipe.learning_rate.peak": [1e-3, 2e-3], "phases.0.share": [0, 0.5]},
        },
    ]
    rest["evaluation_points"] = [{"arms": ["ml*"], "steps": [3]}]
    write_yaml(folder / "base.yaml", base)
    write_yaml(folder / "study.yaml", {"include": "base.yaml", **rest})
    return lambda folder: load_study(folder / "study.yaml", ["recipe.max_seqlen=128"])


def overrides(folder: Path) -> Read:
    write_yaml(folder / "study.yaml", STUDY)
    text = ["arms.1.phases.0.steps=13", "recipe.learning_rate.peak=1e-3", "tasks.0.name=pydocs-sc"]
    (folder / "overrides").write_text("\n".join(text))

    def read(folder: Path) -> object:
        given = (folder / "overrides").read_text("utf-8", errors="surrogateescape")
        return load_study(folder / "study.yaml", given.split("\n"))

    return read


def recipe(folder: Path) -> Read:
    phases = [{"objective": "clm", "steps": 4}, {"objective": "mlm", "steps": 4, "corpus": "x"}]
    model = {"pretrained": "some/model", "revision": "main"}
    write_yaml(folder / "recipe.yaml", {**STUDY["recipe"], "model": model, "phases": phases})
    return lambda folder: load_config(Recipe, folder / "recipe.yaml").anchored(folder)


def corpus(folder: Path) -> Read:
    sources = ["builtin:pydocs", {"source": "hf:a/b?split=train", "license": "MIT"}, "~/texts"]
    write_yaml(folder / "corpus.yaml", {"sources": sources, "tokenizer": "a/b", "hub_copies": "c"})
    return lambda folder: load_config(CorpusConfig, folder / "corpus.yaml").anchored(folder)


def resolved(folder: Path) -> Read:
    write_yaml(folder / "study.yaml", STUDY)
    save_resolved(load_study(folder / "study.yaml"), folder)
    (folder / "study.yaml").unlink()
    return load_resolved


def task_file(folder: Path) -> Read:
    rows = "".join(f"{n},text {n},{'ab'[n % 2]}\n" for n in range(12))
    (folder / "train.csv").write_text(f"id,body,mood\n{rows}")
    settings = {
        "kind": "sc",
        "train": "train.csv",
        "columns": {"text": "body", "label": "mood"},
        "validation_fraction": 0.2,
        "test_fraction": 0.2,
        "limits": {"train": 5},
        "protocol": {"max_steps": 3},
        "template": "It says {body}",
    }
    write_yaml(folder / "task.yaml", settings)
    return lambda folder: prepared(folder, folder / "task.yaml")


def custom_files(kind: str, suffix: str, content: str) -> Callable[[Path], Read]:
    def write(folder: Path) -> Read:
        (folder / "data").mkdir()
        write_splits(folder / "data", suffix, content)
        return lambda folder: prepared(folder, f"{kind}:{folder / 'data'}")

    return write


def custom_beir(folder: Path) -> Read:
    (folder / "data").mkdir()
    write_beir(folder / "data", "train", "dev", "test")
    return lambda folder: prepared(folder, f"ir:{folder / 'data'}")


def task_folder(kind: str) -> Callable[[Path], Read]:
    def write(folder: Path) -> Read:
        write_task(folder / "data", kind)
        return lambda folder: prepared(folder, folder / "data")

    return write


def texts(folder: Path) -> Read:
    rows = jsonl(*({"text": f"text {n}", "id": n, "license": "MIT"} for n in range(9))).encode()
    for name, pack in (("a", bytes), ("b", gzip.compress), ("c", zstandard.compress)):
        suffix = {"a": "", "b": ".gz", "c": ".zst"}[name]
        (folder / f"{name}.jsonl{suffix}").write_bytes(pack(rows))
    (folder / "d.md").write_text("# Title\n\nwords\n")
    pq.write_table(pa.table({"text": ["a", "b"], "id": [1, 2]}), folder / "e.parquet")
    # One by one: a damaged one hides those behind it.
    return lambda folder: [list(read_text_files(file)) for file in sorted(folder.iterdir())]


def inputs(folder: Path) -> Read:
    (folder / "a.csv").write_text('text,other\n"x, y",1\nz,2\n')
    (folder / "b.tsv").write_text("text\tother\nx\t1\n")
    (folder / "c.jsonl").write_text(jsonl({"text": "x"}, {"text": "y"}))
    (folder / "d.txt").write_text("x\ny\n")
    pq.write_table(pa.table({"text": ["a", "b"]}), folder / "e.parquet")
    return lambda folder: [list(open_input(str(f)).rows()) for f in sorted(folder.iterdir())]


def model(family: str) -> Callable[[Path], Read]:
    def write(folder: Path) -> Read:
        write_model(folder / "model", family)
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "x.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "x.Pooling"},
        ]
        (folder / "model" / "modules.json").write_text(json.dumps(modules))
        (folder / "model" / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
        (folder / "model" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        sentences = {"max_seq_length": 32, "do_lower_case": False}
        (folder / "model" / "sentence_bert_config.json").write_text(json.dumps(sentences))

        def read(folder: Path) -> object:
            found = fetch_model(folder / "model").folder
            model_limits(found)
            TextTokenizer.load(found)
            if family == "bert":
                embedding_settings(found, Choices())
            return load_encoder(found, batching="packed")

        return read

    return write


def records(folder: Path) -> Read:
    small = FakeStudy(
        arms=ARMS[:2], tasks=TASKS[:2], learning_rates=(1e-4,), seeds=(0, 1), steps=20
    )
    small.write(folder)
    return lambda folder: load_records(folder / "study", folder / "store")


def results(folder: Path) -> Read:
    for rate in ("1e-4", "2e-4"):
        for seed in (0, 1):
            run = folder / "results/m/sc/sst2" / f"lr{rate}_sd{seed}"
            run.mkdir(parents=True)
            split = {"score": 0.5, "scores_i": [0, 1]}
            (run / "results.json").write_text(json.dumps({"validation": split, "test": split}))

    def read(folder: Path) -> object:
        scores = read_layout(folder).scores("standard")
        return scores.examples("m", "sst2") if scores.examples else None

    return read


def lock(folder: Path) -> Read:
    with locks.lock(folder / "lock"):
        shutil.copyfile(folder / "lock", folder / "kept")
    return lambda folder: str(locks.find_owner(folder / "kept"))


CONLL = "".join(f"{word} {tag}\n" for word, tag in [("Anna", "B-PER"), ("ran", "O")]) + "\n"
SQUAD = json.dumps(
    {
        "version": "v2.0",
        "data": [
            {
                "title": "t",
                "paragraphs": [
                    {
                        "context": "Anna ran",
                        "qas": [
                            {
                                "id": "q1",
                                "question": "Who?",
                                "answers": [{"text": "Anna", "answer_start": 0}],
                            },
                            {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True},
                        ],
                    }
                ],
            }
        ],
    }
)
KINDS: dict[str, Callable[[Path], Read]] = {
    "study": study,
    "overrides": overrides,
    "recipe": recipe,
    "corpus": corpus,
    "resolved": resolved,
    "task file": task_file,
    "sc.csv": custom_files("sc", ".csv", 'text,label\n"a, b",pos\nc,neg\n'),
    "sc.jsonl": custom_files(
        "sc", ".jsonl", jsonl({"text": "a", "label": 0}, {"text": "b", "label": 1})
    ),
    "sr.tsv": custom_files("sr", ".tsv", "text\tscore\na\t1.5\nb\t2\n"),
    "tc.conll": custom_files("tc", ".conll", CONLL * 2),
    "qa.json": custom_files("qa", ".json", SQUAD),
    "beir": custom_beir,
    "task sc": task_folder("sc"),
    "task tc": task_folder("tc"),
    "task zs": task_folder("zs"),
    "texts": texts,
    "inputs": inputs,
    "model bert": model("bert"),
    "model llama": model("llama"),
    "records": records,
    "results": results,
    "lock": lock,
}


def write_yaml(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def prepared(folder: Path, source: Path | str) -> object:
    store = folder.parent / "store"
    shutil.rmtree(store, ignore_errors=True)
    return prepare_task(str(source), store=store, say=lambda _: None)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return what a mistake or damage could make of a file."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        content = draw.choice((_word, _word, _word, _word, _bytes, _cut, _lines))(content, draw)
    return content


def _word(content: bytes, draw: random.Random) -> bytes:
    found = list(WORD.finditer(content[:20_000]))
    word = draw.choice(WORDS).encode("utf-8", errors="surrogatepass")
    if not found:
        return content + word
    start, end = draw.choice(found).span()
    start, end = draw.choice(((start, end), (start, end), (start, start), (end, end)))
    return content[:start] + word + content[end:]


def _bytes(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(draw.choice((1, 3))):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return draw.choice((content[:start], content[end:], content[:start] + content[end:], b""))


def _lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.split(b"\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    if draw.random() < 0.5:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines.insert(other, lines[one])
    return b"\n".join(lines)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_input_is_refused_in_one_line(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "whole"
    folder.mkdir()
    read = KINDS[kind](folder)
    read(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for number in range(COUNT):
        draw = random.Random(f"{kind}/{number}")  # noqa: S311
        file = draw.choice(files)
        whole = file.read_bytes()
        file.write_bytes(mutated(whole, draw))
        try:
            read(folder)
        except BiphasicError as error:
            told = str(error)
            assert told.isprintable() or "\u202f" in told, f"{kind}, mutation {number}: {told!r}"
            assert len(told) <= LONGEST + 10, f"{kind}, mutation {number}: {told!r}"
        except Exception as error:
            error.add_note(f"{kind}, mutation {number} of {file.relative_to(folder)}")
            raise
        file.write_bytes(whole)
