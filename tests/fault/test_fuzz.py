"""Damaged and hostile input of every kind: read all the same, or refused in one line.

Reading writes nothing beside the store, starts no process, opens no connection, and runs no code of
the input. Mutations are seeded, so a failure names the one that shows it: `study, mutation 17`. The
tests try a few of each kind; `make fuzz` tries many, and then looks for more with atheris
(`fuzz_coverage.py`).
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/analysis"))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
import zstandard
from fake_study import ARMS, TASKS, FakeStudy

from biphasic import locks
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.layout import read_layout
from biphasic.config import load_config
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus
from biphasic.data.text.source import read_text_files
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.errors import BiphasicError, CheckpointError, DataError
from biphasic.execution.cluster.site import Site
from biphasic.model.contract import model_limits
from biphasic.model.loading.build import architecture_config, load_encoder, new_model
from biphasic.model.loading.hub import fetch_model
from biphasic.model.shape import PRESETS
from biphasic.records import StateRecord
from biphasic.store import MANIFEST, STATE, file_entries, seal_folder
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from biphasic.tasks.embedding import Choices, embedding_settings
from biphasic.tasks.inputs import open_input
from biphasic.tasks.source import find_source, prepare_task
from biphasic.tasks.use import predict_file, read_head
from biphasic.training.recipe import Recipe
from biphasic.training.run import saved_model
from biphasic.training.state import STATE_FORMAT, Snapshot, load_state, save_state
from custom_tasks import jsonl, write_beir, write_splits
from mini_study import STUDY
from text_corpus import write_corpus
from tiny_use import write_head, write_model, write_task

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
    *("²", "٣", "½", "~nosuchuser", "~nosuchuser/x", "../..", "/", "/dev/null"),
    *("x" * 300, "a/" * 99),
    *("\0", "\x1b[31m", "\u202e", "\ud800", "\\ud800", "\ufeff", "\u2028", "\r", "\t", "\n", " "),
    *("[" * 3000 + "]" * 3000, "{a: " * 3000 + "}" * 3000, '{"a":' * 3000 + "1" + "}" * 3000),
    *("[" * 100_000, "x" * 100_000, "*", "**", "hf:", "hf:a/b?x"),
    *("sc:", "zs:x", "builtin:x", "{0}"),
    *("../outside/x", "../../x", "/tmp/biphasic-fuzz/x", "file:///etc/hosts", "http://localhost:9"),  # noqa: S108
    *("!!python/object/apply:os.mkdir [biphasic-ran]", "{{ 7*7 }}", "{body.__class__}", "=1+1"),
    *('["a"]', '{"a": 1}', '"a', "b-PER", "I-", "B-", "{text_a}", "{", "}", "mlm", "pico"),
)
VALUES = (
    *(None, True, False, 0, 1, -1, 2, 7, 10**6, 10**20, 1.5, -0.5, 1e300, float("nan")),
    *("", "x", "../x", "/etc/hosts", "0", "text", "float16", "eager", "relu"),
    *("\0", "\ud800", "é" * 99),
    *([], {}, [0], [[]], ["x"], {"x": 1}, [1, "x", None], ["a"] * 50, {"a": {"a": {}}}),
)
IDENTITY = "ab" * 32
WORD = re.compile(rb"[^\s,:\[\]{}\"']+|\"[^\"]*\"")
Read = Callable[[Path], object]


def study(folder: Path) -> Read:
    base = {key: STUDY[key] for key in ("recipe", "corpus", "tasks")}
    rest = {key: value for key, value in STUDY.items() if key not in base}
    objectives = [{"objective": "clm"}, {"objective": "mlm"}]
    mix = {"objective": "mix", "objectives": objectives, "shares": [0.5, 0.5]}
    varied = {
        "steps": 40,
        "phases": [{"objective": "clm", "share": 0.5}, mix],
        "axes": {"recipe.learning_rate.peak": [1e-3, 2e-3], "phases.0.share": [0, 0.5]},
    }
    rest["arms"] = [*rest["arms"][:2], varied]
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
    write_yaml(folder / "corpus.yaml", {"sources": sources, "tokenizer": "a/b", "copies": "c"})
    return lambda folder: load_config(CorpusConfig, folder / "corpus.yaml").anchored(folder)


def resolved(folder: Path) -> Read:
    write_yaml(folder / "study.yaml", STUDY)
    Study(load_study(folder / "study.yaml", [f"name={folder.name}"]), folder.parent).save()
    (folder / "study.yaml").unlink()
    return lambda folder: Study.saved(folder).config


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


def state(folder: Path) -> Read:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.special_ids
    config = architecture_config(PRESETS["pico"], vocab_size=64, max_seqlen=32, special_ids=ids)
    model = new_model(config, init_seed=0)
    weights = dict(model.named_parameters())
    moments = {
        f"{name}.{key}": torch.ones(() if key == "step" else weight.shape)
        for name, weight in list(weights.items())[:2]
        for key in ("step", "exp_avg", "exp_avg_sq")
    }
    record = StateRecord(format=STATE_FORMAT, identity=IDENTITY, step=2, rows_sha256="cd" * 32)
    content = Snapshot(weights, moments, record, '{"step": 1}\n{"step": 2}\n')
    save_state(folder / "state", content, config=model.config.to_dict(), tokenizer=tokenizer)

    def read(folder: Path) -> object:
        snapshot = load_state(folder / "state", identity=IDENTITY)
        return saved_model(folder / "state", snapshot)

    return read


def head(kind: str) -> Callable[[Path], Read]:
    """A fine-tuned model that predicts."""

    def write(folder: Path) -> Read:
        write_model(folder / "model", "eurobert")
        write_head(folder / "model", kind, fill=1.0)
        rows = [{"text": "the cat"}] if kind == "sc" else [{"tokens": ["the", "cat"]}]
        (folder / "rows.jsonl").write_text(jsonl(*rows))

        def read(folder: Path) -> object:
            out = folder.parent / "store" / "out.csv"
            out.unlink(missing_ok=True)
            with mock.patch("biphasic.tasks.use.check_contract"):
                return predict_file(folder / "model", open_input(str(folder / "rows.jsonl")), out)

        return read

    return write


def tokens(folder: Path) -> Read:
    write_corpus(
        folder / "tokens",
        [("a", "one two"), ("b", "three")],
        tiny_tokenizer(),
        provenance={"source": "x"},
    )

    def read(folder: Path) -> object:
        corpus = Corpus(folder / "tokens")
        names = list(corpus.names())
        read = [corpus.tokens(number, 0, int(n)) for number, n in enumerate(corpus.lengths)]
        return names, read, corpus.num_tokens

    return read


def site(folder: Path) -> Read:
    settings = {
        "scheduler": "slurm", "partition": "gpu", "walltime": "24:00:00", "max_blocks": 4,
        "nodes_per_block": 2, "gpus_per_node": 8, "setup": ["module load cuda"],
    }  # fmt: skip
    write_yaml(folder / "site.yaml", settings)
    return lambda folder: load_config(Site, folder / "site.yaml")


def lock(folder: Path) -> Read:
    with locks.hold(folder / "lock"):
        shutil.copyfile(folder / "lock", folder / "kept")
    return lambda folder: str(locks.find_owner(folder / "kept"))


CONLL = "".join(f"{word} {tag}\n" for word, tag in [("Anna", "B-PER"), ("ran", "O")]) + "\n"
QUESTIONS = [
    {"id": "q1", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 0}]},
    {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True},
]
PARAGRAPH = {"context": "Anna ran", "qas": QUESTIONS}
SQUAD = json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [PARAGRAPH]}]})
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
    "state": state,
    "sealed state": state,
    "tokens": tokens,
    "sealed tokens": tokens,
    "site": site,
    "head sc": head("sc"),
    "head tc": head("tc"),
}


@cache
def tiny_tokenizer() -> TextTokenizer:
    return train_tokenizer(["one two three"] * 9, vocab_size=300)


def write_yaml(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def prepared(folder: Path, source: Path | str) -> object:
    store = folder.parent / "store"
    shutil.rmtree(store, ignore_errors=True)
    return prepare_task(find_source(str(source)), store=store, say=lambda _: None)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return what a mistake or damage could make of a file."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        kinds = (_word, _word, _word, _word, _value, _value, _value, _bytes, _cut, _lines)
        content = draw.choice(kinds)(content, draw)
    return content


def _value(content: bytes, draw: random.Random) -> bytes:
    """Replace, remove or add a value of JSON, which stays JSON; as `_word` in other files."""
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):
        return _word(content, draw)
    holders = [each for each in _holders(whole) if each]
    if not holders:
        return json.dumps(draw.choice(VALUES)).encode()
    holder = draw.choice(holders)
    key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    change = draw.random()
    if change < 0.2:
        del holder[key]
    elif change < 0.3 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = draw.choice(VALUES)
    return json.dumps(whole).encode()


def _holders(value: object) -> Iterator[dict | list]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


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


WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod")
FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"),
    *("socket.connect", "socket.getaddrinfo", "webbrowser.open"),
)


class Watch:
    """Notes what reading does beside reading, through Python's audit events."""

    def __init__(self) -> None:
        self.allowed: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    @contextmanager
    def reading(self, allowed: Path) -> Iterator[None]:
        """Watch in this block; `allowed` is the folder in which files may be written."""
        self.allowed, self.seen = allowed, []
        try:
            yield
        finally:
            self.allowed = None
        assert not self.seen

    def _note(self, event: str, given: tuple) -> None:
        if self.allowed is None:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {given}")
        elif event in WRITING or (event == "open" and _writes(*given[1:3])):
            path = str(given[0])
            ours = path.startswith((str(self.allowed), "/dev/null")) or "__pycache__" in path
            # Names within an open folder, and numbers of open files, are left to `tree`.
            if not ours and path.startswith(("/", "..")):
                self.seen.append(f"{event} {given}")


def _writes(mode: str | None, flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))


@cache
def watch() -> Watch:
    """Return the only watch: audit hooks cannot be removed."""
    return Watch()


def tree(folder: Path) -> dict[str, tuple]:
    """Return what is in a folder: names, kinds, sizes and times of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        times = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, times)
    return found


def changed(before: dict[str, tuple], after: dict[str, tuple]) -> set[str]:
    """Return what has changed in a folder beside the store."""
    names = {name for name, _ in before.items() ^ after.items()}
    return {name for name in names if not name.startswith("here/store")}


class Subject:
    """Files of a kind in `whole`, which can be changed and read; outputs are in `store`."""

    def __init__(self, kind: str, base: Path) -> None:
        self._folder, self._outputs = base / "whole", base / "store"
        self._folder.mkdir(parents=True)
        self._outputs.mkdir()
        self._read = KINDS[kind](self._folder)
        self._read(self._folder)
        self._is_sealed = kind.startswith("sealed")
        self.files = sorted(path for path in self._folder.rglob("*") if path.is_file())
        if self._is_sealed:  # a manifest that fits its files, however damaged they are
            self.files = [file for file in self.files if file.name != MANIFEST]

    def write(self, file: Path, content: bytes) -> None:
        file.write_bytes(content)
        if self._is_sealed:
            (sealed,) = self._folder.iterdir()
            seal_folder(sealed, identity=IDENTITY)

    def read(self) -> None:
        with watch().reading(self._outputs):
            self._read(self._folder)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_input_is_refused_in_one_line(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "outside").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here" / "store"))
    subject = Subject(kind, tmp_path / "here")
    for number in range(COUNT):
        draw = random.Random(f"{kind}/{number}")  # noqa: S311
        file = draw.choice(subject.files)
        whole = file.read_bytes()
        subject.write(file, mutated(whole, draw))
        before = tree(tmp_path)
        try:
            subject.read()
        except BiphasicError as error:
            message = str(error)
            assert message.isprintable() or "\u202f" in message, (
                f"{kind}, mutation {number}: {message!r}"
            )
            assert len(message) <= LONGEST + 10, f"{kind}, mutation {number}: {message!r}"
        except Exception as error:
            error.add_note(f"{kind}, mutation {number} of {file.relative_to(tmp_path)}")
            raise
        assert not changed(before, tree(tmp_path)), f"{kind}, mutation {number}"
        file.write_bytes(whole)


class Payload:
    """Makes a folder when a pickle of it is read."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


def pickled(path: Path, canary: Path) -> None:
    path.write_bytes(pickle.dumps(Payload(canary)))


def only_pickles(folder: Path, canary: Path) -> None:
    (folder / "model" / "model.safetensors").unlink()
    torch.save(Payload(canary), folder / "model" / "pytorch_model.bin")


def pickle_beside(folder: Path, canary: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "1_Pooling/model.pkl"):
        pickled(folder / "model" / name, canary)


def own_code(folder: Path, canary: Path) -> None:
    """A model that names code of its own, for every class that transformers may look up."""
    code = f"import os\nos.mkdir({str(canary)!r})\n"
    (folder / "model" / "evil.py").write_text(code)
    classes = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM")
    for name, content in (
        ("config.json", dict.fromkeys(classes, "evil.Evil")),
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}),
    ):
        path = folder / "model" / name
        known = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**known, "auto_map": content}))


def unknown_code(folder: Path, canary: Path) -> None:
    own_code(folder, canary)
    path = folder / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "evil"}))


def in_place_of(name: str) -> Callable[[Path, Path], None]:
    def write(folder: Path, canary: Path) -> None:
        pickled(folder / name, canary)
        if name.startswith("tokens/"):
            array = np.array([Payload(canary)], dtype=object)
            np.save(folder / name, array, allow_pickle=True)
        for sealed in {"state", "tokens"} & {path.name for path in folder.iterdir()}:
            seal_folder(folder / sealed, identity=IDENTITY)

    return write


def yaml_tag(name: str) -> Callable[[Path, Path], None]:
    def write(folder: Path, canary: Path) -> None:
        text = (folder / name).read_text()
        tag = f"!!python/object/apply:os.mkdir ['{canary}']"
        (folder / name).write_text(f"{text}\nextra: {tag}\n")

    return write


def template(folder: Path, canary: Path) -> None:
    text = (folder / "task.yaml").read_text()
    hostile = "{body.__class__.__init__.__globals__[os].mkdir}"
    (folder / "task.yaml").write_text(text.replace("It says {body}", hostile))


@pytest.mark.parametrize(
    ("kind", "harm", "is_refused"),
    [
        ("model bert", only_pickles, True),
        ("model bert", pickle_beside, False),
        ("model bert", own_code, False),
        ("model bert", unknown_code, True),
        ("model llama", own_code, False),
        ("model bert", in_place_of("model/model.safetensors"), True),
        ("model bert", in_place_of("model/tokenizer.json"), True),
        ("state", in_place_of("state/model.safetensors"), True),
        ("state", in_place_of("state/optimizer.safetensors"), True),
        ("tokens", in_place_of("tokens/lengths.npy"), True),
        ("texts", in_place_of("e.parquet"), True),
        ("study", yaml_tag("study.yaml"), True),
        ("recipe", yaml_tag("recipe.yaml"), True),
        ("corpus", yaml_tag("corpus.yaml"), True),
        ("task file", yaml_tag("task.yaml"), True),
        ("site", yaml_tag("site.yaml"), True),
        ("task file", template, True),
    ],
)
def test_no_input_runs_code(tmp_path, monkeypatch, kind, harm, is_refused):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, canary = tmp_path / "whole", tmp_path / "code-ran"
    folder.mkdir()
    read = KINDS[kind](folder)
    read(folder)
    harm(folder, canary)
    with watch().reading(tmp_path):
        if is_refused:
            with pytest.raises(BiphasicError):
                read(folder)
        else:
            read(folder)
    assert not canary.exists()


def test_links_are_read_and_never_written_through(tmp_path, monkeypatch):
    """Links out of a folder, to itself, and to nothing."""
    outside, folder = tmp_path / "outside", tmp_path / "here" / "texts"
    outside.mkdir()
    folder.mkdir(parents=True)
    (outside / "a.txt").write_text("words")
    (outside / "train.csv").write_text("text,label\na,x\nb,y\n")
    (folder / "up").symlink_to("..")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    (folder / "out.txt").symlink_to(outside / "a.txt")
    (folder / "self").symlink_to("self")
    data = tmp_path / "here" / "data"
    data.symlink_to(outside)
    before = tree(tmp_path)
    with watch().reading(tmp_path / "here"):
        for read in (
            lambda: list(read_text_files(folder)),
            lambda: prepare_task(
                find_source(f"sc:{data}"), store=tmp_path / "here/store", say=print
            ),
            lambda: load_state(folder, identity=IDENTITY),
            lambda: Corpus(folder),
            lambda: fetch_model(folder),
            lambda: load_study(folder / "self"),
        ):
            with suppress(BiphasicError):
                read()
    after = {name: found for name, found in tree(tmp_path).items() if "/store" not in name}
    assert after == before


@pytest.mark.parametrize("kind", ["sc", "tc"])
@pytest.mark.parametrize("change", [{"labels": ["a"]}, {"labels": []}, {"head": None}])
def test_a_head_has_an_output_for_each_label(tmp_path, kind, change):
    head(kind)(tmp_path)
    path = tmp_path / "model" / "head.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=r"head.json: \d outputs for \d labels"):
        read_head(path.parent)


@pytest.mark.parametrize("name", ["../x", "/etc/hosts", "a/../../x", "x" * 300, "a\0b"])
def test_a_manifest_names_files_of_its_folder_alone(tmp_path, name):
    (tmp_path / "x").write_text("x")
    entry = file_entries(tmp_path, [tmp_path / "x"])["x"]
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "state.json").write_text("x")
    (folder / MANIFEST).write_text(
        json.dumps({"files": dict.fromkeys((name, "state.json"), entry), STATE.identity: IDENTITY})
    )
    with pytest.raises(CheckpointError, match=r"names .* not in its folder|missing"):
        load_state(folder, identity=IDENTITY)
