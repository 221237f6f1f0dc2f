"""Every benchmark in its shortest form: it runs and writes its records.

What is measured means nothing at this size. Scripts and commands that a benchmark would start as
processes run within this one, which saves loading torch for each.
"""

import gzip
import importlib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tiny_use import SHAPE, write_jsonl, write_model, write_task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VOCABULARY = 512
ROW_TOKENS = 132  # the least that question answering takes

# Constants of scripts that decide how long they take.
SIZES: dict[str, dict[str, Any]] = {
    "setup_pretraining": {
        "TRAINED_VOCABULARY": VOCABULARY,
        "ENDLESS_STEPS": 100,
        "WARMUP_STEPS": 1,
        "MEASURED_STEPS": 1,
    },
    "pretrain": {"CEILING_SECONDS": 0, "MATRIX_SIZE": 64, "COUNTED_BATCHES": 1},
    "growth": {
        "TOKENS_PER_STEP": (256, 512),
        "VOCABULARIES": (VOCABULARY, 2 * VOCABULARY),
        "MAX_SEQLENS": (64, 128),
        "FIXED_TOKENS": 128,
    },
    "where_time_goes": {"WARMUP_STEPS": 1, "PROFILED_STEPS": 1},
    "pipeline": {
        "EPOCH_DOCUMENTS": (200, 400),
        "COPIED_TOKENS": 10_000,
        "LOADER_STEPS": 2,
        "LOADER_MODELS": ("pico",),
        "LOADER_OBJECTIVES": ("mlm40",),
        "STEP_TOKENS": 1024,
        "STEPS_AFTER": 2,
        "WINDOW_DOCUMENTS": 200,
        "ROUNDS": 1,
    },
    "scheduling": {"PAPER": BENCHMARKS.parent / "studies/paper-micro.yaml"},
    "speedrun": {"MAX_TOKENS": 100_000, "VOCAB_SIZE": 320, "PAIRS_PER_PARADIGM": 2},
    "contrastive": {"LIBRARIES": ("click", "rich", "typer"), "VOCABULARY": VOCABULARY},
    "corpus": {"TOKENIZER_BYTES": 10_000, "VOCAB_SIZE": 320, "PROCESSES": 1},
    "report": {
        "ARMS": ("untrained", "mlm"),
        "GRIDS": {2: (1, 1), 4: (2, 1)},
        "LINES": (20, 40),
        "FIXED_RESULTS": 2,
        "FIXED_LINES": 20,
        "WIDE": {20: 2},
        "WIDE_TASKS": 1,
        "WIDE_RATES": 2,
    },
}


class Bench:
    """Runs scripts of `benchmarks/` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self.folder = monkeypatch, folder
        self.start_process = importlib.import_module("harness").run_process

    def __call__(self, script: str, *arguments: object, records: str = "--json") -> list[Any]:
        """Run a benchmark; return its records."""
        path = self.folder / "records.json"
        self.script(script, [*map(str, arguments), records, str(path)])
        return json.loads(path.read_text(encoding="utf-8"))["records"]

    def script(self, name: str, arguments: Sequence[str]) -> str:
        """Run a script; return what it printed."""
        module = self.load(name)
        return self._captured(module.main, [name, *arguments])

    def load(self, name: str) -> ModuleType:
        """Import a script, and make it small."""
        module = importlib.import_module(name)
        for constant, value in SIZES.get(name, {}).items():
            assert hasattr(module, constant)
            self._monkeypatch.setattr(module, constant, value)
        if hasattr(module, "run_process"):
            self._monkeypatch.setattr(module, "run_process", self.run_process)
        return module

    def run_process(self, command: Sequence[str], **_: Any) -> tuple[str, Any]:
        """Stand where a benchmark would start a process."""
        _, first, *arguments = command
        if first == "-c":
            code, *arguments = arguments
            printed = self._captured(lambda: exec(code, {}), ["-c", *arguments])  # noqa: S102
        else:
            printed = self.script(Path(first).stem, arguments)
        return printed, self.load("harness").Cost(seconds=1.0, cpu_seconds=1.0, peak_bytes=1)

    def _captured(self, action: Callable[[], Any], argv: list[str]) -> str:
        printed = io.StringIO()
        with self._monkeypatch.context() as patch, redirect_stdout(printed):
            patch.setattr(sys, "argv", argv)
            try:
                action()
            except SystemExit as ended:
                if ended.code:
                    raise
        return printed.getvalue()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """Benchmarks of little text, which leave no modules behind."""
    from biphasic.pydocs import documents as pydocs

    def few_documents(_: Any = None) -> list[pydocs.Document]:
        return read_documents(("click", "rich", "typer"))

    read_documents = pydocs.load_documents
    monkeypatch.setattr(pydocs, "load_documents", few_documents)
    # `Dataset.map` of several processes leaves a copy as os.environ, which rich does not look at.
    monkeypatch.setattr(os, "environ", os.environ)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS / "reference")
    bench = Bench(monkeypatch, tmp_path)
    bench.load("harness")
    setup = bench.load("setup_pretraining")
    monkeypatch.setattr(setup.Setting.__init__, "__defaults__", (ROW_TOKENS, 2, "adamw"))
    # This process held more before, so that nothing would be seen to grow.
    monkeypatch.setattr(setup, "peak_bytes", itertools.count(1).__next__)
    monkeypatch.setattr("biphasic.training.heldout.HELDOUT_TOKENS", ROW_TOKENS)
    yield bench
    folders = {str(BENCHMARKS), str(BENCHMARKS / "reference")}
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and str(Path(file).parent) in folders:
            del sys.modules[name]


def positive(*names: str) -> Callable[[list[Any]], bool]:
    return lambda records: all(record[name] > 0 for record in records for name in names)


SHORT: dict[str, tuple[str, int, Callable[[list[Any]], bool]]] = {
    "pretrain": (
        f"--models pico --vocabularies {VOCABULARY} --seconds 0 --objectives mlm40 "
        "--precisions fp32", 5, positive("tokens_per_second"),
    ),
    "lean_loop": ("--models pico --precisions fp32 --steps 1", 2, positive("ours_over_lean")),
    "cpu_kernels": (
        "--models pico --lengths 64/32 --passes 1", 2,
        lambda records: [each["objective"] for each in records] == ["clm", "mlm40"],
    ),
    "growth": (
        "--model pico --seconds 0", 0,
        lambda records: {"tokens", "vocabulary"}
        <= {each["series"] for each in records if "size" in each},
    ),
    "where_time_goes": (
        f"--models pico --vocabulary {VOCABULARY} --objectives mlm40", 1,
        lambda records: sum(records[0]["shares"].values()) == pytest.approx(1),
    ),
    "pipeline": (
        "--max-seqlens 64 --documents 200 400 --seconds 0", 0,
        lambda records: [
            0.9 < each["fill"] <= 1
            for each in records if each["part"] == "rate" and "documents" in each
        ] == [True, True],
    ),
    "scoring": (
        "--model pico --precisions fp32", 4,
        lambda records: [record["kind"] for record in records] == ["sc", "tc", "qa", "ir"],
    ),
    "family_error": (
        "--families 4", 0,
        lambda records: {each.get("lead") for each in records} == {None, 2.0, 4.0, 8.0},
    ),
    "simulation": (
        "--nodes 1 --seeds 1 --rate 1e11", 4,
        lambda records: all(each["finished"] == each["jobs"] for each in records),
    ),
    "process_group": (
        "--model pico --rows 2 --steps 2 --processes 1 --sides threads whole", 0,
        positive("tokens_per_second"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_short(bench, name):
    options, number, is_right = SHORT[name]
    for needed in ("pretrain", "scheduling"):  # measures a limit, plans a study
        bench.load(needed)
    records = bench(name, *options.split())
    assert len(records) == number if number else records
    assert is_right(records)


def test_contrastive(bench):
    options = ["--models", "pico", "--batches", "4", "8", "--cached", "8", "--steps", "1"]
    whole, cached = bench("contrastive", *options, "--max-seqlen", "32")
    assert (whole["is_cached"], cached["is_cached"]) == (False, True)
    for record in (whole, cached):
        assert record["ours_over_theirs"] > 0
        assert record["our_first_loss"] == pytest.approx(record["their_first_loss"], rel=1e-4)


def test_sides_that_alternate_end_together_when_one_fails(bench):
    turns = bench.load("contrastive").Turns()

    def fail() -> None:
        turns.end("ours")
        turns.wait("ours")
        raise ValueError("ours has failed")

    def go_on() -> None:
        for _ in range(9):
            turns.end("theirs")
            turns.wait("theirs")

    with pytest.raises(ValueError, match="ours has failed"):
        turns.run({"ours": fail, "theirs": go_on})
    assert len(turns.seconds["theirs"]) == 1


@pytest.mark.parametrize("objective", ["clm", "mlm40"])
def test_the_lean_loop_has_our_loss(bench, objective):
    from biphasic.model.loading.build import architecture_config, new_model
    from biphasic.training.compute import ComputeConfig
    from biphasic.training.step.input import StepInputs, pass_loss

    setup, lean_loop = bench.load("setup_pretraining"), bench.load("lean_loop")
    setup.prepare(bench.folder, [VOCABULARY])
    setting = setup.Setting(str(bench.folder), "pico", VOCABULARY, objective, "fp32", 0)
    lean, data = lean_loop.LeanLoop(setting), setting.training_data()
    config = architecture_config(
        setting.recipe.architecture,
        vocab_size=data.tokenizer.vocab_size,
        max_seqlen=setting.max_seqlen,
        special_ids=data.tokenizer.special_ids,
    )
    ours = new_model(config, init_seed=0)
    ours.load_state_dict(lean.model.state_dict())
    given = StepInputs(setting.recipe, data, ours, compute=ComputeConfig()).of(3)
    expected = pass_loss(ours, given.passes[0]) / given.num_supervised
    assert lean.loss(3).item() == pytest.approx(expected.item(), rel=1e-5)


def test_memory(bench, monkeypatch):
    memory = bench.load("memory")
    small = {"rows_per_step": 4, "rows_per_pass": 2, "max_seqlen": 64}
    cases = [replace(memory.CASES[number], **small) for number in (0, 2)]
    monkeypatch.setattr(memory, "CASES", cases)
    records = bench("memory")
    assert [record["recomputes"] for record in records] == [False, True]
    assert all(record["predicted_bytes"] > 0 for record in records)


def test_planning(bench, tmp_path, monkeypatch):
    planning = bench.load("planning")
    arms = [
        {"name": name, "phases": [{"objective": name, "steps": 1000}]} for name in ("clm", "mlm")
    ]
    small = {**planning.large_study(), "arms": arms[:1], "evaluation_points": []}
    monkeypatch.setattr(planning, "large_study", lambda: small)
    (tmp_path / "paper.yaml").write_text(json.dumps({**small, "arms": arms}))
    monkeypatch.setattr(planning, "STUDIES", tmp_path)
    paper, large = bench("planning", records="--out")
    assert paper["states"] > large["states"]


def test_scheduling(bench, monkeypatch):
    from biphasic.execution import worker
    from biphasic.study.run.jobs import load_job

    def run_here(worker: Any, job_id: str, watch: Any, **_: Any) -> None:
        load_job(Path(worker._command[-2]), job_id).run(watch, should_stop=lambda: False)

    monkeypatch.setattr(worker.WorkerProcess, "run", run_here)
    options = ["--jobs=2", "--slots=1", "--alone=20", "--parsl=0", "--fine-tunings=10"]
    workers, alone, study, part = records = bench("scheduling", *options, records="--out")
    assert (workers["jobs"], alone["jobs"]) == (2, 20)
    # 50 states on four tasks, or ten fine-tunings.
    assert study["jobs"] - part["jobs"] == 50 * 4 - 10
    assert min(record["ms_per_job"] for record in records) > 0


def test_commands(bench, monkeypatch):
    # The study needs worker processes; test_study.py runs the commands on a finished one.
    reading = [["study", "schema"]]
    monkeypatch.setattr(bench.load("commands"), "finish_study", lambda _: reading)
    programs = {record["program"] for record in bench("commands", "--rounds", "1")}
    assert {"biphasic --version", "biphasic study --help", "biphasic study schema"} <= programs


@pytest.mark.usefixtures("undrawn")
def test_report(bench):
    records = bench("report", "--rounds", "1")
    pages = [record for record in records if "page_bytes" in record]
    assert {record["results"] for record in pages} >= {2, 4}
    assert all(record["page_bytes"] > 10_000 for record in pages)


def test_corpus(bench, tmp_path, monkeypatch):
    class Started(nullcontext):
        """Stands where the benchmark starts a process whose memory it watches."""

        pid, returncode = 2**31 - 1, 0  # no process has this id

        def __init__(self, command: Sequence[str], **_: Any) -> None:
            super().__init__(self)
            self._command = command

        def communicate(self) -> tuple[str, None]:
            return bench.run_process(self._command)[0], None

    monkeypatch.setattr(bench.load("corpus").subprocess, "Popen", Started)
    texts = [{"text": f"the array of rows holds tokens {number}"} for number in range(500)]
    write_jsonl(tmp_path / "text.jsonl", texts)
    (record,) = bench("corpus", "--text", tmp_path / "text.jsonl", "--megabytes", "0.1")
    assert {side["tokens"] > 0 for side in record["sides"].values()} == {True}


def write_speedrun(folder: Path) -> None:
    """Write text with two licences, pairs, and an entry."""
    (folder / "pretrain").mkdir()
    (folder / "minimal_pairs").mkdir()
    with gzip.open(folder / "pretrain/shard-00.jsonl.gz", "wt") as lines:
        for number in range(1_200):
            license = ["CC0-1.0 (public domain)", "MIT"][number % 2]
            text = f"{license} the dog ran to mat {number}"
            lines.write(json.dumps({"id": number, "text": text, "license": license}) + "\n")
    with gzip.open(folder / "minimal_pairs/blimp.jsonl.gz", "wt") as lines:
        pair = {"sentence_good": "the cat sat", "sentence_bad": "the sat cat", "UID": "order"}
        lines.write(json.dumps({"pairID": "1", **pair}) + "\n")
    entry = {
        "model": "pico", "max_seqlen": 32, "rows_per_step": 2, "learning_rate": {"peak": 1e-3},
        "phases": [{"objective": "mlm", "mlm_probability": 0.4, "steps": 2}],
    }  # fmt: skip
    (folder / "entry.yaml").write_text(json.dumps(entry))


def test_speedrun(bench, tmp_path, monkeypatch):
    write_speedrun(tmp_path)
    speedrun = bench.load("speedrun")
    with pytest.raises(SystemExit, match="not the text of the speedrun") as other:
        speedrun.prepare(tmp_path, tmp_path / "run")
    assert "MIT" not in (tmp_path / "run/text.jsonl").read_text()
    corpus, tokenizer = re.findall(r"[0-9a-f]{64}", str(other.value))
    monkeypatch.setattr(speedrun, "CORPUS", corpus)
    monkeypatch.setattr(speedrun, "TOKENIZER", tokenizer)
    records = ["--records", str(tmp_path / "records")]
    command = ["run", str(tmp_path / "run"), str(tmp_path / "entry.yaml"), "--seeds", "1"]
    bench.script("speedrun", [*command, *records])
    record = json.loads((tmp_path / "records/entry-1.json").read_text())
    assert 32 < record["tokens"] <= 2 * 2 * 32
    assert record["cpu_seconds"] > 0
    assert bench.script("speedrun", [*command, *records]) == ""  # it has a record
    assert [*speedrun.read_records(tmp_path / "records")] == ["adamw", "entry"]
    monkeypatch.setattr(speedrun, "CORPUS", "0" * 64)
    with pytest.raises(SystemExit, match=r"entry-1\.json: "):
        speedrun.read_records(tmp_path / "records")


def test_a_speedrun_is_tested_over_seeds(bench):
    speedrun = bench.load("speedrun")

    def runs(entry: str, losses: Sequence[float], blimp: float) -> list[Any]:
        keys = dict.fromkeys(speedrun.Record.__annotations__)
        cost = {"steps": 10, "tokens": 100 if entry == "adamw" else 50, "cpu_seconds": 1.0}
        cost["machine"] = {"processor": "other" if entry == "few" else "same"}
        return [
            speedrun.Record(**{**keys, **cost, "entry": entry, "mlm_loss": loss, "blimp": score})
            for loss, score in zip(
                losses, np.linspace(blimp, blimp + 0.001, len(losses)), strict=True
            )
        ]

    entries = {
        "adamw": runs("adamw", [6.0, 6.1, 6.2], 0.50),
        "clear": runs("clear", [5.9, 5.91, 5.92], 0.52),
        # Their means are below, too: t = -1.7 with 2 degrees of freedom; and two runs are too few.
        "noisy": runs("noisy", [5.7, 5.8, 6.0], 0.52),
        "few": runs("few", [5.9, 5.9], 0.52),
        "worse-pairs": runs("worse-pairs", [5.9, 5.91, 5.92], 0.40),
    }
    target, *lines = speedrun.table(entries)
    assert target == "Targets: 6.0000 nats, BLiMP 50.10"
    verdicts = {line.split(" | ")[0].strip("| "): line for line in lines[3:]}
    assert {name: line.endswith("| yes |") for name, line in verdicts.items()} == {
        "adamw": False, "clear": True, "noisy": False, "few": False, "worse-pairs": False,
    }  # fmt: skip
    assert "(0.50) | 1 (1.00) |" in verdicts["clear"]
    assert "| 1 |" in verdicts["few"]  # no baseline on its processor


def test_endurance(bench, monkeypatch):
    clock = SimpleNamespace(monotonic=itertools.count(0, 60).__next__)
    monkeypatch.setattr(bench.load("endurance"), "time", clock)
    options = ["--minutes", "1", "--model", "pico", "--vocabulary", VOCABULARY]
    (record,) = bench("endurance", *options)
    assert record["bytes"] > 1_000_000


def test_finetune(bench, tmp_path, monkeypatch):
    for kind, name in {"sc": "sst2", "tc": "uner_en", "qa": "squad", "ir": "scifact"}.items():
        write_task(tmp_path / "data" / kind / name, kind)
    monkeypatch.setitem(SHAPE, "max_position_embeddings", 2 * ROW_TOKENS)
    model = write_model(tmp_path / "model", "bert")
    options = ["--max-steps", "1", "--max-length", ROW_TOKENS, "--seeds", "0"]
    options += ["--reference-seeds", "0"]
    records = bench("finetune", "--data", tmp_path / "data", "--model", model, *options)
    tasks = {record["task"]: record for record in records}
    assert tasks.keys() >= {"sst2", "uner_en", "squad", "scifact"}
    assert set(tasks["sst2"]["costs"]) >= {"ours", "reference"}


def test_adapt(bench, tmp_path, warm):
    model = write_model(tmp_path / "model", "llama")
    texts = [{"text": f"the cat sat on mat {number}"} for number in range(300)]
    write_jsonl(tmp_path / "text.jsonl", texts)
    sizes = ["--steps", "1", "--rows", "2", "--max-seqlen", "16"]
    records = bench("adapt", model, tmp_path / "text.jsonl", *sizes)
    assert [record["side"] for record in records] == ["ours", "plain loop"]
    assert all(record["tokens_per_second"] > 0 for record in records)


def test_lora(bench, tmp_path, warm):
    model = write_model(tmp_path / "model", "llama")
    texts = [{"text": f"the cat sat on mat {number}"} for number in range(300)]
    write_jsonl(tmp_path / "text.jsonl", texts)
    sizes = ["--steps", "2", "--rows", "2", "--max-seqlen", "16", "--rank", "2"]
    lora, full = bench("lora", model, tmp_path / "text.jsonl", *sizes)
    assert (lora["way"], full["way"]) == ("lora", "full")
    assert lora["tokens_per_second"] > 0
    assert lora["heldout"].keys() == full["heldout"].keys()


def test_cost_of_a_process(bench):
    printed, cost = bench.start_process([sys.executable, "-c", "print(sum(range(9)))"])
    assert printed == "36\n"
    assert cost.cpu_seconds > 0
    assert cost.peak_bytes > 1_000_000
