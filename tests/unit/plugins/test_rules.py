"""The rules of all bases: ours and the documented plugins keep them, and each rule is broken."""

import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch

from biphasic.config import Config, parse_config
from biphasic.errors import ConfigError, DataError
from biphasic.execution.executor import Local
from biphasic.execution.registry import load_executor
from biphasic.model.loading.hub import fetch_model
from biphasic.objectives.phases import Phase
from biphasic.testing import (
    RULES,
    ObjectiveRules,
    check_executor,
    check_kind,
    check_named,
    check_objective,
    check_optimizer,
    small_model,
    small_vocabulary,
)
from biphasic.training.optimizers.registry import AnyOptimizer
from custom_tasks import write_csv
from plugin_files import PAGE, STRIDE, forget_plugins, page_code, write_mailbox, write_plugin

SMOOTHED, FOCAL, MOMENTUM, MAILBOX = map(page_code, ("Smoothed", "Focal", "Momentum", "Mailbox"))
ROOT = Path(__file__).parents[3]
TUTORIAL = (ROOT / "docs/tutorials/new-task-kind.md").read_text("utf-8")
STARS = re.findall(r"%%writefile stars.py\n(.*?)```", TUTORIAL, re.DOTALL)[0]
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
KIND = """
import itertools
import random
import numpy as np
from dataclasses import replace
from biphasic.facts import metric_facts
from biphasic.tasks.kinds.text import Classification
from biphasic.tasks.kinds.examples import RecordFiles

class Examples(RecordFiles):
    pass

class Learner(Classification.learner):
    pass

class Broken(Classification):
    name = "broken"
    facts = replace(Classification.facts, metrics=(metric_facts("accuracy"),))
    examples = Examples(Classification.examples.record)
    learner = Learner
# END"""
SUPERVISE, DOC = "    def supervise(", "    def doc"
RETURN, TEXTS = "        return (Supervision(", "np.concatenate(texts)[:: self.every]"
YIELD = "yield SourceDocument(id=str(number),"
ORIGIN = f"    def origin(self, context):\n        return {{}}\n\n{DOC}"
EVALUATE = """
def evaluate(self, encoder, head):
    scores = Classification.learner.evaluate(self, encoder, head)
    {}
    return {{name: replace(one, scores=one.scores + added) for name, one in scores.items()}}
Learner.evaluate = evaluate
"""
# Edits of a plugin that keeps all rules, by the rule that is broken then.
BROKEN = {
    "objectives": {
        "rows": (STRIDE, ("rows = batch.packed", "rows = batch.packed.part(0, 1)"),
                 ("in batch.texts", "in batch.part(0, 1).texts")),
        "rows, no tuple": (STRIDE, ("(Supervision(rows", "[Supervision(rows"),
                           ("causal=False),)", "causal=False)]")),
        "positions": (STRIDE, (TEXTS, f"{TEXTS}[::-1].copy()")),
        "specials": (STRIDE, ("in batch.texts", "in rows.spans")),
        "directions": (STRIDE, ("frozenset({False})", "frozenset({True})")),
        "pure": (STRIDE, ("[:: self.every]", "[np.random.randint(9) :: self.every]")),
        "draws": (STRIDE, ("[:: self.every]",
                           "[np.random.default_rng(mask_seed).integers(3) :: self.every]")),
        "resume": (
            STRIDE, ("class Stride", "_first = []\n\n\nclass Stride"),
            (SUPERVISE, "    def at(self, step, *, num_steps):\n"
                        f"        _first.clear()\n        return self\n\n{SUPERVISE}"),
            ("[:: self.every]", "[min(len(_first), 1) :: self.every]"),
            (RETURN, f"        _first.append(positions)\n{RETURN}"),
        ),
        "passes": (SMOOTHED, ("return plain + z_loss", "return plain / len(labels) + z_loss")),
        "finite": (SMOOTHED, ("z_loss * logits.logsumexp(-1)",
                              "z_loss * logits.sum(-1).fill_(float('inf'))")),
        "determinants": (STRIDE, (SUPERVISE, "    def determinants(self, mask_seed):\n"
                                             f"        return {{'name': 's'}}\n\n{SUPERVISE}")),
    },
    "optimizers": {
        "updates": (MOMENTUM, ("weight.grad is None", "weight.ndim == 1")),
        "rate": (MOMENTUM, ('group["lr"] * average', "0.01 * average")),
        "pure": (MOMENTUM, ("add_(weight.grad)", "add_(weight.grad * torch.rand(()))")),
        "moments": (MOMENTUM, ("        return 1\n", "        return 2\n")),
        "resume": (
            MOMENTUM, ("(torch.optim.Optimizer):", "(torch.optim.Optimizer):\n    count = 0"),
            ("        for group in", "        self.count += 1\n        for group in"),
            ('group["lr"] * average', 'group["lr"] * average / self.count'),
        ),
        "skips": (MOMENTUM, (" or self.found_inf", "")),
        "determinants": (MOMENTUM, ("    def num_moments", "    def determinants(self):\n"
                                    "        return {'name': 'm'}\n\n    def num_moments")),
    },
    "sources": {
        "documents": (MAILBOX, ("id=str(number)", "id='1'")),
        "pure": (MAILBOX, ("class Mail", "_read = []\n\n\nclass Mail"),
                 (YIELD, f"_read.append(0); {YIELD}"),
                 ("id=str(number)", "id=str(number + len(_read))")),
        "origin": (MAILBOX, (DOC, ORIGIN.replace("{}", "{'at': str(self.file)}"))),
        "determinants": (MAILBOX, (DOC, ORIGIN)),
        "process": (MAILBOX, ("+ message", "+ str(set('abcdefghijklmnop')) + message")),
    },
    "executors": {
        "slots": (THREADS, ("return self.jobs", "return 0")),
        "runs": (THREADS, ("partial(work.watch, job_id)", "lambda _: None")),
        "runs, all": (THREADS, ("    job.run", "    if job_id != 'run-1': job.run")),
        "runs, without error": (THREADS, ("submit(run, work, job_id, over)",
                                          "submit(print, job_id)")),
        "failures": (THREADS, ("    job.run", "    if 'fail' in job_id: return\n    job.run")),
        "stops": (THREADS, ("    job.run", "    with suppress(StoppedError): job.run")),
        "stops, asked": (THREADS, ("should_stop=over.is_set", "should_stop=lambda: stop(over)"),
                         ("def run(", "def stop(over):\n    if over.is_set():\n"
                                      "        raise StoppedError('over')\n\n\ndef run(")),
    },
    "task_kinds": {
        "parse": (KIND, ("# END", """
def inputs(self, task, split):
    yield from [*Classification.examples.inputs(task, split)][1:]
Examples.inputs = inputs
""")),
        "parse, again": (KIND, ("# END", """
def read(self, *given, **named):
    task = RecordFiles.read(self, *given, **named)
    return replace(task, info=replace(task.info, title=str(random.random())))
Examples.read = read
""")),
        "encode": (KIND, ("# END", """
def encode(self, task):
    Classification.learner.encode(self, task)
    self.num_outputs += next(drawn)
Learner.encode = encode
drawn = iter(range(99))
""")),
        "loss": (KIND, ("# END", """
Learner.mean_loss = lambda self, outputs, expected: outputs.mean(dim=0)
""")),
        "scores": (KIND, ("# END", """
    facts = replace(Classification.facts, metrics=(metric_facts("f1"),))
""")),
        "pure": (KIND, ("# END", EVALUATE.format("added = random.random()"))),
        "pure, encoded": (KIND, ("# END", '''
def encode(self, task):
    Classification.learner.encode(self, task)
    self.sequences["test"] = self.sequences["test"][next(drawn):] * 2
    self.sequences["test"] = self.sequences["test"][: len(task.splits["test"])]
Learner.encode = encode
drawn = iter(range(99))
''')),
        "batches": (KIND, ("# END", EVALUATE.format(
            'added = [len(some) for some, *_ in encoder.batches(self.sequences["test"])][0]'
        ))),
    },
}  # fmt: skip
KEPT = {
    "objectives": {
        "stride": (STRIDE, {}),
        "smoothed": (SMOOTHED, {"smoothing": 0.2}),
        "focal": (FOCAL, {"gamma": 2.0}),
        "spans": (page_code("PoissonSpans"), {}),
    },
    "optimizers": {
        "momentum": (MOMENTUM, {"momentum": 0.8}),
        "scaled": ((ROOT / "evidence/tuning/scaled.py").read_text("utf-8"), {}),
    },
    "sources": {"mailbox": (MAILBOX.replace("class Mail", "print('read')\n\n\nclass Mail"), {})},
    "executors": {"threads": (THREADS, {})},
    "task_kinds": {"stars": (STARS, {})},
}


def table(of):
    return [pytest.param(group, name, id=f"{group}-{name}") for group in of for name in of[group]]


class Settings(Config):
    phase: Phase | None = None
    optimizer: AnyOptimizer | None = None


def phase(**settings):
    return parse_config(Settings, {"phase": {"steps": 4, **settings}}, where="x").phase


@pytest.fixture
def write(tmp_path):
    return partial(write_plugin, tmp_path / "plugin.py")


@pytest.fixture
def texts(tmp_path):
    """Files of a small task."""
    forget_plugins()
    folder = tmp_path / "texts"
    folder.mkdir()
    for split, number in (("train", 12), ("dev", 6), ("test", 10)):
        rows = [[f"the {pet} sat on mat {n} of {split}", stars] for n in range(number // 2)
                for stars, pet in enumerate(("cat", "dog"), 1)]  # fmt: skip
        write_csv(folder / f"{split}.csv", ["text", "label"], rows)
    yield folder
    forget_plugins()


@pytest.fixture
def check(tmp_path, write, texts):
    """Check an edited plugin as `plugin check` does."""
    write_mailbox(tmp_path / "list.mbox")

    def checked(group, settings, code, *edits):
        own = {"file": str(tmp_path / "list.mbox")} if group == "sources" else settings
        return [
            *check_named(str(write(code, *edits)), own, texts if group == "task_kinds" else None)
        ]

    return checked


BOTH = [{"objective": "mlm"}, {"objective": "clm"}]
OURS = {
    "clm": {},
    "mlm": {},
    "mntp": {"selection": "word"},
    "mlm-span": {"final_mlm_probability": 0.2, "selection": "span", "replacement": "bert"},
    "diffusion": {},
    "mix": {"objectives": BOTH, "shares": [0.5, 0.5]},
    "alternate": {"objectives": BOTH, "every": 1},
}


@pytest.mark.parametrize("name", OURS)
def test_our_objectives_keep_all_rules(name):
    check_objective(phase(objective=name.partition("-")[0], **OURS[name]))


@pytest.mark.parametrize("settings", [{}, {"name": "muon"}], ids=["adamw", "muon"])
def test_our_optimizers_keep_all_rules(settings):
    check_optimizer(parse_config(Settings, {"optimizer": settings}, where="x").optimizer)


@pytest.mark.parametrize("kind", ["sc", "ml"])
def test_our_kinds_keep_all_rules(texts, kind):
    check_kind(kind, texts)


@pytest.mark.parametrize(("group", "name"), table(KEPT))
def test_documented_plugins_keep_all_rules(check, group, name):
    code, settings = KEPT[group][name]
    [line] = check(group, settings, code)
    number = len(RULES[group].names())
    kept = rf"plugin\.py:\w+ \([0-9a-f]{{12}}\): keeps all {number} rules of {group}"
    assert re.fullmatch(kept, line)


@pytest.mark.parametrize(("group", "rule"), table(BROKEN))
def test_a_plugin_that_breaks_a_rule_is_refused_by_its_name(check, group, rule):
    broken = rf"^\w+: breaks the rule '{rule.partition(',')[0]}': "
    with pytest.raises(ConfigError, match=broken):
        check(group, {}, *BROKEN[group][rule])


PREPARED = {
    # Once to prepare it, once for all rules, and once again where a rule compares two.
    ("task_kinds", 3, 2): (KIND, ("# END", """
def read(self, *given, **named):
    print("first")
    return RecordFiles.read(self, *given, **named)
Examples.read = read
def encode(self, task):
    print("second")
    Classification.learner.encode(self, task)
Learner.encode = encode
""")),
    ("executors", 1, 4): (THREADS, ("    @contextmanager", """
    def check(self, store, *, processes):
        print("first")

    @contextmanager"""), ("        over,", "        print('second')\n        over,")),
}  # fmt: skip


@pytest.mark.parametrize("of", PREPARED)
def test_rules_share_what_they_are_checked_on(check, capsys, of):
    group, *numbers = of
    check(group, {}, *PREPARED[of])
    out = capsys.readouterr().out
    assert [out.count("first"), out.count("second")] == numbers


def test_every_rule_is_broken_here_and_on_the_page():
    for group, rules in BROKEN.items():
        assert {rule.partition(",")[0] for rule in rules} == {*RULES[group].names()}
    section = PAGE.partition("## Rules")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    groups = ("objectives", "optimizers", "sources", "executors")
    assert named == [name for group in groups for name in RULES[group].names()]


def test_an_objective_with_rows_of_its_own_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"contrastive: reads pairs;"):
        check_objective(phase(objective="contrastive", pairs=str(tmp_path), batch=4))


def test_an_error_of_a_class_names_the_rule_that_met_it(check):
    with pytest.raises(ConfigError, match=r"rule 'rows': .*AttributeError: .*packd"):
        check("objectives", {}, STRIDE, ("rows = batch.packed", "rows = batch.packd"))


def test_a_loss_of_ones_own_has_an_identity(write):
    settings = phase(objective=f"{write(SMOOTHED)}:Smoothed", smoothing=0.2)
    assert settings.identity(3) | {"plugin": None} == {
        "name": "smoothed",
        "smoothing": 0.2,
        "z_loss": 1e-4,
        "mlm_probability": 0.4,
        "replacement": "mask",
        "mask_seed": 3,
        "plugin": None,
    }


def test_a_loss_is_weighted_by_predictability(write):
    settings = phase(objective=f"{write(FOCAL)}:Focal", gamma=2.0)
    part = ObjectiveRules(settings).parts()[0]
    even = torch.zeros(1, 4)  # each of four tokens has a chance of 1/4
    loss = float(part.per_label(even, torch.tensor([2])))
    assert loss == pytest.approx((1 - 1 / 4) ** 2 * math.log(4))


def test_distillation_from_logits_keeps_the_rules(write, tmp_path):
    small_model().save_pretrained(tmp_path / "teacher")
    settings = phase(
        objective=f"{write(page_code('Taught'))}:Taught", teacher=f"{tmp_path}/teacher"
    )
    check_objective(settings)
    assert settings.identity(3)["teacher"] == fetch_model(tmp_path / "teacher").identity
    # By all tokens of the teacher, logits that give its probabilities are the best ones.
    size = small_vocabulary().size
    part = ObjectiveRules(settings.model_copy(update={"most": size})).parts()[0]
    tokens, chances = torch.from_numpy(part.values).chunk(2, dim=1)
    logits = torch.zeros_like(chances).scatter_(1, tokens.long(), chances.log()).requires_grad_()
    given = map(torch.from_numpy, (part.labels, part.values))
    part.per_label(logits, *given).sum().backward()
    assert logits.grad.abs().max() < 1e-6
    first = part.part(0, 4)
    assert len(first.values) == len(first.labels) < len(part.labels)


def test_a_kind_is_checked_on_a_folder(write, texts, cli):
    path = write(STARS)
    code, out, _ = cli("plugin", "check", f"{path}:Stars", "--task", texts)
    assert (code, out) == (0, f"{next(check_named(str(path), {}, texts))}\n")
    code, _, error = cli("plugin", "check", path)
    assert (code, "a kind of task is checked with --task FOLDER" in error) == (2, True)
    write_csv(texts / "test.csv", ["text", "label"], [["the food", 7]])
    with pytest.raises(DataError, match=r"test\.csv:2: 'stars': Input .* less than or equal to 5"):
        list(check_named(str(path), {}, texts))


def test_a_site_file_or_an_option_names_an_executor(write, tmp_path):
    path, site = write(THREADS), tmp_path / "site.yaml"
    site.write_text("{executor: ./plugin.py:Threads, jobs: 3}")
    executor = load_executor(site)
    assert (executor.num_slots, executor.plugin.origin) == (3, "plugin.py")
    assert load_executor(f"{path}:Threads").num_slots == 2
    site.write_text("{executor: local, workers: 1}")
    assert load_executor(site) == Local(workers=1)
    site.write_text("{executor: ./plugin.py:Threads, job: 3}")
    with pytest.raises(ConfigError, match=r"unknown key 'executor.job' \(did you mean 'jobs'\?\)"):
        load_executor(site)
    site.write_text("{executor: elsewhere}")
    with pytest.raises(ConfigError, match=r"'elsewhere' \(known: cluster, local\)"):
        load_executor(site)


def test_the_log_of_a_job_that_died_is_quoted(write, tmp_path):
    write(page_code("Hosts"))
    site = tmp_path / "site.yaml"
    site.write_text("{executor: ./plugin.py:Hosts, hosts: [nowhere], command: [env]}")
    with pytest.raises(ConfigError, match=r"^hosts: .*'runs'.*nowhere.*No such file"):
        check_executor(load_executor(site))
