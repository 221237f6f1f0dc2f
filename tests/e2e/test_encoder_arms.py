"""Arms that are finished encoders: compared as they are, with tokenizers of their own."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from biphasic.model.loading.hub import fetch_model
from biphasic.store import RESULT, Store
from families import save_family
from mini_study import STUDY, arms, snapshot, write_custom_tasks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "unprobed")]

TASK = {"name": "first-word", "source": "sc:own/first-word"}


@pytest.fixture
def encoder(tmp_path, tokenizer):
    """A small BERT, whose tokenizer is not that of the study's corpus."""
    return save_family("bert", tmp_path / "theirs", tokenizer=tokenizer)


def write(folder, *extra, **changes):
    """Write a study of the mini study's MLM arm and of further arms."""
    write_custom_tasks(folder / "own")
    [mlm] = [arm for arm in STUDY["arms"] if arm["name"] == "mlm"]
    study = {**STUDY, "arms": [mlm, *extra], "tasks": [TASK], **changes}
    path = folder / "mini.yaml"
    path.write_text(yaml.safe_dump(study), "utf-8")
    return path


def rows(root):
    with (root / "mini/report/results.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_finished_encoder_is_compared_with_what_a_study_trains(root, encoder, tmp_path, cli):
    before = snapshot(root / "store/states")
    theirs = {"name": "theirs", "label": "Theirs", "encoder": {"pretrained": "theirs"}}
    file = write(tmp_path, theirs, compare=[{"arms": ["mlm", "theirs"]}])
    planned = cli("study", "plan", file, "--root", root)[1]
    [line] = [line for line in planned.splitlines() if line.lstrip().startswith("theirs ")]
    assert str(encoder) in line
    code, printed, err = cli("study", "run", file, "--root", root, "--workers", "1")
    assert code == 0, err
    assert "Theirs" in printed
    assert snapshot(root / "store/states") == before  # nothing was trained or copied
    scored = {(row["arm"], row["seed"]) for row in rows(root) if row["task"] == "first-word"}
    baselines = {("floor:majority", "0"), ("reference:bag-of-words", "0")}
    assert scored == {
        *baselines,
        *((arm, seed) for arm in ("mlm", "theirs") for seed in ("0", "1")),
    }
    assert "theirs" not in {row["arm"] for row in rows(root) if row["task"] == "pretraining"}
    assert arms(root)["theirs"]["state"] == fetch_model(encoder).identity
    page = (root / "mini/report/report.html").read_text("utf-8")
    assert "has not been trained" not in page
    assert (root / "mini/report/problems.csv").read_text().count("\n") == 1
    code, printed, err = cli("study", "verify", root / "mini")
    assert code == 0, printed + err
    assert "theirs" in cli("study", "status", root / "mini")[1]

    # `evaluate` names its results by the same facts, so it computes none again.
    results = snapshot(root / "store/finetunes")
    protocol = STUDY["finetuning"]["protocol"]
    settings = [word for name in protocol for word in ("--set", f"{name}={protocol[name]}")]
    code, printed, err = cli(
        "evaluate", encoder, "--task", f"sc:{tmp_path}/own/first-word", "--root", root,
        "--seed", "0", "--seed", "1", "--learning-rate", "5e-4", *settings,
    )  # fmt: skip
    assert code == 0, err
    assert err.count("few steps of fine-tuning: first-word (") == 1
    assert snapshot(root / "store/finetunes") == results

    (encoder / "config.json").write_text(
        json.dumps({**json.loads((encoder / "config.json").read_text()), "layer_norm_eps": 1e-6})
    )
    printed = cli("study", "plan", file, "--root", root)[1]
    assert "2 of 4 results" in printed  # two are of the model as it was


def test_a_study_of_finished_encoders_alone_needs_no_recipe_and_reads_no_corpus(
    tmp_path, tokenizer, cli, monkeypatch
):
    write_custom_tasks(tmp_path / "own")
    finetuning = STUDY["finetuning"]
    names = ("bert", "owner/modernbert")
    commit = "0" * 40
    hub = tmp_path / "hub/models--owner--modernbert"
    save_family("bert", tmp_path / "bert", tokenizer=tokenizer)
    save_family("modernbert", hub / "snapshots" / commit, tokenizer=tokenizer)
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    modules = [{"idx": 0, "path": "", "type": "models.Transformer"},
               {"idx": 1, "path": "1_Pooling", "type": "models.Pooling"}]  # fmt: skip
    (tmp_path / "bert/modules.json").write_text(json.dumps(modules))
    (tmp_path / "bert/1_Pooling").mkdir()
    (tmp_path / "bert/1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    study = {
        "name": "choose",
        "title": "Which one?",
        "arms": [{"name": Path(n).name, "encoder": {"pretrained": n}} for n in names],
        "tasks": [TASK, {"name": "lookup", "source": "zs:own/lookup"}],
        "finetuning": finetuning,
    }
    file, root = tmp_path / "choose.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump(study), "utf-8")
    code, printed, err = cli("study", "run", file, "--root", root, "--workers", "1")
    assert code == 0, err
    assert all(f"│ {name} " in printed for name in ("bert", "modernbert"))
    [note] = [line for line in err.splitlines() if "pooling=first" in line]
    assert "arm 'bert' on lookup" in note
    assert not (root / "store/data").exists()
    assert not (root / "store/states").exists()
    folder = root / "choose"
    shutil.rmtree(folder / "report")
    assert cli("study", "report", folder)[0] == 0
    assert cli("study", "verify", folder)[0] == 0
    assert "6 of 6 results" in cli("study", "plan", file, "--root", root)[1]
    assert "choose: finished" in cli("study", "status", folder)[1]
    code, _, err = cli("study", "run", write(tmp_path, *study["arms"], recipe=None), "--root", root)
    assert (code, "recipe" in err) == (2, True)


def test_encoders_that_cannot_read_a_task_stop_a_study_before_work(
    root, encoder, tokenizer, tmp_path, cli
):
    finetuning = {**STUDY["finetuning"], "protocol": {"max_seqlen": 64}}
    save_family("bert", tmp_path / "short", tokenizer=tokenizer, max_position_embeddings=32)
    short = {"name": "short", "encoder": {"pretrained": str(tmp_path / "short")}}
    file = write(tmp_path, short, finetuning=finetuning)
    code, _, err = cli("study", "run", file, "--root", root)
    assert code != 0
    assert "arm 'short'" in err
    assert "max_seqlen 64" in err
    missing = {"name": "gone", "encoder": {"pretrained": str(tmp_path / "gone")}}
    code, _, err = cli("study", "run", write(tmp_path, missing), "--root", root)
    assert code != 0
    assert "gone" in err
    trained = {"name": "more", "encoder": {"pretrained": "theirs"},
               "phases": [{"objective": "mlm", "steps": 1}]}  # fmt: skip
    code, _, err = cli("study", "plan", write(tmp_path, trained), "--root", root)
    assert (code, "arms.1" in err, "recipe.model" in err) == (2, True, True)


def test_cleaning_keeps_their_results_and_the_names_of_states(root, encoder, tmp_path, cli):
    theirs = {"name": "theirs", "encoder": {"pretrained": "theirs"}}
    file = write(tmp_path, theirs)
    assert cli("study", "run", file, "--root", root, "--workers", "1")[0] == 0
    record = json.loads((root / "mini/study.json").read_text())
    runs = {run["id"] for run in (*record["runs"], *record["baselines"])}
    assert len(record["baselines"]) == 2
    assert cli("study", "clean", "--root", root, "--delete")[0] == 0
    assert runs == Store(root / "store").walk(RESULT)
    assert (root / "store/states/by-name/mini/mlm/state.json").is_file()
