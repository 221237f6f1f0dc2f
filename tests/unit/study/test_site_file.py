"""Site files: what they allow, what they say of groups, and first ones from sinfo."""

import os
from pathlib import Path

import pytest
import yaml

from biphasic.config import duration_seconds
from biphasic.errors import ConfigError
from biphasic.execution.cluster.site import Site, group_nodes, is_batch_id, load_site, site_text
from biphasic.study.run import jobset as jobset_module
from biphasic.study.run.jobset import Pods, jobset
from trivial_jobs import item


def written(path, **settings):
    path.write_text(yaml.safe_dump({"scheduler": "slurm", "jobs_per_node": 4, **settings}))
    return path


@pytest.mark.parametrize("name", ["slurm", "node", "cpu"])
def test_shipped_site_files_are_valid(name, pytestconfig):
    site = load_site(pytestconfig.rootpath / f"sites/{name}.yaml")
    assert site.num_slots == {"slurm": 32, "node": 16, "cpu": 128}[name]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partion": "gpu"}, "unknown key 'partion' (did you mean 'partition'?)"),
        ({"walltime": "12h"}, "walltime"),
        ({"gpus_per_node": 8}, "give either gpus_per_node or jobs_per_node"),
        ({"walltime": "00:05:00"}, "drain_minutes: more than half of walltime"),
        ({"ports": [55000, 54000]}, "two rising numbers"),
        ({"directives": ["#SBATCH --mem=0", "#SBATCH --time=02:00:00"]}, "set walltime instead"),
        ({"directives": ["#SBATCH -t 120"]}, "set walltime instead"),
        ({"scheduler": "pbs", "directives": ["#PBS -l walltime=2:00:00"]}, "set walltime instead"),
        ({"scheduler": "lsf", "directives": ["#BSUB -W 120"]}, "set walltime instead"),
        ({"partition": "gpu; rm -rf"}, "partition"),
        ({"setup": ["a\nb"]}, "setup"),
        ({"scheduler": "local", "nodes_per_block": 2}, "this machine is one node"),
        ({"poll_seconds": float("inf")}, "poll_seconds"),
        ({"idle_minutes": float("nan")}, "idle_minutes"),
        ({"heartbeat_seconds": 10**30}, "heartbeat_seconds"),
        ({"command_seconds": 10**30}, "command_seconds"),
        ({"jobs_per_node": "four"}, "jobs_per_node"),
        ({"account": "Größe"}, "account"),
        ({"partition": "-x"}, "partition"),
        ({"executor": "./hosts.py:Hosts"}, "hosts.py:Hosts, not a cluster"),
    ],
)
def test_a_wrong_site_file_is_one_clear_line(tmp_path, settings, message):
    with pytest.raises(ConfigError) as refused:
        load_site(written(tmp_path / "site.yaml", **settings))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_parsl_a_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("biphasic.execution.cluster.site.find_spec", lambda _: None)
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
        ("on", {"partition": "on", "walltime": "00:01:00", "drain_minutes": 0.25, "max_blocks": 1}),
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


def test_the_shipped_jobset_is_what_the_command_writes(pytestconfig):
    manifest = yaml.safe_load((pytestconfig.rootpath / "sites/jobset.yaml").read_text())
    pods = Pods("registry.example/biphasic:1", "runs", Path("/data"), gpus=1, parallelism=16)
    jobs = manifest["spec"]["replicatedJobs"]
    for number, job in enumerate(jobs):
        assert job["name"] == f"level-{number}"
        spec = job["template"]["spec"]
        [container] = spec["template"]["spec"]["containers"]
        written = jobset_module._job(
            container["command"], spec["completions"], gpus=number < len(jobs) - 1, pods=pods
        )
        assert job["template"] == written


def test_a_jobset_runs_levels_one_after_another(tmp_path):
    items = [
        item("trunk", slots=4),
        item("left", "trunk", slots=4),
        item("score", "trunk"),
        item("done-before", "elsewhere"),
        item("score-left", "left"),
    ]
    pods = Pods("image:1", "claim", mount=tmp_path, gpus=1, parallelism=2)
    manifest = jobset(
        "my_study", items, "report-1", folder=tmp_path, root=tmp_path / "runs", pods=pods
    )
    assert manifest["metadata"]["name"] == "my-study"
    jobs = manifest["spec"]["replicatedJobs"]
    lists = [(tmp_path / f"jobset/level-{n}.txt").read_text().split() for n in range(len(jobs))]
    assert lists == [
        ["trunk"], ["done-before"], ["left"], ["score"], ["score-left"], ["report-1"]
    ]  # fmt: skip
    assert [job["name"] for job in jobs] == [f"level-{n}" for n in range(6)]
    assert "dependsOn" not in jobs[0]
    assert jobs[3]["dependsOn"] == [{"name": "level-2", "status": "Complete"}]
    first = jobs[0]["template"]["spec"]
    assert (first["completions"], first["parallelism"]) == (1, 1)
    [container] = first["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert container["command"][:4] == ["biphasic", "job", "run", "--list"]
    [report] = jobs[-1]["template"]["spec"]["template"]["spec"]["containers"]
    assert "resources" not in report


@pytest.mark.parametrize(
    ("study", "name"),
    [
        ("paper.v2_big", "paper-v2-big"),
        ("2026", "study-2026"),
        ("a-", "a"),
        ("x" * 36, "x" * 36),
    ],
)
def test_names_of_studies_become_names_that_kubernetes_allows(tmp_path, study, name):
    assert name_of_jobset(study, tmp_path) == name


def name_of_jobset(study, folder):
    pods = Pods("image:1", "claim", mount=folder, gpus=0, parallelism=1)
    made = jobset(study, [item("one")], "report", folder=folder, root=folder / "runs", pods=pods)
    return made["metadata"]["name"]


def test_long_names_stay_apart(tmp_path):
    names = {name_of_jobset(f"{'a' * 60}{end}", tmp_path) for end in "bc"}
    assert len(names) == 2
    # level-100, Job 0, pod 99999 and five random characters follow.
    assert all(len(f"{name}-level-100-0-99999-abcde") <= 63 for name in names)


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
