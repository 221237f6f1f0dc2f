"""The examples in the docstrings of the public calls, in a folder with what they name."""

import doctest
import io
import os
import re
from operator import attrgetter
from pathlib import Path

import pytest
import yaml

import biphasic
from biphasic.execution.worker import WorkerProcess
from biphasic.study.run.jobs import load_job
from plugin_files import write_stride
from tiny_use import write_jsonl, write_model

CALLS = (
    *("corpus.build", "corpus.inspect", "corpus.verify", "corpus.merge", "merge_models"),
    *("estimate", "pretrain", "evaluate", "evaluate_all", "finetune", "export_model", "adapt"),
    *("predict", "encode", "load", "push", "run_mteb"),
    *("pairs.build", "pairs.inspect", "pairs.mine", "pairs.teach", "task.show"),
    *("tokenizer.train", "tokenizer.check", "plugin.list", "plugin.check"),
    *("schema", "plan", "diff", "register", "jobs", "job.run", "job.show", "tune"),
    *("site.init", "site.check"),
    *("run_study", "report_study", "status", "cancel", "retry", "verify", "clean"),
    *("analyze", "compare", "claims", "figures", "paper"),
)
STUDY = {
    "name": "mine",
    "title": "Ours",
    "corpus": {"sources": ["texts.jsonl"], "vocab_size": 320},
    "recipe": {"model": "pico", "max_seqlen": 32, "learning_rate": {"peak": 1e-3}},
    "arms": [{"name": "mlm", "phases": [{"objective": "mlm", "steps": 2}]}],
    "tasks": [{"name": "reviews", "source": "sc:reviews"}],
    "finetuning": {"learning_rates": [1e-3], "seeds": [0]},
}

QUESTIONS = [
    {"query": f"what {verb}", "positive": f"a {noun}"}
    for verb, noun in (("purrs", "cat"), ("barks", "dog"), ("sings", "bird"))
]
ASKED = {
    "arms": [
        {"name": name, "phases": [{"objective": name, "steps": 2}]} for name in ("mlm", "clm")
    ],
    "finetuning": {"learning_rates": [1e-3], "seeds": [0, 1]},
    "questions": [
        {
            "name": "Q1",
            "question": "Is MLM better?",
            "comparisons": [
                {"arms": ["mlm", "clm"], "forecast": {"difference": 1, "interval": [-1, 3]}}
            ],
        }
    ],
}


@pytest.fixture
def place(tmp_path, monkeypatch, unchecked):
    """Texts, reviews, a decoder and a study; jobs run here, and exports are not loaded anew."""
    texts = ("the cat sat on the mat", "the dog ran to Paris with Anna")
    rows = [{"text": f"{texts[n % 2]}, {n}", "label": ("good", "bad")[n % 2]} for n in range(120)]
    write_jsonl(tmp_path / "texts.jsonl", rows)
    write_jsonl(tmp_path / "more.jsonl", [{"text": f"{row['text']} again"} for row in rows])
    write_jsonl(tmp_path / "questions.jsonl", QUESTIONS)
    write_stride(tmp_path)
    (tmp_path / "reviews").mkdir()
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"reviews/{split}.jsonl", rows[:24])
    write_model(tmp_path / "decoder", "llama")
    write_model(tmp_path / "my-encoder", "bert")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY))
    registered = {**STUDY, "name": "registered", **ASKED}
    (tmp_path / "registered.yaml").write_text(yaml.safe_dump(registered))

    def run_here(worker, job_id, watch, **_):
        load_job(Path(worker._command[-2]), job_id).run(watch, should_stop=lambda: False)

    monkeypatch.setattr(WorkerProcess, "run", run_here)
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'cpu*|1:00:00|16|(null)|2'\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "schema"])  # has no argument
def test_public_calls_name_their_errors(call):
    documented = attrgetter(call)(biphasic).__doc__
    assert "Raises:" in documented or re.search(r"errors\s+are\s+those\s+of `", documented)


def test_the_examples_of_public_calls_run(place, one_thread):
    assert {call.partition(".")[0] for call in CALLS} == set(biphasic.__all__) - {"__version__"}
    names: dict[str, object] = {}
    said = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    finder = doctest.DocTestFinder(recurse=False)
    for call in CALLS:
        [example] = finder.find(attrgetter(call)(biphasic), call, globs={})
        assert example.examples, f"{call} has no example"
        example.globs = names  # later calls go on with what earlier ones made
        result = runner.run(example, out=said.write, clear_globs=False)
        assert result.failed == 0, said.getvalue()
