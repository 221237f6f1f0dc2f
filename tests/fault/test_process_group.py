"""Gangs of two processes: what one of them meets ends all, and nothing that is saved is lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import psutil
import pytest
import torch

import faulty
from biphasic import pretrain
from biphasic.data.building.build import RECORD
from biphasic.errors import DataError, DoneElsewhereError, LostRankError, StoppedError
from biphasic.execution.job import Progress
from biphasic.execution.ranks import TIMEOUT, Heartbeats
from biphasic.execution.slots import Nodes
from biphasic.files import read_json, write_json
from biphasic.store import complete_folder
from biphasic.study.inputs.corpus import DataPaths
from biphasic.study.jobs import TrainJob
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage, TrainingData
from faulty import PATIENCE, checkpoint_of
from mini_study import has_ended
from other_user import as_other_user, can_connect, needs_root
from warm import forking, probe_nothing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm", "unprobed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="forks its ranks, as CUDA cannot"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc"),
]

STEPS = 24
RUN = """
import sys
from biphasic.study.jobs import TrainJob

TrainJob.model_validate_json(sys.argv[1]).run(lambda _: None)
"""


@pytest.fixture
def ranks(tmp_path, monkeypatch) -> Path:
    """A folder in which ranks note their process ids; they meet with what `GANG_FAULT` says."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    monkeypatch.setenv("GANG_FOLDER", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture(scope="module")
def text(training_data: TrainingData, tmp_path_factory) -> Path:
    """The tests' corpus, as `biphasic corpus build` leaves one."""
    folder = tmp_path_factory.mktemp("text")
    with complete_folder(folder / "tokenizer") as partial:
        training_data.tokenizer.save(partial)
    (folder / "train").symlink_to(training_data.corpus.folder)
    (folder / "heldout").symlink_to(training_data.heldout.folder)
    write_json(folder / RECORD, {"origin": {"source": "synthetic"}})
    return folder


@pytest.fixture(scope="module")
def make_job(make_recipe, text) -> Callable[..., TrainJob]:
    """Return jobs of two processes: `make_job(store)`."""

    def make(store: Path, *, steps: int = STEPS) -> TrainJob:
        half = {"objective": f"{faulty.__file__}:Faulty", "steps": steps // 2}
        phases = [{**half, "causal": True}, {**half, "causal": False, "first": steps // 2}]
        paths = DataPaths(**{name: text / name for name in ("tokenizer", "train", "heldout")})
        recipe = make_recipe(*phases, precision="fp32")
        return TrainJob(
            id=Lineage(recipe, paths.open().fingerprint).identities[-1],
            label="a process group",
            store=store,
            data=paths,
            recipe=recipe,
            start=0,
            end=steps,
            checkpoint_every=2,
            heldout_every=4,
            tensorboard=None,
            compute=ComputeConfig(processes=2),
        )

    return make


@pytest.fixture(scope="module")
def uninterrupted(make_job, text, tmp_path_factory) -> Path:
    """The state of a run of two ranks that meet with nothing."""
    root = tmp_path_factory.mktemp("uninterrupted")
    with forking(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        probe_nothing(patch)
        state = pretrain(
            make_job(root).recipe,
            corpus={"folder": str(text)},
            root=root,
            checkpoint_every=0,
            heldout_every=4,
            compute={"processes": 2},
        )
    assert read_json(state / "state.json")["compute"]["processes"] == 2
    return state


def content(folder: Path) -> dict[str, object]:
    """Return all of a state that must be equal: everything but times."""
    details = read_json(folder / "state.json")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("tokens_per_second", None)
    names = ("model.safetensors", "optimizer.safetensors", "config.json")
    return {
        "details": {key: value for key, value in details.items() if key != "seconds"},
        "metrics": lines,
        **{name: (folder / name).read_bytes() for name in names},
    }


def both_have_ended(ranks: Path, *, within: float = 5) -> bool:
    pids = [int((ranks / f"pid-{rank}").read_text()) for rank in (0, 1)]
    return all(has_ended(pid, within=within) for pid in pids)


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def silent(_: Progress) -> None:
    pass


def test_interrupted_in_every_way_equals_uninterrupted(
    make_job, uninterrupted, ranks, tmp_path, monkeypatch
):
    job, reports = make_job(tmp_path / "store"), []

    # One rank is killed: the other ends, and the caller gets an error.
    monkeypatch.setenv("GANG_FAULT", "kill")
    with pytest.raises(LostRankError):
        job.run(silent)
    assert checkpoint_of(job.store) == 6
    assert both_have_ended(ranks)

    # The process between is killed: its ranks end at once, and the caller gets an error.
    def kill_node(progress: Progress) -> None:
        reports.append(progress)
        if len(reports) == 1:
            os.kill(parent_of(int((ranks / "pid-1").read_text())), signal.SIGKILL)

    monkeypatch.setenv("GANG_FAULT", "slow")
    with pytest.raises(LostRankError, match=r"^one of 2 processes "):
        job.run(kill_node)
    assert both_have_ended(ranks)
    assert checkpoint_of(job.store) < STEPS

    # The process that started the process group is killed: the ranks end at once.
    with subprocess.Popen([sys.executable, "-c", RUN, job.model_dump_json()]) as parent:
        end = time.monotonic() + PATIENCE
        while checkpoint_of(job.store) < 10:
            assert parent.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    assert both_have_ended(ranks, within=10)
    reached = checkpoint_of(job.store)
    assert 10 <= reached < STEPS

    # One rank gets a scheduler's signal: all save what they have, though no checkpoint is due.
    reports.clear()

    def terminate(progress: Progress) -> None:
        reports.append(progress)
        if len(reports) == 1:
            os.kill(int((ranks / "pid-1").read_text()), signal.SIGUSR1)

    with pytest.raises(StoppedError):
        job.model_copy(update={"checkpoint_every": 0}).run(terminate)
    assert reached < checkpoint_of(job.store) < STEPS
    reached = checkpoint_of(job.store)

    # It is asked to stop: the ranks save what they have, whether a checkpoint is due or not.
    reports.clear()
    with pytest.raises(StoppedError, match="run again to resume"):
        job.run(reports.append, should_stop=lambda: bool(reports))
    assert reached < checkpoint_of(job.store) < STEPS
    assert reports[0].done == reached + 1
    told = [each for each in reports if each.done]
    assert all(each.total == STEPS and each.text.startswith("loss ") for each in told)

    monkeypatch.setenv("GANG_FAULT", "none")
    job.run(silent)
    assert content(job.store / "states" / job.id) == content(uninterrupted)
    assert not list((job.store / "progress").iterdir())
    assert not list(job.store.rglob(".partial-*"))


def test_the_error_of_any_rank_is_that_of_the_process_group(make_job, ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("GANG_FAULT", "error")
    job = make_job(tmp_path / "store")
    with pytest.raises(DataError, match=r"^row 7: made up by a test$"):
        job.run(silent)
    assert not (job.store / "states").exists()
    assert checkpoint_of(job.store) == 2
    assert both_have_ended(ranks)


def test_a_rank_that_hangs_is_named_with_its_step(make_job, ranks, tmp_path, monkeypatch):
    original = Heartbeats.tick

    def tick(heartbeats):
        """Let time pass once rank 1 hangs and rank 0 waits, however slow the machine is."""
        if (ranks / "hangs").exists() and heartbeats._beats[0].waits:
            original(heartbeats)

    monkeypatch.setattr(Heartbeats, "tick", tick)
    monkeypatch.setenv("GANG_FAULT", "hang")
    monkeypatch.setenv(TIMEOUT, "00:00:02")
    job = make_job(tmp_path / "store")
    expected = (
        r"^rank 1 has not moved since step 3 for \d\.\d s \(it was reading its rows\); "
        r"rank 0 waits for it in step 4; run again to resume from the latest checkpoint$"
    )
    with pytest.raises(LostRankError, match=expected):
        job.run(silent)
    assert checkpoint_of(job.store) == 2
    assert both_have_ended(ranks)


def listening_addresses(ancestor: int | None = None) -> list[tuple[str, int]]:
    """Return the TCP addresses at which descendants listen, of this process or of another."""
    found = []
    for process in psutil.Process(ancestor).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            sockets = process.net_connections(kind="tcp")
            found += [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
    return [(each.ip, each.port) for each in found]


@needs_root
def test_another_user_reaches_neither_ports_nor_files_of_ranks(
    make_job, ranks, tmp_path, monkeypatch
):
    monkeypatch.setenv("GANG_FAULT", "attack")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    attacks: list[Progress] = []

    def attack(progress: Progress) -> None:
        attacks.append(progress)
        if len(attacks) > 1:
            return
        addresses, folders = listening_addresses(), list(tmp_path.glob("biphasic-ranks-*"))
        assert folders
        assert {ip for ip, _ in addresses} == {"127.0.0.1"}
        with as_other_user(lambda: meddle(addresses, folders)):
            (ranks / "attacked").touch()

    def meddle(addresses: list[tuple[str, int]], folders: list[Path]) -> None:
        assert not [each for each in addresses if can_connect(each)]
        for folder in folders:
            with pytest.raises(PermissionError):
                list(folder.iterdir())

    job = make_job(tmp_path / "store", steps=8)
    # Ranks that divide weights have the ports of those that do not, and may have more.
    compute = job.compute.model_copy(update={"shard": "full"})
    job.model_copy(update={"compute": compute}).run(attack)
    assert attacks


def tell_ports(ports: IO[str], ancestor: int) -> None:
    """Write each port as soon as a rank listens at it, so that other tests' are left alone."""

    def tell() -> None:
        seen = set()
        while True:
            for port in {port for _, port in listening_addresses(ancestor)} - seen:
                seen.add(port)
                print(port, file=ports, flush=True)
            time.sleep(0.001)  # leaves the ranks their cores

    threading.Thread(target=tell, daemon=True).start()


def pester(ports: IO[str]) -> None:
    """Connect to ports as soon as they are known, and pretend to be a rank of gloo."""

    def connect_to_all() -> None:
        sockets = []
        for port in map(int, ports):
            with suppress(OSError):
                sockets.append(socket.create_connection(("127.0.0.1", port), timeout=1))
                sockets[-1].sendall(bytes(4096))

    threading.Thread(target=connect_to_all, daemon=True).start()


@needs_root
def test_another_user_who_connects_at_once_changes_nothing(
    make_job, uninterrupted, ranks, tmp_path, monkeypatch
):
    monkeypatch.setenv("GANG_FAULT", "none")
    job = make_job(tmp_path / "store")
    read, write = map(open, os.pipe(), "rw")
    telling = as_other_user(partial(tell_ports, write, os.getpid()), stays=True, user=0, group=0)
    pestering = as_other_user(partial(pester, read), stays=True)
    with read, write, telling, pestering:
        for _ in range(2):
            # They are refused when processes start, or gloo refuses what they send.
            with suppress(LostRankError, DoneElsewhereError):
                job.run(silent)
    with suppress(DoneElsewhereError):
        job.run(silent)
    assert content(job.store / "states" / job.id) == content(uninterrupted)


TWICE = """
import subprocess, sys

nodes = [subprocess.Popen(sys.argv[1:]) for _ in range(2)]
sys.exit(any([node.wait() for node in nodes]))
"""


def test_two_nodes_train_together(make_job, ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("GANG_FAULT", "none")
    nodes = Nodes(2, (sys.executable, "-c", TWICE), str(tmp_path))
    for name, value in nodes.environment().items():
        monkeypatch.setenv(name, value)
    job = make_job(tmp_path / "store", steps=4)
    job.run(silent)
    state = read_json(job.store / "states" / job.id / "state.json")
    assert state["compute"]["processes"] == 2


@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_full_disk_is_reported_in_one_line(make_job, ranks, tmp_path, monkeypatch, capfd, shard):
    monkeypatch.setenv("GANG_FAULT", "full disk")
    job = make_job(tmp_path / "store")
    compute = job.compute.model_copy(update={"shard": shard})
    with pytest.raises(OSError, match="File too large") as caught:
        job.model_copy(update={"compute": compute}).run(silent)
    assert caught.value.errno == errno.EFBIG
    assert "Traceback" not in capfd.readouterr().err
    assert both_have_ended(ranks)
    assert checkpoint_of(job.store) == 2
