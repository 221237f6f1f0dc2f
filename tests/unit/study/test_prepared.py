"""What is checked before a study runs, and what is kept of it for later."""

import shutil
from pathlib import Path

import pytest

from biphasic.data.pairs import Pair, write_pairs
from biphasic.errors import CheckpointError, ConfigError, DataError, NewerFormatError, StudyError
from biphasic.files import read_json, write_json
from biphasic.store import complete_folder
from biphasic.study.plan.cost import state_bytes
from biphasic.study.plan.finished import Finished, outdated_arms
from biphasic.study.run.record import study_record
from biphasic.study.run.run import check_disk
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from small_root import prepare, study_of, write_texts
from tiny_study import GROUND, clm, plan_of

STUDIES = Path(__file__).parents[3] / "studies"
SHIPPED = sorted(path.name for path in STUDIES.glob("*.yaml"))


def small_plan(root):
    return plan_of(load_study(STUDIES / "smoke.yaml"), root=root)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_study_can_be_read_again_as_it_was_run(name, tmp_path):
    config = load_study(STUDIES / name, ["recipe.seeds.data_seed=7"])
    study = Study(config, tmp_path)
    study.save()
    again = Study.saved(study.folder).config
    assert again.model_dump() == config.model_dump()
    # Not only equal: what is set and what is a default means the same for tasks with needs.
    for task in config.tasks:
        needed = {"max_steps": 77, "batch_size": 5}
        assert again.protocol_of(task, needed) == config.protocol_of(task, needed)
    written = (study.folder / "config.json").stat().st_mtime_ns
    study.save()
    assert (study.folder / "config.json").stat().st_mtime_ns == written


def test_a_folder_belongs_to_the_file_of_its_study(tmp_path):
    folder = tmp_path / "runs/smoke"
    files = [shutil.copy(STUDIES / "smoke.yaml", tmp_path / f"{name}.yaml") for name in "ab"]

    def save(file, *overrides):
        Study(load_study(file, overrides), folder.parent, file=file).save()
        return read_json(folder / "config.json")

    for overrides in ((), ("title=Edited",)):
        assert save(files[0], *overrides)["file"] == "../../a.yaml"
    before = read_json(folder / "config.json")
    with pytest.raises(ConfigError, match=r"b\.yaml: .*of this name, .*a\.yaml"):
        save(files[1])
    assert read_json(folder / "config.json") == before
    assert save(files[1], "title=Edited") == before  # the same study
    Study(load_study(files[1], ["title=Called"]), folder.parent).save()  # no file is known
    assert save(files[0])["file"] == "../../a.yaml"
    files[0].unlink()
    assert save(files[1], "title=Moved")["file"] == "../../b.yaml"


def test_a_folder_that_holds_no_study_of_this_version_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no study was run here .*config\.json"):
        Study.saved(tmp_path)
    write_json(tmp_path / "config.json", {"format": "biphasic.config/9", "study": {}})
    with pytest.raises(NewerFormatError, match=r"config\.json: biphasic\.config/9"):
        Study.saved(tmp_path)
    write_json(tmp_path / "config.json", {"format": "biphasic.config/1"})
    with pytest.raises(DataError, match="not a study of this version"):
        Study.saved(tmp_path)
    write_json(tmp_path / "config.json", {"format": "biphasic.config/1", "study": {"speed": 3}})
    with pytest.raises(DataError, match="written by another version"):
        Study.saved(tmp_path)


def test_states_that_the_disk_has_no_room_for_are_refused(tmp_path, monkeypatch):
    plan = small_plan(tmp_path)

    def check(**options):
        check_disk(plan.study, Finished.of(plan).missing_segments(), **options)

    plan.store.mkdir()
    check()
    sizes = [state_bytes(segment.arm.recipe, vocab_size=320) for segment in plan.segments]
    room = sum(sizes) + max(sizes)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=room))
    check(num_checkpoints=1)
    message = rf"the study's {len(sizes)} missing states need .* MB with checkpoints, but"
    with pytest.raises(StudyError, match=message):
        check(num_checkpoints=2)
    for segment in plan.segments:
        with complete_folder(plan.store / "states" / segment.id):
            pass
    check()


def test_pairs_that_a_phase_cannot_read_are_refused_before_any_arm_is_trained(tmp_path):
    rows = [Pair(f"query {n}", f"answer {n}") for n in range(8)]
    pairs = write_pairs(tmp_path / "pairs", rows, origin={}).folder
    distill = {"objective": "distill", "pairs": str(pairs), "steps": 2}
    arms = [{"name": "a", "phases": [clm(4)]}, {"name": "b", "phases": [clm(4), distill]}]
    config = study_of(write_texts(tmp_path), tmp_path, arms=arms, tasks=[])
    with pytest.raises(ConfigError, match=r"arm 'b': pairs: .*pairs has no vectors of a teacher"):
        prepare(config, tmp_path / "runs")
    assert not (tmp_path / "runs/store/data").exists()


def test_names_of_no_parameter_are_refused_before_any_arm_is_trained(tmp_path):
    frozen = {**clm(2), "freeze": ["model.layers.0.*", "model.leyers.1.*"]}
    arms = [{"name": "a", "phases": [clm(4)]}, {"name": "b", "phases": [clm(4), frozen]}]
    config = study_of(write_texts(tmp_path), tmp_path, arms=arms, tasks=[])
    with pytest.raises(ConfigError, match=r"arm 'b': phases\.1\.freeze: .*leyers"):
        prepare(config, tmp_path / "runs")
    assert not (tmp_path / "runs/store/data").exists()


def test_states_of_another_version_are_named_and_not_used(tmp_path):
    plan = small_plan(tmp_path)
    arm = next(arm for arm in plan.arms if arm.recipe.total_steps)
    recipe = arm.recipe
    details = {
        "recipe": recipe.model_dump(mode="json"),
        "step": recipe.total_steps,
        "ground": {"corpus_hash": GROUND.corpus_hash},
    }

    def write(name, **changes):
        with complete_folder(plan.store / "states" / name) as folder:
            write_json(folder / "state.json", {**details, **changes})

    assert outdated_arms(plan) == []
    write("a" * 64, step=recipe.total_steps - 1)
    write("b" * 64, ground={"corpus_hash": "other"})
    with complete_folder(plan.store / "states" / ("d" * 64)) as folder:
        (folder / "state.json").write_text("{")
    write("f" * 64, format="biphasic.state/2")  # a newer version writes to this store, too
    assert outdated_arms(plan) == []
    write("e" * 64)
    [sentence] = outdated_arms(plan)
    assert sentence.startswith(f"arm '{arm.name}': was trained with another version of biphasic")
    assert "eeeeeeeeeeee" in sentence
    # Once it is there in this version nobody needs to know.
    write(arm.state)
    assert outdated_arms(plan) == []
    assert read_json(plan.store / "states" / arm.state / "state.json") == details


def test_a_state_whose_record_is_damaged_is_named(root):
    prepared = prepare(Study.saved(root / "one").config, root)
    state = next(point.state for point in prepared.plan.points if point.step)
    shutil.rmtree(root / "store/states" / state)
    with complete_folder(root / "store/states" / state, identity=state) as folder:
        write_json(folder / "state.json", {})
    with pytest.raises(CheckpointError, match=rf"state\.json: .*; delete .*{state}"):
        study_record(prepared)
