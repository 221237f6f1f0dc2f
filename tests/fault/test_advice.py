"""What messages about damage say to do is done here, word for word; it ends well."""

import json
import re
import shutil
from pathlib import Path

import pytest

from biphasic.errors import DataError
from biphasic.model.contract import model_limits
from biphasic.study.pins import read_pins, record_pin
from biphasic.tasks.embedding import Choices, embedding_settings
from biphasic.tasks.folder import read_description
from biphasic.tasks.labels_and_qrels import read_labels
from biphasic.tasks.use import read_head
from mini_study import flip, results, truncate, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered", "unprobed")]

ADVICE = {
    "delete the folder": r"delete the folder (?P<folder>/\S+)",
    "delete its folder": r"delete th(?:e|is) folder and",
    "delete it": "delete it",
    "run": r"'biphasic study run' (with its study file|creates them)"
    r"|run the study again|run its study file again",
    "restore it": "restore it",
}

NOTICED = re.compile(r"^error: |damaged|wrong size|missing; ")


def empty(path):
    path.write_text("[]")


class Reader:
    """Somebody who reads one message and does what it says."""

    def __init__(self, root, study, finished, cli):
        self.root, self.study, self.finished, self.cli = root, study, finished, cli

    def ask(self, command):
        target = self.study if command in {"run", "plan"} else self.root / "mini"
        options = {"report": (), "run": ("--workers", "1")}.get(command, ())
        where = () if command == "report" else ("--root", self.root)
        return self.cli("study", command, target, *where, *options)

    def follow(self, message, choice):
        """Do what a message says; where it leaves a choice, do `choice`."""
        path = re.search(r"(/\S+?):", message)  # none where results are missing
        named = Path(path[1]) if path else self.root
        kinds = [kind for kind, pattern in ADVICE.items() if re.search(pattern, message)]
        assert kinds, f"no advice: {message}"
        kind = choice if choice in kinds else kinds[0]
        if kind == "delete the folder":
            shutil.rmtree(re.search(ADVICE[kind], message)["folder"].rstrip(","))
        elif kind == "delete its folder":
            shutil.rmtree(named.parent)
        elif kind == "delete it":
            named.unlink()
        elif kind == "restore it":
            shutil.copy(self.finished / "root" / named.relative_to(self.root), named)
        if kind == "run" or "run the study again" in message:
            code, _, err = self.ask("run")
            assert code == 0, err


def the(pattern):
    return lambda root: sorted(root.glob(pattern))[0]


CASES = {
    "settings": ("status", the("mini/config.json"), truncate),
    "settings, a list": ("status", the("mini/config.json"), empty),
    "progress": ("status", the("mini/progress.json"), truncate),
    "a state's record": ("status", the("store/states/*/state.json"), truncate),
    "a state's weights": ("status", the("store/states/*/model.safetensors"), truncate),
    "a result": ("status", the("store/finetunes/*/result.json"), truncate),
    "a result, a list": ("status", the("store/finetunes/*/result.json"), empty),
    "no scores": ("status", the("store/finetunes/*/scores.parquet"), Path.unlink),
    "a corpus's record": ("verify", the("store/data/*/built.json"), truncate),
    "a corpus's record, a list": ("run", the("store/data/*/built.json"), empty),
    "a corpus's details": ("plan", the("store/data/*/train/corpus.json"), truncate),
    "no details of a corpus": ("plan", the("store/data/*/train/corpus.json"), Path.unlink),
    "labels of a task in the store": ("plan", the("store/tasks/*/labels.json"), truncate),
    "description of a task in the store": ("plan", the("store/tasks/*/task.json"), truncate),
    "the study's record": ("report", the("mini/study.json"), truncate),
    "no record of the study": ("report", the("mini/study.json"), Path.unlink),
    "the page": ("status", the("mini/report/report.html"), truncate),
    "no table": ("status", the("mini/report/results.csv"), Path.unlink),
    "a bit of the weights": ("verify", the("store/states/*/model.safetensors"), flip),
    "a bit of the table": ("verify", the("mini/report/results.csv"), flip),
    "a bit of the study's record": ("verify", the("mini/study.json"), flip),
}
DELETED = {
    "a corpus's record": ("run", the("store/data/*/built.json"), truncate),
}


@pytest.mark.parametrize(
    ("case", "choice"),
    [
        *((case, "restore it") for case in CASES.values()),
        *((case, "delete the folder") for case in DELETED.values()),
    ],
    ids=[*CASES, *(f"{name}, deleted" for name in DELETED)],
)
def test_every_piece_of_advice_ends_well(finished, root, tmp_path, cli, case, choice):
    command, find, damage = case
    reader = Reader(root, write_study(tmp_path), finished, cli)
    damage(find(reader.root))
    errors = []
    for _ in range(4):
        code, out, err = reader.ask(command)
        lines = [line for line in (out + err).splitlines() if NOTICED.search(line)]
        if not lines:
            break
        errors.append(lines[0])
        reader.follow(lines[0], choice)
    assert errors, "nobody noticed"
    assert (code, lines) == (0, []), errors


def test_a_report_that_was_damaged_is_written_again(finished, root, tmp_path, cli):
    study = write_study(tmp_path)
    for name, damage in (
        ("report/results.csv", flip),
        ("report/figures/loss.svg", Path.unlink),
        ("report/made-from.json", empty),
    ):
        damage(root / "mini" / name)
        code, out, err = cli("study", "run", study, "--root", root, "--workers", "1")
        assert (code, "all finished" in out) == (0, True), err
        content = (root / "mini" / name).read_bytes()
        if name.endswith(".csv"):
            assert content == results(finished / "root")
        assert cli("study", "verify", root / "mini", "--root", root)[0] == 0


def test_verify_names_all_that_is_damaged_and_writes_nothing(root, cli):
    damaged = [
        the("store/states/*/optimizer.safetensors")(root),
        the("store/finetunes/*/scores.parquet")(root),
        the("store/data/*/heldout/tokens-00000.bin")(root),
        the("store/tasks/builtin-*/pydocs-ir/corpus.jsonl")(root),
        root / "mini/report/table.csv",
    ]
    for path in damaged:
        flip(path)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    code, out, err = cli("study", "verify", "mini", "--root", root)
    assert code == 1
    named = [line for line in err.splitlines() if line.startswith("damaged: ")]
    assert len(named) == len(damaged), named
    for path in damaged:
        [line] = [line for line in named if str(path) in line]
        assert "again" in line
    assert "all intact" not in out
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_verify_distinguishes_missing_from_damaged_items(root, cli):
    shutil.rmtree(the("store/finetunes/*")(root))
    code, out, _ = cli("study", "verify", "--root", root)
    assert code == 0
    assert "1 fine-tunings missing; 'biphasic study run' creates them" in out


def test_reports_name_results_that_lost_a_file(root, cli):
    the("store/finetunes/*/scores.parquet")(root).unlink()
    the("store/states/*/model.safetensors")(root).write_bytes(b"")
    assert cli("study", "report", root / "mini")[0] == 0
    problems = (root / "mini/report/problems.csv").read_text()
    assert "scores.parquet: missing; delete the folder" in problems
    assert "model.safetensors: wrong size" in problems


INTERRUPTED = """
from biphasic import report_study
from biphasic.execution.executor import ExecutorConfig

class Interrupted(ExecutorConfig):
    reports: bool = False
    num_slots = property(lambda _: 1)

    def start(self, work):
        if self.reports:
            report_study(work.folder)
        raise KeyboardInterrupt
"""


def run_interrupted(study, root, cli, **settings):
    """Run a study on an executor that is interrupted as it starts."""
    (study.parent / "stop.py").write_text(INTERRUPTED)
    site = study.parent / "site.yaml"
    site.write_text(json.dumps({"executor": "./stop.py:Interrupted", **settings}))
    code, _, err = cli("study", "run", study, "--root", root, "--site", site)
    assert code == 130, err


def test_an_edited_study_keeps_no_old_report_while_it_runs(root, tmp_path, cli, rendered):
    arms = [{"name": "longer", "phases": [{"objective": "clm", "steps": 20}]}]
    study = write_study(tmp_path, title="Another question", arms=arms, tasks=[])
    run_interrupted(study, root, cli)
    page = (root / "mini/report/report.html").read_text()
    assert "Another question" in page
    assert "Miniature" not in page


def test_a_study_can_be_reported_while_it_runs_for_the_first_time(root, tmp_path, cli):
    study = write_study(tmp_path, name="other", tasks=[])
    shutil.rmtree(root / "store/states")
    run_interrupted(study, root, cli, reports=True)
    problems = (root / "other/report/problems.csv").read_text()
    assert "has not been trained" in problems


def write_foreign(folder):
    folder.mkdir(exist_ok=True)
    files = ("labels.json", "modules.json", "tokenizer_config.json", "task.json", "head.json")
    for name in files:
        (folder / name).write_text('{"a": ')
    (folder / "config.json").write_text(
        '{"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 32,'
        ' "num_attention_heads": 2, "intermediate_size": 8}'
    )
    return folder


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("labels.json", lambda folder: read_labels(folder / "labels.json")),
        ("task.json", read_description),
        ("head.json", read_head),
        ("modules.json", lambda folder: embedding_settings(folder, Choices())),
        ("tokenizer_config.json", model_limits),
    ],
)
def test_no_remedy_deletes_a_user_file(tmp_path, name, read):
    folder = write_foreign(tmp_path / "theirs")
    with pytest.raises(DataError) as caught:
        read(folder)
    assert f"{folder / name}: damaged JSON" in str(caught.value)
    assert str(caught.value).endswith("; correct it or restore it")


def test_a_damaged_pin_is_rewritten_by_the_same_command(tmp_path):
    record_pin(tmp_path, "a", made_by="pretrain", states=["a"])
    [path] = (tmp_path / "pins").iterdir()
    path.write_text("{")
    with pytest.raises(DataError, match="Run the same command again"):
        read_pins(tmp_path)
    record_pin(tmp_path, "a", made_by="pretrain", states=["a"])
    [pin] = read_pins(tmp_path)
    assert pin.states == ("a",)
