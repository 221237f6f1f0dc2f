"""Cleaning takes what no study needs, says so first, and can stop anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from biphasic.config import parse_config
from biphasic.errors import DataError, LockedError
from biphasic.files import digest, write_json
from biphasic.locks import LOCK, hold, lock_work
from biphasic.store import is_complete
from biphasic.study.inputs.corpus import recall, remember
from biphasic.study.maintenance import clean
from biphasic.study.pins import link_states, read_pins, readable_name, record_pin
from biphasic.study.resolve import resolve
from biphasic.study.run.record import settings_digest
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from small_root import fake_checkpoint, fake_result, fake_state, study_of


@pytest.fixture
def store(root) -> Path:
    return root / "store"


def names(found):
    return sorted(item.path.name for item in found.items)


def everything(folder):
    """Return every file with its size."""
    return {path: path.lstat().st_size for path in folder.rglob("*") if path.is_file()}


def planned(root):
    """Return the identities of the study's states and results."""
    kinds = ("states", "finetunes")
    return [sorted(path.name for path in (root / "store" / kind).iterdir()) for kind in kinds]


def test_what_studies_need_stays(root):
    before = everything(root)
    found = clean(root)
    assert names(found) == []
    assert found.studies == ("one",)
    assert everything(root) == before
    assert "nothing to delete" in "\n".join(found.lines())


def test_a_dry_run_lists_by_kind_and_deletes_nothing(root, store):
    fake_state(store, "useless", num_bytes=3_000_000)
    fake_result(store, "result", state="useless")
    fake_checkpoint(store, "useless")
    (store / "data/other").mkdir()
    (store / "tasks/other").mkdir()
    (store / "jobs/useless.json").write_text("{}")
    (store / "states/.partial-abc-123").mkdir()
    (root / "one/.partial-study.json-1").touch()
    before = everything(root)
    found = clean(root)
    kinds = [item.kind for item in found.items]
    assert kinds == [
        "fine-tunings",
        "checkpoints",
        "states",
        "corpora",
        "tasks",
        "job files",
        "leftovers",
        "leftovers",
    ]
    assert everything(root) == before
    text = "\n".join(found.lines())
    assert "nothing was deleted; add --delete" in text
    [state] = (item for item in found.items if item.kind == "states")
    assert state.num_bytes == sum(
        path.stat().st_size for path in state.path.rglob("*") if path.is_file()
    )
    assert "3 MB" in text

    assert names(clean(root, delete=True)) == names(found)
    assert not any(item.path.exists() for item in found.items)
    assert names(clean(root)) == []


def test_what_is_needed_survives_the_deletion_byte_for_byte(root, store):
    before = everything(root)
    fake_state(store, "useless")
    clean(root, delete=True)
    assert everything(root) == before


def test_ancestors_of_needed_states_stay(root, store):
    # Another study, since deleted, cut the arm at a state of its own; the curve leads through it.
    [states, _] = planned(root)
    fake_state(store, "grandparent")
    fake_state(store, "parent", parent="grandparent")
    folder = store / "states" / states[0]
    shutil.rmtree(folder)
    fake_state(store, states[0], parent="parent")
    fake_state(store, "child", parent=states[0])
    assert names(clean(root)) == ["child"]


def test_states_that_a_study_names_as_models_stay(root, store):
    config = Study.saved(root / "one").config
    for name in ("encoder", "start", "other"):
        fake_state(store, name)
    link_states(store, "gone", {"mlm": "encoder"}, say=print)
    raw = config.model_dump(exclude_unset=True) | {"name": "two"}
    raw["arms"] = [
        {"name": "e", "encoder": {"pretrained": str(store / "states/by-name/gone/mlm")}},
        {"name": "s", "recipe": {"model": {"pretrained": str(store / "states/start")}}},
    ]
    Study(parse_config(StudyConfig, raw, where="two"), root).save()
    assert names(clean(root)) == ["other"]
    # So does what a trained state began with, whoever trained it.
    fake_state(store, "trained", pretrained="other")
    record_pin(store, "trained", made_by="pretrain", states=["trained"])
    assert names(clean(root)) == []


def test_checkpoints_stay_as_long_as_their_state_is_missing(root, store):
    [states, _] = planned(root)
    fake_checkpoint(store, states[0])
    assert names(clean(root)) == [f"{states[0]}-from-0"]
    shutil.rmtree(store / "states" / states[0])
    assert names(clean(root)) == []


def test_files_of_unfinished_jobs_are_kept(root, store):
    [states, _] = planned(root)
    for state in states:
        (store / "jobs" / f"{state}.json").write_text("{}")
    shutil.rmtree(store / "states" / states[0])
    assert names(clean(root)) == sorted(f"{state}.json" for state in states[1:])


def test_jobs_of_corpora_and_reports_stay_as_long_as_those_do(root, store):
    [corpus] = (store / "data").iterdir()
    for name, job in {
        f"data-{corpus.name}": {"kind": "tokenise", "folder": str(corpus)},
        "data-other": {"kind": "tokenise", "folder": str(store / "data/other")},
        f"report-{digest('one')[:32]}": {"kind": "report", "study": "one"},
        "report-0": {"kind": "report", "study": "two"},
    }.items():
        write_json(store / "jobs" / f"{name}.json", job)
    assert names(clean(root)) == ["data-other.json", "report-0.json"]


def test_the_record_of_what_was_run_counts_too(root, store):
    # The settings have changed since; the report is still of the states before.
    fake_state(store, "reported")
    fake_result(store, "scored", state="reported")
    write_record(root / "one", state="reported", result="scored")
    fake_state(store, "useless")
    assert names(clean(root)) == ["useless"]


def write_record(folder, *, state, result, **provenance):
    write_json(
        folder / "study.json",
        {
            "format": "biphasic.study/1",
            "name": "one",
            "title": "One",
            "arms": [{"name": "a", "label": "a", "family": "CLM", "state": state, "steps": 4}],
            "tasks": [],
            "learning_rates": [],
            "seeds": [],
            "runs": [{"id": result, "arm": "a", "task": "t", "learning_rate": 1.0, "seed": 0}],
            "provenance": provenance,
        },
    )


def test_pretraining_of_no_study_is_not_lost_by_surprise(root, store):
    fake_state(store, "before")
    fake_state(store, "pretrained", parent="before", corpus_hash="its text")
    fake_result(store, "evaluated", state="pretrained")
    (store / "data/mine").mkdir()
    record_pin(
        store, "pretrained", made_by="pretrain", states=["pretrained"], data=[store / "data/mine"]
    )
    record_pin(store, "group", made_by="evaluate", results=["evaluated"])
    found = clean(root, delete=True)
    assert names(found) == []
    assert sorted(item.path.name for item in found.kept) == [
        "before",
        "evaluated",
        "mine",
        "pretrained",
    ]
    assert "--also-pretrained" in "\n".join(found.lines())
    assert is_complete(store / "states/before")

    clean(root, also_pretrained=True)
    assert is_complete(store / "states/pretrained")
    assert len(read_pins(store)) == 2
    clean(root, also_pretrained=True, delete=True)
    for gone in ("states/before", "states/pretrained", "finetunes/evaluated", "data/mine"):
        assert not (store / gone).exists()
    assert read_pins(store) == ()
    assert clean(root).items == ()


def test_floors_and_references_of_studies_stay_and_orphaned_ones_go(root, store):
    baselines = {
        one.id for one in resolve(Study.saved(root / "one"), missing="placeholder").plan.baselines
    }
    assert len(baselines) == 2
    for identity in (*baselines, "of-no-study"):
        if not is_complete(store / "finetunes" / identity):
            fake_result(store, identity, state="")
    assert names(clean(root)) == ["of-no-study"]
    shutil.rmtree(root / "one")
    assert {*baselines, "of-no-study"} <= {*names(clean(root))}


def test_names_lead_to_finished_states_and_go_with_them(root, store):
    said = []
    fake_state(store, "first")
    link_states(store, "two", {"mlm": "first", "both": "not-yet"}, say=said.append)
    folder = store / "states/by-name/two"
    assert [path.name for path in folder.iterdir()] == ["mlm"]
    assert (folder / "mlm").readlink() == Path("../../first")
    fake_state(store, "not-yet")
    link_states(store, "two", {"mlm": "not-yet", "both": "not-yet"}, say=said.append)
    assert (folder / "mlm").resolve() == (folder / "both").resolve() == store / "states/not-yet"
    assert not said
    (store / "tasks/kept").mkdir(parents=True)
    remember(store, "kept", store / "tasks/kept")
    remember(store, "gone", store / "tasks/gone")
    (store / "found/damaged.json").write_text("{")
    (folder.parent / "a file").touch()
    clean(root, delete=True)  # no study needs the states, nor the task without a manifest
    assert not folder.exists()
    assert recall(store, "gone") is None
    assert not (store / "found/damaged.json").exists()


def test_a_copy_of_a_store_in_which_links_became_folders_is_left(store, tmp_path):
    fake_state(store, "first")
    link_states(store, "two", {"mlm": "first"}, say=print)
    copy = shutil.copytree(store, tmp_path / "copy")
    link_states(copy, "two", {"mlm": "first"}, say=print)
    assert (copy / "states/by-name/two/mlm/state.json").is_file()
    assert not list(copy.rglob(".partial-*"))


def test_a_file_system_without_links_is_named_once(store, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    said = []
    fake_state(store, "first")
    monkeypatch.setattr(Path, "symlink_to", refuse)
    link_states(store, "two", {"a": "first", "b": "first"}, say=said.append)
    [text] = said
    assert "by-name/two" in text
    assert "not permitted" in text


def test_event_files_are_known_by_the_end_of_their_name(root, store):
    state = "0123456789abcdef" * 4
    folder = store / "tensorboard" / readable_name("pico-clm-4", state)
    assert folder.name == "pico-clm-4-0123456789ab"
    folder.mkdir(parents=True)
    fake_state(store, state)
    record_pin(store, state, made_by="pretrain", states=[state])
    assert names(clean(root)) == []
    assert names(clean(root, also_pretrained=True)) == [state, folder.name]


def test_pretraining_that_is_under_way_keeps_its_checkpoint(root, store):
    fake_checkpoint(store, "pretrained")
    assert names(clean(root)) == ["pretrained-from-0"]
    record_pin(store, "pretrained", made_by="pretrain", states=["pretrained"])
    assert names(clean(root)) == []


def test_results_of_models_elsewhere_stay(root, store):
    fake_result(store, "of-bert", state="identity of a model on the hub")
    assert names(clean(root)) == []
    assert names(clean(root, also_pretrained=True)) == ["of-bert"]


def test_pins_are_merged(store):
    record_pin(store, "g", made_by="evaluate", results=["a"])
    record_pin(store, "g", made_by="evaluate", results=["b", "a"], data=[Path("/elsewhere")])
    [pin] = read_pins(store)
    assert (pin.results, pin.data) == (("a", "b"), ())
    (store / "pins/g.json").write_text("{")
    with pytest.raises(DataError, match=r"pins/g\.json"):
        read_pins(store)


@pytest.mark.parametrize("name", ["one", "new"])  # another one has not saved its settings yet
def test_a_running_study_is_named(root, name):
    with (
        hold(root / name / LOCK, remedy="wait"),
        pytest.raises(LockedError, match=f"{root / name}: this study is running") as caught,
    ):
        clean(root)
    assert f"study cancel {name}" in str(caught.value)


def test_nothing_is_deleted_while_anybody_works(root, store):
    fake_state(store, "useless")
    with (
        lock_work(store, "pretraining"),
        pytest.raises(LockedError, match=f"another process .*process {os.getpid()}"),
    ):
        clean(root, delete=True)
    assert is_complete(store / "states/useless")


WORK = """
import sys
from pathlib import Path
from biphasic.locks import lock_work
with lock_work(Path(sys.argv[1]), "work"):
    pass
"""


def test_no_work_starts_while_cleaning(root, store, monkeypatch):
    fake_state(store, "useless")
    remove, refused = shutil.rmtree, []

    def try_to_work(path, **options):
        if Path(path).is_relative_to(store):
            work = [sys.executable, "-c", WORK, str(store)]
            tried = subprocess.run(work, capture_output=True, text=True, check=False)
            refused.append(tried.stderr)
        remove(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", try_to_work)
        clean(root, delete=True)
    assert ["being cleaned" in message for message in refused] == [True]


def forget_settings(folder):
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").write_text("{"), "damaged JSON"),
        (forget_settings, "no saved settings"),
        (lambda folder: shutil.rmtree(folder.parent / "store/data"), "not tokenised here yet"),
    ],
    ids=["damaged", "older", "no corpus"],
)
def test_a_study_that_cannot_be_read_stops_it(root, store, damage, message):
    fake_state(store, "useless")
    if damage is forget_settings:
        write_record(root / "one", state="s", result="r")
    damage(root / "one")
    with pytest.raises(DataError, match=message) as caught:
        clean(root, delete=True)
    assert str(root / "one") in str(caught.value)
    assert is_complete(store / "states/useless")


def test_a_study_whose_data_have_changed_is_read_from_its_record(root, store):
    # As after an upgrade, which gives the built-in corpus another name.
    [states, results] = planned(root)
    for corpus in (store / "data").iterdir():
        shutil.rmtree(corpus)
    (store / "data/older").mkdir()
    sha256 = settings_digest(Study.saved(root / "one").config)
    write_record(root / "one", state=states[0], result=results[0], settings_sha256=sha256)
    found = clean(root)
    assert names(found) == sorted([*states[1:], *results[1:]])
    text = "\n".join(found.lines())
    assert "corpora and tasks are kept: one: corpus" in text
    write_record(root / "one", state=states[0], result=results[0], settings_sha256="other")
    with pytest.raises(DataError, match="cannot plan this study"):
        clean(root)


def test_saved_settings_are_recognised(tmp_path):
    config = study_of(tmp_path / "texts.jsonl", tmp_path / "task", description="changed")
    study = Study(config, tmp_path)
    study.save()
    assert settings_digest(Study.saved(study.folder).config) == settings_digest(config)
    other = config.model_copy(update={"description": ""})
    assert settings_digest(other) != settings_digest(config)


def test_links_are_never_followed(root, store, tmp_path):
    outside = tmp_path / "outside"
    fake_state(outside, "mine")
    (store / "states/linked").symlink_to(outside / "states/mine")
    fake_state(store, "useless")
    (store / "states/useless/inside").symlink_to(outside / "states/mine")
    assert names(clean(root, delete=True)) == ["useless"]
    assert is_complete(outside / "states/mine")
    assert (store / "states/linked").is_symlink()


@pytest.mark.parametrize("part", ["", "states"])
def test_a_linked_store_is_not_cleaned(root, store, tmp_path, part):
    folder = store / part
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="a link") as caught:
        clean(root, delete=True)
    assert str(folder) in str(caught.value)


def test_an_interrupted_deletion_leaves_nothing_that_looks_finished(root, store, monkeypatch):
    for number in range(3):
        fake_state(store, f"useless-{number}")
        fake_result(store, f"result-{number}", state=f"useless-{number}")
    rmtree, removed = shutil.rmtree, []

    def stop_halfway(path, **options):
        if Path(path).is_relative_to(root):
            removed.append(path)
            if len(removed) == 5:
                raise KeyboardInterrupt
        rmtree(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop_halfway)
        with pytest.raises(KeyboardInterrupt):
            clean(root, delete=True)
    assert removed[-1].is_dir()
    assert removed[-1].name.startswith(".partial-")
    # Results went before their states.
    assert [path.parent.name for path in removed] == ["finetunes"] * 3 + ["states"] * 2
    found = clean(root, delete=True)
    assert names(found) == sorted([removed[-1].name, "useless-2"])
    assert names(clean(root)) == []


def test_a_cleaner_that_lost_its_lock_deletes_nothing_more(root, store, monkeypatch):
    fake_state(store, "useless-1")
    fake_state(store, "useless-2")
    remove = shutil.rmtree

    def lose_the_lock(path, **options):
        remove(path, **options)
        if Path(path).is_relative_to(store):
            (store / ".cleaning").write_text("another process's\n")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lose_the_lock)
        with pytest.raises(LockedError, match="another process took over"):
            clean(root, delete=True)
    assert len(list((store / "states").glob("useless-*"))) == 1
