"""Damaged files: named, with what to do, exit code 2; and what to do helps."""

import json
import re
import shutil
from pathlib import Path

import pytest

from mini_study import arms, flip, results, snapshot, truncate, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered", "unprobed")]


def swap_two_tokens(path):
    """Give two tokens each other's ids: a vocabulary as good as the other, for other text."""
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[20:22]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(content))


def final_state(root, arm):
    return root / "store/states" / arms(root)[arm]["state"]


def in_corpus(name):
    return lambda root: next(root.glob(f"store/data/*/{name}"))


def in_tasks(name):
    return lambda root: next(root.glob(f"store/tasks/{name}"))


def in_state(name):
    def find(root):
        shutil.rmtree(root / "store/finetunes")  # so that states are needed
        return final_state(root, "mlm") / name

    return find


def in_shared_segment(name):
    """A state that a missing segment begins from."""

    def find(root):
        shutil.rmtree(final_state(root, "clm"))
        return root / "store/states" / arms(root)["clm"]["segments"][-2] / name

    return find


def in_progress(name):
    def find(root):
        arm = arms(root)["mlm"]["state"]
        checkpoint = root / f"store/progress/{arm}-from-0/step-00000010"
        shutil.copytree(root / "store/states" / arm, checkpoint)
        shutil.rmtree(root / "store/states" / arm)
        return checkpoint / name

    return find


def in_result(name):
    return lambda root: sorted(root.glob(f"store/finetunes/*/{name}"))[3]


DAMAGES = [
    (in_corpus("train/tokens-00000.bin"), truncate, "wrong size"),
    (in_corpus("train/tokens-00000.bin"), flip, "damaged"),
    (in_corpus("heldout/tokens-00000.bin"), flip, "damaged"),
    (in_corpus("train/lengths.npy"), flip, "damaged"),
    (in_corpus("tokenizer/tokenizer.json"), flip, "damaged"),
    (in_corpus("tokenizer/tokenizer.json"), swap_two_tokens, "tokenizer.json"),
    (in_corpus("tokenizer/tokenizer_config.json"), truncate, "wrong size"),
    (in_tasks("builtin-*/pydocs-sc/train.jsonl"), flip, "damaged"),
    (in_tasks("*/labels.json"), flip, "damaged"),
    (in_state("model.safetensors"), flip, "damaged"),
    (in_state("model.safetensors"), truncate, "wrong size"),
    (in_state("model.safetensors"), Path.unlink, "missing"),
    (in_state("manifest.json"), truncate, "damaged"),
    (in_shared_segment("optimizer.safetensors"), flip, "damaged"),
    (in_shared_segment("state.json"), truncate, "wrong size"),
    (in_progress("model.safetensors"), flip, "damaged"),
    (in_progress("metrics.jsonl"), truncate, "wrong size"),
    (in_result("result.json"), flip, "damaged"),
    (in_result("result.json"), truncate, "wrong size"),
    (in_result("scores.parquet"), flip, "damaged"),
]


@pytest.mark.parametrize("case", DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_file_is_named_before_anything_runs(root, tmp_path, cli, case):
    find, damage, word = case
    path = find(root)
    damage(path)
    before = snapshot(root / "store")
    code, out, err = cli("study", "run", write_study(tmp_path), "--root", root)
    assert code == 2
    [line] = err.splitlines()
    assert line.startswith("error: ")
    assert str(path.resolve()) in line
    assert word in line
    assert "delete" in line
    assert "again" in line
    assert out == ""
    assert snapshot(root / "store") == before


@pytest.mark.parametrize("kind", ["finetunes", "states"])
def test_a_copy_of_another_one_s_folder_is_named_by_every_command(root, tmp_path, cli, kind):
    files = {"finetunes": "result.json", "states": "state.json"}
    one, other, *_ = sorted(path.parent for path in root.glob(f"store/{kind}/*/{files[kind]}"))
    shutil.rmtree(other)
    shutil.copytree(one, other)
    study = write_study(tmp_path)
    what = {"finetunes": "fine-tuning", "states": "state"}[kind]
    message = f"{other.resolve()}: holds {what} {one.name[:12]}, not {other.name[:12]}; delete"
    for command in (("run", study), ("verify", "mini"), ("status", "mini")):
        _, out, err = cli("study", *command, "--root", root)
        assert message in f"{out}{err}", command
        assert "all finished" not in f"{out}{err}"
        assert "intact" not in f"{out}{err}"


def test_following_the_remedies_gives_the_same_results(finished, root, tmp_path, cli):
    study = write_study(tmp_path)
    for path in (
        in_result("result.json")(root),
        in_corpus("heldout/tokens-00000.bin")(root),
        in_corpus("tokenizer/tokenizer.json")(root),
        in_tasks("builtin-*/pydocs-ir/corpus.jsonl")(root),
        final_state(root, "clm-50-mlm-50") / "model.safetensors",
    ):
        flip(path)
    for _ in range(6):
        code, _, err = cli("study", "run", study, "--root", root, "--workers", "1")
        if code == 0:
            break
        named = re.search(r"error: (/\S+?):", err)
        assert named, err
        shutil.rmtree(Path(named[1]).parent)
    assert code == 0, err
    assert results(root) == results(finished / "root")


def test_unfinished_folders_are_not_believed(finished, root, tmp_path, cli):
    study = write_study(tmp_path)
    result = in_result("result.json")(root)
    (result.parent / "manifest.json").unlink()
    result.write_text(result.read_text().replace("finished", "diverged"))
    code, _, err = cli("study", "run", study, "--root", root, "--workers", "1")
    assert (code, "1/1" in err) == (0, True), err
    assert results(root) == results(finished / "root")


def test_job_run_deletes_checkpoints_left_by_a_process_killed_before_that(finished, root, cli):
    job = final_state(root, "clm-50-mlm-50").name
    file = root / f"store/jobs/{job}.json"
    file.write_text(file.read_text().replace(str(finished / "root"), str(root)))
    left = root / f"store/progress/{job}-from-{json.loads(file.read_text())['start']}"
    (left / "step-00000008").mkdir(parents=True)
    code, out, err = cli("job", "run", job, "--root", root)
    assert (code, out.startswith("already done: ")) == (0, True), err
    assert not left.exists()
