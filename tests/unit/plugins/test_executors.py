"""Executors of files: how they are named, and for each rule, one that breaks it."""

import pytest

from biphasic.errors import ConfigError
from biphasic.execution.executor import Local
from biphasic.execution.registry import load_executor
from biphasic.testing import check_executor
from plugin_files import page_code

THREADS = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event

from biphasic.errors import StoppedError
from biphasic.execution.executor import ExecutorConfig


class Threads(ExecutorConfig):
    jobs: int = 2

    @property
    def num_slots(self):
        return self.jobs

    @contextmanager
    def start(self, work):
        over, pool = Event(), ThreadPoolExecutor(self.jobs)
        pool.num_slots = self.jobs
        submit = pool.submit
        pool.submit = lambda job_id: submit(run, work, job_id, over)
        try:
            yield pool
        finally:
            over.set()
            pool.shutdown(cancel_futures=True)


def run(work, job_id, over):
    job = work.load_job(work.store, job_id)
    job.run(partial(work.watch, job_id), should_stop=over.is_set)
"""


@pytest.fixture
def write(tmp_path):
    def write_edited(*edits):
        text = THREADS
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "threads.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write_edited


def test_a_site_file_or_an_option_names_an_executor(write, tmp_path):
    path, site = write(), tmp_path / "site.yaml"
    site.write_text("{executor: ./threads.py:Threads, jobs: 3}")
    executor = load_executor(site)
    assert (executor.num_slots, executor.plugin.origin) == (3, "threads.py")
    assert load_executor(f"{path}:Threads").num_slots == 2
    site.write_text("{executor: local, workers: 1}")
    assert load_executor(site) == Local(workers=1)
    site.write_text("{executor: ./threads.py:Threads, job: 3}")
    with pytest.raises(ConfigError, match=r"unknown key 'executor.job' \(did you mean 'jobs'\?\)"):
        load_executor(site)
    site.write_text("{executor: elsewhere}")
    with pytest.raises(ConfigError, match=r"'elsewhere' \(known: cluster, local\)"):
        load_executor(site)


def test_one_that_runs_jobs_in_threads_keeps_all_rules(write, cli):
    code, out, _ = cli("plugin", "check", write())
    assert (code, "keeps all 4 rules of executors" in out) == (0, True)


@pytest.mark.parametrize(
    ("rule", "edit"),
    [
        ("slots", ("return self.jobs", "return 0")),
        ("runs", ("partial(work.watch, job_id)", "lambda _: None")),
        ("runs", ("    job.run", "    if job_id != 'run-1': job.run")),
        ("runs", ("submit(run, work, job_id, over)", "submit(print, job_id)")),
        ("failures", ("    job.run", "    if 'fail' in job_id: return\n    job.run")),
        ("stops", ("    job.run", "    with suppress(StoppedError): job.run")),
    ],
)
def test_an_executor_that_breaks_a_rule_is_refused(write, rule, edit):
    with pytest.raises(ConfigError, match=f"rule '{rule}'"):
        check_executor(load_executor(f"{write(edit)}:Threads"))


def test_the_log_of_a_job_that_died_is_quoted(tmp_path):
    (tmp_path / "hosts.py").write_text(page_code("Hosts"))
    site = tmp_path / "site.yaml"
    site.write_text("{executor: ./hosts.py:Hosts, hosts: [nowhere], command: [env]}")
    with pytest.raises(ConfigError, match=r"^hosts: .*'runs'.*nowhere.*No such file"):
        check_executor(load_executor(site))
