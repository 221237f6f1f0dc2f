"""Edited code: a line says that what other code made is reused, and `--fresh` makes it again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import biphasic
from biphasic import numerics
from biphasic.study.plan.finished import OtherCode
from biphasic.study.resolve import resolve
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from mini_study import STUDY, arms, snapshot, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered", "unprobed")]

PACKAGE = Path(biphasic.__file__).parent
NOTE = "made by other code than the running one"
RECIPE = """
model: pico
max_seqlen: 32
rows_per_step: 2
learning_rate: {peak: 1.0e-3}
phases: [{objective: mlm, steps: 2}]
"""


class EveryCode(dict):
    """Gives every code one hash."""

    def get(self, *_: object) -> str:
        return "e" * 64


@pytest.fixture
def edited(monkeypatch):
    """Let the running code be edited, in forked processes too."""
    known = {"bytes": EveryCode(), "pretraining": {}, "finetuning": {}}
    monkeypatch.setattr(numerics, "known_code", lambda: known)
    numerics.running_code.cache_clear()
    yield
    numerics.running_code.cache_clear()


def write_part(folder: Path) -> Path:
    """Write the part of the finished study with one task, an arm of one segment, and one of two."""
    parts = {"arms": {"mlm", "clm-50-mlm-50"}, "tasks": {"first-word"}}
    chosen = {key: [each for each in STUDY[key] if each["name"] in parts[key]] for key in parts}
    return write_study(folder, **chosen)


def records(root: Path, kind: str, name: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in (root / "store" / kind).glob(f"*/{name}")]


@pytest.mark.usefixtures("edited")
def test_a_study_says_so_in_one_line_and_makes_it_again(root, tmp_path, cli):
    file = write_part(tmp_path)
    store = snapshot(root / "store/states")
    code, _, message = cli("study", "run", file, "--root", root, "--workers", "1")
    [line] = [line for line in message.splitlines() if NOTE in line]
    assert "--fresh" in line
    assert code == 0
    assert snapshot(root / "store/states") == store

    _, _, message = cli("study", "report", root / "mini")
    assert [line.count("--fresh") for line in message.splitlines() if NOTE in line] == [1]
    assert NOTE in (root / "mini/report/problems.csv").read_text()

    code, _, message = cli("study", "run", file, "--root", root, "--workers", "1", "--fresh")
    assert code == 0
    assert "deleting what other code made" in message
    used = {segment for arm in arms(root).values() for segment in (arm["state"], *arm["segments"])}
    states = {state["identity"]: state for state in records(root, "states", "state.json")}
    assert {tuple(states[name]["code"]) for name in used} == {("e" * 64,)}
    results = [r for r in records(root, "finetunes", "result.json") if r["state"] in used]
    # Those of tasks that this part of the study lacks are gone too: they were of other weights.
    assert {result["code"] for result in results} == {"e" * 64}

    _, _, message = cli("study", "run", file, "--root", root, "--workers", "1", "--fresh")
    assert NOTE not in message
    assert "deleting" not in message
    assert NOTE not in (root / "mini/report/problems.csv").read_text()


@pytest.mark.usefixtures("edited")
def test_an_evaluation_says_so(root, tmp_path, cli):
    write_part(tmp_path)
    model = root / "store/states" / arms(root)["mlm"]["state"]
    again = ("--seed", "0", "--learning-rate", "5e-4", "--set", "max_steps=2", "--root", root)
    numerics.running_code.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EveryCode, "get", lambda *_: "f" * 64)
        assert cli("evaluate", model, "--task", f"sc:{tmp_path}/own/first-word", *again)[0] == 0
    numerics.running_code.cache_clear()
    code, _, message = cli("evaluate", model, "--task", f"sc:{tmp_path}/own/first-word", *again)
    assert (code, message.count(f"{NOTE}: 1 result;"), "another --root" in message) == (0, 1, True)


def test_a_copy_with_an_edited_objective_trains_another_model(tmp_path, text_file, warm):
    copy = tmp_path / "src/biphasic"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    corpus = tmp_path / "corpus.yaml"
    corpus.write_text(json.dumps({"sources": [str(text_file)], "vocab_size": 320}))

    def pretrain(*options: str) -> tuple[str, str]:
        path = f"import sys; sys.path.insert(0, {str(copy.parent)!r})"
        program = f"{path}; from biphasic.cli.main import main; main()"
        ended = subprocess.run(
            [sys.executable, "-I", "-c", program, "pretrain", "recipe.yaml", "--corpus",
             str(corpus), "--root", "runs", "--heldout-every", "0", *options],
            capture_output=True, text=True, check=False, cwd=tmp_path,
            env={"PATH": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        folder = tmp_path / ended.stdout.strip()
        return (folder / "metrics.jsonl").read_text(), " ".join(ended.stderr.split())

    first, message = pretrain()
    assert NOTE not in message
    masking = copy / "objectives/masking.py"
    text = masking.read_text()
    masking.write_text("# An edited comment is no other code.\n" + text)
    again, message = pretrain()
    assert (again, NOTE in message) == (first, False)
    old = "flat[is_selected] = vocabulary.mask_id"
    assert old in text
    masking.write_text(text.replace(old, f"{old} + 1"))
    again, message = pretrain()
    assert (again, message.count(NOTE), "--fresh" in message) == (first, 1, True)
    fresh, message = pretrain("--fresh")
    assert fresh != first
    assert "deleting what other code made: 1 state" in message
    again, message = pretrain("--fresh")
    assert (again, "deleting" in message, NOTE in message) == (fresh, False, False)


@pytest.mark.usefixtures("edited")
def test_a_checkpoint_of_other_code_is_named_and_deleted(root, tmp_path, cli):
    file, state = write_part(tmp_path), arms(root)["mlm"]["state"]
    shutil.rmtree(root / "store/finetunes")
    checkpoint = root / f"store/progress/{state}-from-0/step-00000012"
    checkpoint.parent.mkdir(parents=True)
    (root / "store/states" / state).rename(checkpoint)
    study, console = Study(load_study(file), root), Console(quiet=True)
    plan = resolve(study, missing="build", console=console).plan
    assert OtherCode.of_plan(plan).checkpoints == (checkpoint,)
    plan = resolve(study, missing="build", console=console, fresh=True).plan
    assert not OtherCode.of_plan(plan)
    assert not checkpoint.exists()
