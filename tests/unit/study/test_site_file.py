"""Site files: what they allow, what they say of groups, and first ones from sinfo."""

import os
import sys

import pytest
import yaml

from biphasic.config import duration_seconds
from biphasic.errors import ConfigError
from biphasic.execution.cluster.site import Site, group_nodes, is_batch_id, load_site, site_text


def written(path, **settings):
    path.write_text(yaml.safe_dump({"scheduler": "slurm", "jobs_per_node": 4, **settings}))
    return path


@pytest.mark.parametrize("name", ["slurm", "node", "cpu"])
def test_shipped_site_files_are_valid(name, pytestconfig):
    site = load_site(pytestconfig.rootpath / f"sites/{name}.yaml")
    assert site.num_slots == {"slurm": 32, "node": 16, "cpu": 128}[name]


def test_without_parsl_a_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "parsl", None)
    with pytest.raises(ConfigError, match=r"pip install 'parsl>="):
        load_site(written(tmp_path / "site.yaml"))


def test_slots_and_nodes_of_groups():
    site = Site(scheduler="slurm", gpus_per_node=8, jobs_per_gpu=2, max_blocks=3, nodes_per_block=2)
    assert (site.slots_per_node, site.num_slots) == (16, 96)
    # A process of a group has a GPU to itself.
    assert [group_nodes(site, count) for count in (1, 8, 16, 24)] == [0, 1, 2, 3]


def test_identifiers_of_batch_jobs_are_no_options():
    assert all(map(is_batch_id, ["17", "17_3", "4711.server", "12[1]"]))
    assert not any(map(is_batch_id, ["", "-u", "1 2", "1;2"]))


SINFO = """\
cpu*|infinite|128|(null)|40
gpu|3-12:00:00|64|gpu:a100:8(S:0-1)|20
gpu|3-12:00:00|48+|gpu:4|2
tiny|30:00|4|(null)|1
on|1:00|8|(null)|0
mig|n/a|64|gpu:1g.5gb:7(S:0,2),shard:8|1
long|400-00:00:00|64|gpumem:80G,gpu:2,gpu:h100|1
odd|UNLIMITED|64|(null)|1
"""


def fake_sinfo(monkeypatch, folder, printed: str) -> None:
    (folder / "printed").write_text(printed)
    command = folder / "sinfo"
    command.write_text(f"#!/bin/sh\nexec cat '{folder}/printed'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (None, {"partition": "cpu", "jobs_per_node": 128, "walltime": "24:00:00", "max_blocks": 4}),
        ("gpu", {"gpus_per_node": 4, "jobs_per_gpu": 1, "walltime": "84:00:00", "max_blocks": 4}),
        ("tiny", {"jobs_per_node": 4, "walltime": "00:30:00", "max_blocks": 1}),
        ("on", {"partition": "on", "walltime": "00:01:00", "max_blocks": 1}),
        ("mig", {"gpus_per_node": 7, "walltime": "24:00:00"}),
        ("long", {"gpus_per_node": 3, "walltime": "168:00:00"}),
        ("odd", {"walltime": "24:00:00"}),
    ],
)
def test_a_first_site_file_follows_sinfo(tmp_path, monkeypatch, partition, expected):
    fake_sinfo(monkeypatch, tmp_path, SINFO)
    path = tmp_path / "site.yaml"
    path.write_text(site_text(partition))
    load_site(path)
    settings = yaml.safe_load(path.read_text())
    assert expected.items() <= settings.items()


@pytest.mark.parametrize("line", ["Segmentation fault", "a|b|c|d|e", ""])
def test_what_sinfo_should_not_print_is_one_line(monkeypatch, tmp_path, line):
    fake_sinfo(monkeypatch, tmp_path, f"{line}\n" if line else "")
    with pytest.raises(ConfigError, match=r"unreadable line|lists no partition"):
        site_text(None)


def test_without_slurm_there_is_no_first_site_file(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="sinfo: not found"):
        site_text(None)


def test_lists_of_jobs(tmp_path, cli):
    path = tmp_path / "level-0.txt"
    path.write_bytes(b"a\r\nb\r\n")

    def error(*options):
        return cli("job", "run", "--list", path, "--root", tmp_path / "root", *options)[2]

    for index, job in enumerate("ab"):  # neither exists
        assert f"{job}.json: no such job" in error("--index", str(index))
    for options in ((), ("--index", "2")):
        assert f"--index: give a line of {path}, from 0 to 1" in error(*options)
    path.write_text("")
    assert f"--list {path}: has no jobs" in error("--index", "0")


@pytest.mark.parametrize("text", ["12h", "1:2:3", "00:99:00", "-1:00:00"])
def test_times_are_hours_minutes_seconds(text, cli):
    assert duration_seconds("11:50:00") == 42600
    code, _, err = cli("pretrain", "recipe.yaml", "--max-time", text)
    assert (code, "--max-time" in err, "HH:MM:SS" in err) == (2, True, True)
