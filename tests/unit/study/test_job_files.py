"""Job files lie where others may edit them: whatever one says, nothing outside is written."""

import json
import subprocess
import sys

import pytest

from biphasic.api.job import run
from biphasic.api.training import pretrain
from biphasic.data.building.build import build_corpus
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.gather import SPLITS
from biphasic.errors import ConfigError, DataError, LockHeldError
from biphasic.execution.job import save_job
from biphasic.files import PARTIAL, file_sha256, write_json
from biphasic.locks import lock_work
from biphasic.study.inputs.corpus import CorpusJob
from biphasic.study.jobs import FinetuneJob, GridRun, ScoredTask, TaskInput
from biphasic.study.run.jobs import load_job
from biphasic.study.run.record import ReportJob
from biphasic.study.run.run import missing_work
from biphasic.tasks.protocol import FinetuneProtocol
from small_root import prepare, study_of, write_texts

JOB, RUN, STUDY = "a" * 64, "b" * 64, "report-c"
CORPUS = CorpusConfig(libraries=("rich",))


@pytest.fixture
def store(tmp_path):
    """A store with three jobs."""
    store = tmp_path / "runs/store"
    task = {
        "name": "t",
        "folder": store / "tasks/t",
        "metric": "accuracy",
        "protocol": FinetuneProtocol(),
    }
    jobs = (
        FinetuneJob(
            id=JOB,
            lock=JOB,
            label="a job",
            store=store,
            tokenizer=tmp_path / "model",
            encoder=tmp_path / "model",
            state="s",
            training=TaskInput(**task),
            evaluations=(ScoredTask(**task, runs=(GridRun(id=RUN, learning_rate=1e-4, seed=0),)),),
            keep=tmp_path / f"{PARTIAL}out-weights/weights",
        ),
        CorpusJob.of(CORPUS, store / "data/k", store),
        ReportJob(id=STUDY, label="a report", store=store, study="one"),
    )
    for job in jobs:
        save_job(job)
    return store


def edit(store, job, change):
    path = store / f"jobs/{job}.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def change_run(value):
    return lambda raw: raw["evaluations"][0]["runs"][0].update(id=value)


EDITS = {
    "a result elsewhere": (JOB, change_run("../../../victim"), "not a job"),
    "a lock elsewhere": (JOB, lambda raw: raw.update(lock="../../../victim/lock"), "not a job"),
    "a result in another's place": (JOB, change_run("../states/x"), "not a job"),
    "a hidden result": (JOB, change_run(".."), "not a job"),
    "models kept elsewhere": (JOB, lambda raw: raw.update(keep="{base}/victim"), "would write"),
    "another identity": (JOB, lambda raw: raw.update(id="d" * 64), "contains job 'dddd"),
    "no identity": (JOB, lambda raw: raw.update(id="../victim"), "contains job"),
    "a corpus elsewhere": ("data-k", lambda raw: raw.update(folder="{base}/victim"), "would write"),
    "a corpus by dots": (
        "data-k",
        lambda raw: raw.update(folder=f"{raw['store']}/data/../../../victim"),
        "would write",
    ),
    "a corpus by a link": ("data-k", lambda raw: raw.update(folder="{link}/sub"), "would write"),
    "a study elsewhere": (STUDY, lambda raw: raw.update(study="../../victim"), "not a job"),
    "a list": (JOB, lambda raw: raw.clear(), "not a job"),
}


@pytest.mark.parametrize("case", EDITS.values(), ids=EDITS)
def test_an_edited_job_file_writes_nowhere_else(store, tmp_path, cli, case):
    job, change, word = case
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("years of work")
    (store / "link").symlink_to(victim)
    edit(store, job, change)
    text = (store / f"jobs/{job}.json").read_text()
    text = text.replace("{base}", str(tmp_path)).replace("{link}", str(store / "link"))
    (store / f"jobs/{job}.json").write_text(text)
    code, out, err = cli("job", "run", job, "--root", store.parent)
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"error: {store / 'jobs' / job}.json: ")
    assert word in line
    assert "'biphasic study jobs FILE' rewrites" in line
    assert [file.name for file in victim.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("job", [JOB, "data-k", STUDY])
def test_a_job_uses_the_store_that_it_was_loaded_from(store, tmp_path, job):
    edit(store, job, lambda raw: raw.update(store=str(tmp_path / "elsewhere")))
    assert load_job(store, job).store == store


def test_a_corpus_of_others_names_no_file_elsewhere(tmp_path):
    given, folder = {"sources": [str(write_texts(tmp_path))], "vocab_size": 300}, tmp_path / "own"
    build_corpus(CorpusConfig(**given), folder, say=lambda _: None)
    details, manifest = folder / "train/corpus.json", folder / "train/manifest.json"
    raw = {**json.loads(details.read_text()), "content_hash": "../../../outside"}
    details.write_text(json.dumps(raw))
    files = json.loads(manifest.read_text())
    files["files"][details.name] = {
        "bytes": details.stat().st_size, "sha256": file_sha256(details),
    }  # fmt: skip
    manifest.write_text(json.dumps(files))
    phases = [{"objective": "clm", "steps": 1}]
    recipe = {"model": "pico", "max_seqlen": 32, "learning_rate": {"peak": 1e-3}, "phases": phases}
    with pytest.raises(DataError, match=r"corpus\.json: content_hash is no hash"):
        pretrain(recipe, corpus=folder, root=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "outside.json").exists()


def test_jobs_are_read_as_they_were_written(store):
    for path in (store / "jobs").iterdir():
        assert load_job(store, path.stem).model_dump_json() == path.read_text()


def test_a_finished_job_imports_no_torch(store):
    for file in ("built.json", *(f"{part}/manifest.json" for part in ("tokenizer", *SPLITS))):
        write_json(store / "data/k" / file, {})
    program = f"""
import sys
from biphasic.api.job import run
from biphasic.api.training import pretrain
from biphasic.data.building.build import build_corpus
print(run("data-k", root={str(store.parent)!r}, quiet=True).was_done, "torch" in sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "True False\n", ended.stderr


@pytest.mark.parametrize("text", ["", "[]", "7", "[" * 10_000, '{"kind": "train"}', "\xff"])
def test_what_is_no_job_is_named(store, text):
    path = store / f"jobs/{JOB}.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="not a job of this version"):
        load_job(store, JOB)


def test_studies_with_other_seeds_leave_each_other_s_jobs(root, tmp_path, make_task):
    texts, task = write_texts(tmp_path), make_task(tmp_path / "task")

    def made(name, seeds):
        finetuning = {"seeds": seeds, "learning_rates": [1e-4], "protocol": {"max_seqlen": 32}}
        config = study_of(texts, task, name=name, finetuning=finetuning)
        study = prepare(config, root)
        return missing_work(study.plan, study.paths)[-1].make()

    one, other = made("first", [3]), made("second", [3, 4])
    for each in (one, other):
        save_job(each)
    for each in (one, other):
        assert load_job(root / "store", each.id) == each
    # What both have to do is done once: they wait for each other.
    with lock_work(root / "store", one.id.partition("-")[0]):
        for each in (one, other):
            with pytest.raises(LockHeldError):
                each.run(lambda _: None)


def test_commands_that_keep_models_elsewhere_leave_each_other_s_parts(store, tmp_path):
    job = load_job(store, JOB)
    scored = job.evaluations[0]
    runs = tuple(GridRun(id=letter * 64, learning_rate=1e-4, seed=0) for letter in "bc")
    job = job.model_copy(update={"evaluations": (scored.model_copy(update={"runs": runs}),)})
    places = (job.keep, tmp_path / f"{PARTIAL}other-weights/weights", None)
    parts = [job.model_copy(update={"keep": keep}).split(2)[0] for keep in places]
    for part in parts:
        save_job(part)
    assert [load_job(store, part.id).keep for part in parts] == [*places]
    with lock_work(store, parts[-1].lock):  # the same runs are not done twice
        for part in parts:
            with pytest.raises(LockHeldError):
                part.run(lambda _: None)


def test_lines_of_a_list_are_counted_from_its_beginning(tmp_path):
    lines = tmp_path / "level-0.txt"
    lines.write_text(f"{JOB}\n")
    with pytest.raises(ConfigError, match="index: -1; give 0 or more"):
        run(list_file=lines, index=-1, root=tmp_path)
    with pytest.raises(ConfigError, match="from 0 to 0"):
        run(list_file=lines, index=1, root=tmp_path)
