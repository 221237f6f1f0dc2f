"""What tests share: a tiny tokenizer, a tiny corpus, recipes of `pico` size."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "support"))

from mini_study import Cli, copy_root, finished_study, restore_root, stamps
from warm import draw_nothing, forking, probe_nothing, render_nothing

if TYPE_CHECKING:
    from biphasic.data.corpus import Corpus
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.training.lineage import TrainingData
    from biphasic.training.recipe import Recipe

# Until all tests are collected: imports and syntax trees are kept, and looking through them takes
# a quarter of the time.
gc.disable()

# Before torch is imported: tests run beside one another, and one thread is fastest at this size.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests kill processes, not machines: flushing to disk protects nothing here, and takes long.
os.fsync = lambda _: None

# Deterministic, so that a failure is a change of code; no time limits, as machines are shared.
settings.register_profile(
    "biphasic", deadline=None, database=None, derandomize=True, max_examples=50
)
settings.load_profile("biphasic")


_IS_ODD = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2 == 1


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let every second process collect from the end, as the first to come compiles a file for all.

    Processes that went the same way would each compile every file, which takes most of the time.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and _IS_ODD:
        report.result.reverse()
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the share of tests that xdist deals to each process with slow files.

    So no process is left with a long test at the end, when the others have nothing to take over.
    """
    items.sort(key=lambda item: item.path)
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(item.path, []).append(item)
    quick = [item for item in items if not item.get_closest_marker("slow")]
    size = -(-len(items) // shares)
    files = list(slow.values())
    items.clear()
    for share in range(shares):
        mine = [item for file in files[share::shares] for item in file]
        room = max(size - len(mine), 0)
        items += mine + quick[:room]
        del quick[:room]
    items += quick


def pytest_collection_finish() -> None:
    """Keep what was imported out of garbage collections, each of which would look through it."""
    gc.collect()
    gc.freeze()
    gc.enable()


TEXT = (
    "the array of rows holds tokens and their weights returns a copy unless axis is given where "
    "each value was read from memory in order model layer shape dtype stream index window default"
)


def synthetic_documents(count: int, *, seed: int, longest: int = 120) -> list[tuple[str, str]]:
    """Return (id, text) pairs of 1 to `longest` words, most of them short."""
    draw = np.random.default_rng(seed)
    lengths = np.minimum(draw.lognormal(3.0, 1.0, count).astype(int) + 1, longest)
    return [
        (f"{seed}/{number}", " ".join(draw.choice(TEXT.split(), length)))
        for number, length in enumerate(lengths.tolist())
    ]


@pytest.fixture(scope="session", autouse=True)
def vouched() -> None:
    """Vouch for the code under test; whether the list of the package does is a test of its own."""
    from biphasic import numerics

    for part, codes in ((part, numerics.known_code()[part]) for part in numerics.PARTS):
        codes["under test"] = [*codes[max(codes, key=int)], numerics.running_code(part)]


@pytest.fixture(scope="session")
def documents() -> list[tuple[str, str]]:
    """Sixty (id, text) pairs."""
    return synthetic_documents(60, seed=1)


@pytest.fixture(scope="session")
def text_file(documents: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as people have them, eight times with a number each."""
    path = tmp_path_factory.mktemp("text") / "documents.jsonl"
    rows = [
        {"id": f"{name}/{number}", "text": f"{text} {number}"}
        for name, text in documents
        for number in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(documents: list[tuple[str, str]]) -> TextTokenizer:
    """A byte-level BPE of 320 tokens."""
    from biphasic.data.tokens.tokenizer import train_tokenizer

    return train_tokenizer([text for _, text in documents], vocab_size=320)


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer's folder; never change its files."""
    from biphasic.data.tokens.tokenizer import write_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    write_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def corpus(
    documents: list[tuple[str, str]],
    tokenizer: TextTokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Corpus:
    """The documents, tokenised; never change its files."""
    from text_corpus import write_corpus

    folder = tmp_path_factory.mktemp("corpus") / "train"
    return write_corpus(folder, documents, tokenizer, provenance={"source": "synthetic"})


@pytest.fixture(scope="session")
def training_data(
    corpus: Corpus, tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> TrainingData:
    """A corpus with a held-out one of a dozen documents; never change their files."""
    from biphasic.training.lineage import TrainingData
    from text_corpus import write_corpus

    folder, documents = tmp_path_factory.mktemp("heldout"), synthetic_documents(12, seed=2)
    provenance = {"source": "synthetic"}
    heldout = write_corpus(folder / "heldout", documents, tokenizer, provenance=provenance)
    return TrainingData(corpus=corpus, heldout=heldout, tokenizer=tokenizer)


@pytest.fixture(scope="session")
def make_recipe() -> Callable[..., Recipe]:
    """Return recipes of `pico` size: `make_recipe(clm(3), mlm(3), precision="fp32")`."""
    from biphasic.config import parse_config
    from biphasic.training.recipe import Recipe

    def make(*phases: dict[str, Any], **changes: Any) -> Recipe:
        raw = {
            "model": "pico",
            "phases": phases,
            "learning_rate": {"peak": 2e-3, "warmup_steps": 1},
            "max_seqlen": 32,
            "rows_per_step": 4,
            **changes,
        }
        return parse_config(Recipe, raw, where="test")

    return make


@pytest.fixture
def train(tmp_path: Path, training_data: TrainingData) -> Callable[..., Path]:
    """Train a recipe as `short_runs.train` does, in a store in the test's folder."""
    from short_runs import train

    def train_here(recipe: Recipe, store: Path | str = "", **how: Any) -> Path:
        return train(recipe, how.pop("data", training_data), tmp_path / store, **how)

    return train_here


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One uninterrupted run of the miniature study; its `root` is never to be changed."""
    return finished_study(tmp_path_factory, worker_id)


@pytest.fixture(scope="session")
def copied_root(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished study's root, for `root`."""
    return copy_root(finished, tmp_path_factory.mktemp("copied") / "root")


@pytest.fixture
def root(finished: Path, copied_root: Path) -> Iterator[Path]:
    """A copy of the finished study's root, to change; it is restored for the next test."""
    before = stamps(copied_root)
    yield copied_root
    restore_root(finished, copied_root, before)


@pytest.fixture(scope="session", autouse=True)
def all_heldout_tokens() -> Iterator[int]:
    """Held-out losses are of 128 tokens, in forked processes too; yields of how many by default."""
    from biphasic.training import heldout

    before = heldout.HELDOUT_TOKENS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heldout, "HELDOUT_TOKENS", 128)
        yield before


@pytest.fixture(scope="session", autouse=True)
def all_cores() -> Iterator[Callable[[], int]]:
    """Corpora are tokenised here where no test says otherwise: tokenizer processes start slowly.

    Yields what counts the cores by default.
    """
    from biphasic.data.building import build

    before = build.num_cores
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "num_cores", lambda: 1)
        yield before


@pytest.fixture(scope="session", autouse=True)
def one_worker() -> Iterator[None]:
    """Fine-tunings run in this process where no test asks for several."""
    from biphasic.study.run import run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "default_workers", lambda *_, **__: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def known_speed() -> Iterator[None]:
    """The speed of this machine is given, as measuring it takes longer than most tests."""
    from biphasic.evaluation import evaluate
    from biphasic.study.sizing import estimate, speed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "speed_here", lambda _: estimate.Speed(1e11, 2))
        for module in (evaluate, speed):
            patch.setattr(module, "measure_speed", lambda *_: speed.Measured(1e11, 1))
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_of_devices() -> Iterator[None]:
    """Seeds do not wait for devices that are absent, each with the text of the whole stack."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda _: None)
        yield


@pytest.fixture
def warm() -> Iterator[None]:
    """Processes are forked from this one, which saves their imports."""
    with forking():
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have empty drawings, in forked processes too: drawing takes most of their time."""
    draw_nothing(monkeypatch)


@pytest.fixture
def rendered() -> None:
    """Reports have their page."""


@pytest.fixture
def unrendered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are `undrawn`, and have an empty page unless a test asks for `rendered`."""
    (draw_nothing if "rendered" in request.fixturenames else render_nothing)(monkeypatch)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the check of exports, which takes a fresh process."""
    from biphasic.export import write
    from biphasic.export.check import Reloaded

    found = Reloaded({"hidden states": 3e-7, "hidden states in a padded batch": 2e-7}, "none")
    monkeypatch.setattr(write, "check_export", lambda *_, **__: found)


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are not probed before they train, which takes longer than a few steps of small ones.

    In forked processes, too. Probes are tested in unit/model and parity.
    """
    probe_nothing(monkeypatch)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, within this process."""
    return Cli(monkeypatch, capsys)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that all clocks show, in seconds; tests let it pass."""
    shown = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: shown[0])
    return shown


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute on one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
