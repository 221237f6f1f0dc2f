"""A study with an objective and an executor from files, in spawned workers and two ranks."""

import json

import pytest
import yaml

from biphasic.store import STATE, Store
from mini_study import run_command
from plugin_files import page_code, write_stride


def study(folder, **changes):
    raw = {
        "name": "own",
        "title": "An objective of one's own",
        "corpus": {"libraries": ["click"], "vocab_size": 400, "heldout_fraction": 0.3},
        "recipe": {
            "model": "pico",
            "max_seqlen": 32,
            "rows_per_step": 2,
            "precision": "fp32",
            "learning_rate": {"peak": 2e-3},
        },
        "arms": [
            {
                "name": "own",
                "phases": [
                    {"objective": "clm", "steps": 1},
                    {"objective": "./stride.py:Stride", "steps": 2, "every": 5},
                ],
            }
        ],
        **changes,
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_workers_and_ranks_have_the_code_and_a_report_needs_no_file(tmp_path):
    root, path = tmp_path / "root", write_stride(tmp_path)
    file = study(tmp_path, compute={"processes": 2})
    # What `nice` starts has not imported biphasic: it knows nothing but what the store says.
    (tmp_path / "hosts.py").write_text(page_code("Hosts"), encoding="utf-8")
    site = tmp_path / "site.yaml"
    site.write_text("{executor: './hosts.py:Hosts', hosts: [-n1, -n2], command: [nice]}")
    ran = run_command("study", "run", file, "--root", root, "--site", site)
    assert ran.returncode == 0, ran.stderr
    runner = json.loads((root / "own/progress.json").read_text())["runner"]
    assert runner["executor"].startswith("hosts.py:Hosts@")
    assert [path.name for path in root.glob("store/plugins/*/hosts.py")] == ["hosts.py"]
    [state] = (root / "store/states").glob("*/state.json")
    record = json.loads(state.read_text())
    assert [entry["objective"] for entry in record["ledger"]] == ["clm", "stride"]
    reference = record["recipe"]["phases"][1]["objective"]
    assert reference.startswith("stride.py:Stride@")
    assert record["plugins"] == {"stride": [reference]}
    assert "hosts" not in json.dumps(record["recipe"]) + json.dumps(record["ground"])

    path.unlink()
    report = root / "own/report/report.html"
    report.unlink()
    # These are forked from this process, which has not loaded the file either.
    made = run_command("study", "report", root / "own")
    assert made.returncode == 0, made.stderr
    assert reference in report.read_text(encoding="utf-8")
    assert "1/1" in run_command("study", "status", root / "own").stdout

    write_stride(tmp_path, ("[:: self.every]", "[1 :: self.every]"))
    plan = run_command("study", "plan", file, "--root", root, "--rate", "1e9").stdout
    assert "other code of stride.py:Stride (" in plan
    assert Store(root / "store").walk(STATE) == {state.parent.name}
