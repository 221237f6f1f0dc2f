"""`pretrain` and `evaluate` as calls: on our states and on plain transformers folders."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import biphasic
from biphasic import evaluate, evaluate_all, pretrain, run_study
from biphasic.data.tokens.tokenizer import train_tokenizer
from biphasic.errors import CheckpointError, ConfigError, DataError, ModelError
from biphasic.evaluation.evaluate import chosen_tasks, plan_evaluation
from biphasic.export.card import corpora_of
from biphasic.export.hf import open_source
from biphasic.progress import progress_console
from biphasic.study.inputs import corpus
from biphasic.study.settings.study import StudyConfig, TaskConfig
from biphasic.study.sizing import speed
from biphasic.tasks import encoding
from tiny_use import write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

GRID = {"learning_rates": [1e-3], "seeds": [0, 1]}
PROTOCOL = {"max_steps": 2, "batch_size": 4, "max_seqlen": 32}
RECIPE = {
    "model": "pico",
    "max_seqlen": 32,
    "rows_per_step": 2,
    "learning_rate": {"peak": 1e-3},
    "phases": [{"objective": "clm", "steps": 2}, {"objective": "mlm", "steps": 2}],
}


@pytest.fixture
def settings(tmp_path):
    """Settings of small evaluations."""
    return {**GRID, "protocol": PROTOCOL, "root": tmp_path / "root", "quiet": True}


@pytest.fixture
def near(tmp_path, make_retrieval):
    """A retrieval task."""
    return TaskConfig(name="near", source=str(make_retrieval(tmp_path / "near")))


@pytest.fixture
def far_of(tmp_path, make_retrieval):
    """Return tasks that are trained on `near`, with documents from a number on."""

    def make(first, **options):
        folder = make_retrieval(tmp_path / "far", trained_on="near", first=first)
        return TaskConfig(name="far", source=str(folder), **options)

    return make


@pytest.fixture
def ready(monkeypatch, prepared):
    """Stand in for the built-in documentation."""
    monkeypatch.setattr(corpus, "prepare_corpus", lambda *_, **__: prepared)


@pytest.fixture
def task(tmp_path, make_task):
    return make_task(tmp_path / "first-word")


each_model = pytest.mark.parametrize("plain_model", ["bert", "llama"], indirect=True)


@pytest.fixture
def plain_model(request, tmp_path, documents):
    """A folder as transformers writes it, with a tokenizer that has no mask token."""
    shape = {
        "vocab_size": 320,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    model = (
        BertForMaskedLM(BertConfig(**shape))
        if getattr(request, "param", "bert") == "bert"
        else LlamaForCausalLM(LlamaConfig(**shape))
    )
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    train_tokenizer([text for _, text in documents], vocab_size=320).save(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_public_names_are_the_calls():
    assert set(biphasic.__all__) <= set(dir(biphasic))
    with pytest.raises(AttributeError, match="pretran"):
        _ = biphasic.pretran


def test_a_pretrained_state_is_reused_and_evaluated(ready, tmp_path, task, settings):
    folder = pretrain(RECIPE, root=tmp_path / "root", quiet=True)
    state = json.loads((folder / "state.json").read_text())
    assert (state["step"], [e["objective"] for e in state["ledger"]]) == (4, ["clm", "mlm"])
    assert AutoModelForMaskedLM.from_pretrained(folder).config.hidden_size == 64
    [events] = (tmp_path / "root/store/tensorboard").iterdir()
    assert events.name == f"pico-clm-2-mlm40-4-{folder.name[:12]}"
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert state["environment"]["device"] == "cpu"
    assert pretrain(RECIPE, root=tmp_path / "root", quiet=True, device="cpu") == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    # Its corpus lies outside of the store, and a card can say what it was all the same.
    store = tmp_path / "root/store"
    [facts] = corpora_of(open_source(folder).state, store=store)
    assert (facts["documents"], facts["content_hash"]) == (60, state["ground"]["corpus_hash"])

    found = evaluate(folder, task, **settings)
    names = (found.task.name, found.metric, found.convention)
    assert names == ("first-word", "accuracy", "standard")
    assert {result.seed for result in found.results} == {0, 1}
    assert {result.state for result in found.results} == {folder.name}
    record = json.loads((found.folder / found.results[0].id / "result.json").read_text())
    assert record["device"] == "cpu"
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
        pretrain(RECIPE, root=tmp_path / "root", quiet=True)
    tests = [result.test["accuracy"] for result in found.results if result.test]
    assert found.estimate is not None
    assert found.estimate.mean == pytest.approx(100 * sum(tests) / 2)  # records hold shares


def test_a_faster_precision_is_named_before_training_only(ready, tmp_path, monkeypatch, capsys):
    message = "precision: fp32 would be 1.5 times as fast on this processor"
    monkeypatch.setattr(speed, "cost_here", lambda *_, **__: message)
    for number, count in ((1, 1), (2, 0)):
        pretrain(RECIPE, root=tmp_path / "root")
        lines = capsys.readouterr().err
        assert lines.count(message) == count, number
        assert "tokens; held-out loss in nats per token: CLM " in lines.splitlines()[-1]


@pytest.fixture
def pairs(tmp_path, prepared):
    """Minimal pairs: words of the corpus in two orders."""
    data = prepared.open()
    words = data.tokenizer.decode(data.corpus.tokens(0, 0, 40).tolist()).split()
    texts = [" ".join(words[start : start + 4]) for start in range(8)]
    rows = [
        {"sentence_good": text, "sentence_bad": " ".join(reversed(text.split())), "UID": "order"}
        for text in texts
    ]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    return tmp_path / "pairs.jsonl"


def test_minimal_pairs_are_scored_with_each_held_out_loss(ready, tmp_path, pairs):
    watched = pretrain(
        RECIPE, root=tmp_path / "root", heldout_every=2, minimal_pairs=pairs, quiet=True
    )
    lines = map(json.loads, (watched / "metrics.jsonl").read_text().splitlines())
    found = {line["step"]: line["minimal_pairs"] for line in lines if "heldout" in line}
    # After two steps its last objective is CLM, at the end MLM.
    first = {**RECIPE, "phases": RECIPE["phases"][:1]}
    for recipe, step in ((first, 2), (RECIPE, 4)):
        state = pretrain(recipe, root=tmp_path / "other", heldout_every=2, quiet=True)
        scored = evaluate(state, f"mp:{pairs}", root=tmp_path / "other", quiet=True,
                          protocol={"precision": "bf16"})  # fmt: skip
        assert found.pop(step) == scored.results[0].test["accuracy"]
    assert not found
    assert (state.name, state.joinpath("model.safetensors").read_bytes()) == (
        watched.name, watched.joinpath("model.safetensors").read_bytes()
    )  # fmt: skip
    assert "minimal_pairs" not in (state / "metrics.jsonl").read_text()


def test_minimal_pairs_of_another_kind_or_of_several_processes_are_refused(ready, tmp_path, pairs):
    options = {"root": tmp_path / "root", "quiet": True}
    with pytest.raises(ConfigError, match="minimal_pairs: one process scores them"):
        pretrain(RECIPE, minimal_pairs=pairs, compute={"processes": 2}, **options)
    (tmp_path / "own.yaml").write_text(f"kind: sts\ntest: {tmp_path}/sts.jsonl\n")
    rows = [{"text_a": "a", "text_b": text, "score": n} for n, text in enumerate("bcd")]
    write_jsonl(tmp_path / "sts.jsonl", rows)
    with pytest.raises(ConfigError, match="of kind sts, not mp"):
        pretrain(RECIPE, minimal_pairs=tmp_path / "own.yaml", **options)


def test_a_changed_state_has_separate_scores(ready, tmp_path, task, settings):
    settings["seeds"] = [0]
    folder = pretrain(RECIPE, root=tmp_path / "root", quiet=True)
    copy = shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    tensors["model.embed_tokens.weight"] *= 3
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"copy/model\.safetensors: damaged"):
        evaluate(copy, task, **settings)
    for name in ("manifest.json", "state.json"):  # as the message says
        (copy / name).unlink()
    [changed] = evaluate(copy, task, **settings).results  # first: its scores would be believed
    [original] = evaluate(folder, task, **settings).results
    assert original.state == folder.name
    assert changed.state not in {folder.name, original.state}
    assert changed.id != original.id
    [again] = evaluate(shutil.copytree(folder, tmp_path / "same"), task, **settings).results
    assert again == original


def test_a_job_does_not_score_a_model_that_was_changed_since(plain_model, task, settings):
    settings["console"] = progress_console(quiet=settings.pop("quiet"))
    planned = plan_evaluation(
        plain_model, chosen_tasks([task]), **settings, extend=None, libraries=None, revision=None
    )
    [group] = planned.groups
    job = group.job(tokenizer=plain_model, encoder=plain_model)
    config = plain_model / "tokenizer_config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(CheckpointError, match=r"another model than .*; run the command"):
        job.run(lambda _: None)


@each_model
def test_a_plain_model_is_evaluated_once(plain_model, task, settings):
    root = settings["root"]
    first = evaluate(plain_model, task, **settings)
    assert len(first.results) == 2
    assert {*first.baselines} == {"floor:majority", "reference:bag-of-words"}
    results = sorted(root.glob("store/finetunes/*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    assert evaluate(plain_model, task, **settings) == first
    assert [path.stat().st_mtime_ns for path in results] == before
    evaluate(plain_model, task, **{**settings, "seeds": [0, 1, 2]})
    assert len(list(root.glob("store/finetunes/*/result.json"))) == 3 + len(first.baselines)


@each_model
def test_a_decoder_is_scored_as_it_is(plain_model, task, settings):
    settings["seeds"] = [0]
    [opened] = evaluate(plain_model, task, **settings).results
    settings["protocol"] = {**settings["protocol"], "attention": "causal"}
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        run = encoding.hidden_states
        patch.setattr(
            encoding,
            "hidden_states",
            lambda *given, causal: seen.append(causal) or run(*given, causal=causal),
        )
        found = evaluate(plain_model, task, **settings)
    [causal] = found.results
    assert set(seen) == {True}
    assert causal.id != opened.id
    record = json.loads((found.folder / causal.id / "result.json").read_text())
    assert record["state"] == opened.state


def test_a_model_that_cannot_be_read_is_named(tmp_path, task, plain_model, documents):
    options = {**GRID, "root": tmp_path / "root", "quiet": True}
    with pytest.raises(DataError, match="none: no such folder"):
        evaluate(tmp_path / "none", task, **options)
    with pytest.raises(ConfigError, match=r"max_seqlen 65 .* 64 positions"):
        evaluate(plain_model, task, protocol={"max_seqlen": 65}, **options)
    (plain_model / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="cannot be loaded"):
        evaluate(plain_model, task, protocol=PROTOCOL, **options)
    train_tokenizer([text for _, text in documents], vocab_size=330).save(plain_model)
    with pytest.raises(ModelError, match=r"330 .* 320"):
        evaluate(plain_model, task, protocol=PROTOCOL, **options)


@pytest.fixture
def corpora(ready, monkeypatch, tmp_path):
    """Record the settings of corpora that are trained on; say that all are there."""
    asked = []
    monkeypatch.setattr(corpus, "locate_corpus", lambda one, _: asked.append(one) or tmp_path)
    return asked


@pytest.mark.parametrize("kind", [str, Path])
def test_python_accepts_the_arguments_of_the_command(corpora, tmp_path, cli, kind):
    (tmp_path / "built/train").mkdir(parents=True)
    (tmp_path / "built/train/manifest.json").write_text("{}")  # looks complete
    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    (tmp_path / "corpus.yaml").write_text("folder: built\n")
    recipe, root = tmp_path / "recipe.yaml", tmp_path / "root"
    override = "learning_rate.peak=2e-3"
    folders = {
        pretrain(
            kind(recipe), corpus=kind(tmp_path / name), overrides=[override], root=root,
            quiet=True,
        )
        for name in ("built", "corpus.yaml")
    }  # fmt: skip
    for name in ("built", "corpus.yaml"):
        arguments = ["--corpus", tmp_path / name, "--root", root, "--set", override]
        code, out, err = cli("pretrain", recipe, *arguments)
        assert code == 0, err
        folders.add(Path(out.strip()).absolute())
    assert {corpus.folder for corpus in corpora} == {tmp_path / "built"}
    assert len(folders) == 1
    assert json.loads((folders.pop() / "state.json").read_text())["recipe"]["learning_rate"][
        "peak"
    ] == 2e-3  # fmt: skip


def test_an_argument_that_would_do_nothing_is_refused(tmp_path):
    study = StudyConfig.model_construct(name="a")
    with pytest.raises(ConfigError, match="change the settings of the study"):
        run_study(study, overrides=["name=b"], root=tmp_path, quiet=True)
    for own in ({"workers": 2}, {"threads": 2}, {"per_gpu": 2}):
        with pytest.raises(ConfigError, match=r"--site: .* --workers"):
            run_study(study, site=tmp_path / "site.yaml", root=tmp_path, quiet=True, **own)
    with pytest.raises(DataError, match=r"nowhere: no such file"):
        pretrain(RECIPE, corpus=tmp_path / "nowhere", root=tmp_path, quiet=True)


def test_a_schedule_that_does_not_fit_is_refused_with_its_recipe(tmp_path):
    schedule = {"peak": 1e-3, "warmup_steps": 3, "decay_steps": 2}
    recipe, file = {**RECIPE, "learning_rate": schedule}, tmp_path / "mine.yaml"
    file.write_text(json.dumps(recipe))
    for given, named in ((recipe, "recipe"), (file, str(file))):
        for function in (biphasic.estimate, pretrain):
            with pytest.raises(ConfigError, match=rf"^{named}: .*warmup_steps 3 .* the 4 steps"):
                function(given)


@pytest.fixture
def trainings(monkeypatch):
    """Record the fine-tunings that are done: task, scored tasks, rate, seed."""
    from biphasic.tasks import finetune

    done = []

    def record(model, runs, **options):
        done.extend(
            (run.task.info.name, tuple(task.info.name for task in run.evaluations), run.seed)
            for run in runs
        )
        return finetune_group(model, runs, **options)

    finetune_group = finetune.finetune_group
    monkeypatch.setattr(finetune, "finetune_group", record)
    return done


def test_tasks_trained_on_the_same_one_share_its_fine_tunings(
    plain_model, tmp_path, trainings, near, far_of
):
    far = far_of(2)
    settings = {**GRID, "protocol": PROTOCOL, "quiet": True}
    both = list(evaluate_all(plain_model, [far, near], root=tmp_path / "both", **settings))
    assert [found.task.name for found in both] == ["far", "near"]
    assert both[0].task.trained_on == "near"
    assert {result.trained_on for result in both[0].results} == {"near"}
    assert {result.trained_on for result in both[1].results} == {None}
    assert trainings == [("near", ("far", "near"), 0), ("near", ("far", "near"), 1)]

    # One after the other: the same numbers under the same names; what is there is not repeated.
    alone = evaluate(plain_model, near, root=tmp_path / "one", **settings)
    assert [r.id for r in alone.results] == [r.id for r in both[1].results]
    assert [r.test for r in alone.results] == [r.test for r in both[1].results]
    trainings.clear()
    later = list(evaluate_all(plain_model, [near, far], root=tmp_path / "one", **settings))
    assert trainings == [("near", ("far",), 0), ("near", ("far",), 1)]
    assert [r.test for r in later[1].results] == [r.test for r in both[0].results]
    assert [r.id for r in later[1].results] == [r.id for r in both[0].results]


def test_a_task_whose_trainer_is_unknown_is_refused(plain_model, tmp_path, make_retrieval):
    far = make_retrieval(tmp_path / "far", trained_on="nowhere")
    with pytest.raises(ConfigError, match=r"'far': is trained on 'nowhere'"):
        evaluate(plain_model, far, root=tmp_path / "root", quiet=True)


def test_zero_shot_is_one_run_without_training(plain_model, tmp_path, make_retrieval, trainings):
    task = make_retrieval(tmp_path / "lookup", kind="zs")
    settings = {"root": tmp_path / "root", "protocol": {"max_seqlen": 32}, "quiet": True}
    found = evaluate(plain_model, task, **settings)
    [result] = found.results
    assert (result.kind, result.steps, result.learning_rate, result.seed) == ("zs", 0, 0.0, 0)
    assert found.estimate is not None
    assert found.estimate.half_width is None
    assert found.estimate.mean == pytest.approx(100 * result.test["ndcg_at_10"])
    assert evaluate(plain_model, task, **settings, **GRID) == found
    assert len(trainings) == 1


def test_every_task_is_checked_before_the_first_begins(plain_model, task, trainings, settings):
    with pytest.raises(DataError, match="no-such-folder"):
        list(evaluate_all(plain_model, [task, "sc:no-such-folder"], **settings))
    wrong = TaskConfig(name="b", source=str(task), metric="accurracy")
    with pytest.raises(ConfigError, match=r"metric 'accurracy'.*'accuracy'"):
        list(evaluate_all(plain_model, [task, wrong], **settings))
    with pytest.raises(ConfigError, match="given more than once"):
        list(evaluate_all(plain_model, [task, task], **settings))
    assert trainings == []


@each_model
@pytest.mark.usefixtures("warm")
def test_separate_workers_give_the_same_numbers(plain_model, tmp_path, task):
    settings = {**GRID, "protocol": PROTOCOL, "quiet": True}
    here = evaluate(plain_model, task, root=tmp_path / "here", **settings)
    there = evaluate(plain_model, task, root=tmp_path / "there", workers=2, **settings)
    assert [r.test for r in there.results] == [r.test for r in here.results]
    assert [r.id for r in there.results] == [r.id for r in here.results]


def test_another_metric_decides_without_another_training(plain_model, task, trainings, settings):
    evaluate(plain_model, task, **settings)
    num_trained = len(trainings)
    chosen = TaskConfig(name="first-word", source=str(task), metric="matthews")
    found = evaluate(plain_model, chosen, **settings)
    assert found.metric == "matthews"
    assert len(trainings) == num_trained


def test_user_settings_override_the_task_description(plain_model, tmp_path, make_task, trainings):
    folder = make_task(tmp_path / "slow")
    path = folder / "task.json"
    description = json.loads(path.read_text())
    path.write_text(json.dumps({**description, "protocol": {"max_steps": 3, "batch_size": 4}}))
    settings = {**GRID, "seeds": [0], "root": tmp_path / "root", "quiet": True}
    [asked] = evaluate(plain_model, folder, **settings, protocol={"max_seqlen": 32}).results
    [set_by_hand] = evaluate(
        plain_model, folder, **settings, protocol={"max_seqlen": 32, "max_steps": 1}
    ).results
    assert (asked.steps, set_by_hand.steps) == (3, 1)


def test_settings_of_a_training_belong_to_its_task(plain_model, settings, near, far_of):
    far = far_of(2, protocol={"batch_size": 3})
    with pytest.raises(ConfigError, match=r"'far': protocol\.batch_size"):
        list(evaluate_all(plain_model, [far, near], **settings))


def test_a_task_cannot_be_trained_on_itself(plain_model, tmp_path, make_retrieval):
    ring = make_retrieval(tmp_path / "ring", trained_on="ring")
    with pytest.raises(ConfigError, match="trained on itself: ring -> ring"):
        evaluate(plain_model, ring, root=tmp_path / "root", quiet=True)


def test_steps_do_not_rename_zero_shot_scores(plain_model, tmp_path, make_retrieval):
    task = make_retrieval(tmp_path / "lookup", kind="zs")
    settings = {"root": tmp_path / "root", "quiet": True}
    one = evaluate(plain_model, task, protocol={"max_seqlen": 32, "max_steps": 5}, **settings)
    other = evaluate(plain_model, task, protocol={"max_seqlen": 32, "max_steps": 6}, **settings)
    assert [r.id for r in one.results] == [r.id for r in other.results]


def test_overlaps_with_the_training_of_another_task_are_counted(
    plain_model, settings, near, far_of
):
    # Its test queries are the training queries of the other.
    far = far_of(3)
    found, _ = evaluate_all(plain_model, [far, near], **settings)
    assert found.task.overlaps == {"train/test": 3}


def test_another_tokenizer_at_the_same_place_is_another_encoding(
    plain_model, tmp_path, make_retrieval, documents
):
    task = make_retrieval(tmp_path / "lookup", kind="zs")
    settings = {"protocol": {"max_seqlen": 32}, "quiet": True}
    evaluate(plain_model, task, root=tmp_path / "before", **settings)
    train_tokenizer([text for _, text in documents[:5]], vocab_size=300).save(plain_model)
    after = evaluate(plain_model, task, root=tmp_path / "after", **settings)
    elsewhere = shutil.copytree(plain_model, tmp_path / "elsewhere")
    fresh = evaluate(elsewhere, task, root=tmp_path / "fresh", **settings)
    assert [r.test for r in after.results] == [r.test for r in fresh.results]


def test_all_lengths_are_checked_before_any_task_is_read(plain_model, tmp_path, task):
    long = tmp_path / "long.yaml"
    long.write_text(f"kind: sc\nfolder: {task}\nprotocol: {{max_seqlen: 128}}\n")
    settings = {**GRID, "root": tmp_path / "root", "quiet": True}
    with pytest.raises(ConfigError) as caught:
        [*evaluate_all(plain_model, [task, long, "pydocs-qa", "qa:none"], **settings)]
    first, second, third = str(caught.value).split("; task ")
    assert first == (
        "task 'long': max_seqlen 128 exceeds the model's 64 positions; set max_seqlen=64 or less"
    )
    assert second == (
        "'pydocs-qa': max_seqlen: 64 tokens leave no room for a context beside questions of 64 "
        "and an overlap of 64; set max_question_tokens=15 and window_overlap=7, or "
        "max_seqlen=132 if the model supports it"
    )
    assert third.startswith("'none': max_seqlen: 64 tokens leave no room")
    assert not (tmp_path / "root").exists()
    # What it says to set is enough.
    settings["protocol"] = {"max_question_tokens": 15, "window_overlap": 7, "max_seqlen": 64}
    with pytest.raises(DataError, match="task 'qa:none': no such folder"):
        [*evaluate_all(plain_model, [long.with_name("first-word"), "qa:none"], **settings)]
    (tmp_path / "bad.yaml").write_text("kind: sc\nnmae: mine\n")
    with pytest.raises(ConfigError, match="nmae"):
        [
            *evaluate_all(
                plain_model, [long.with_name("first-word"), tmp_path / "bad.yaml"], **settings
            )
        ]
    assert not [*(tmp_path / "root").glob("store/tasks/*")]


@pytest.mark.parametrize("name", ["odd [old]", "reviews.v1", "pretraining"])
def test_names_are_taken_as_they_are(plain_model, tmp_path, make_task, name, settings, capsys):
    settings["quiet"] = False
    folder = make_task(tmp_path / name)
    if name == "pretraining":
        with pytest.raises(ConfigError, match="rename the task"):
            evaluate(plain_model, folder, **settings)
        return
    assert evaluate(plain_model, folder, **settings).task.name == name
    assert f"task {name}: examples" in capsys.readouterr().err


def test_a_task_file_names_its_task(plain_model, tmp_path, settings):
    (tmp_path / "t.csv").write_text("text,label\nrows of,a\nshape of,b\n" * 1)
    path = tmp_path / "file.yaml"
    path.write_text("kind: sc\nname: my-name\ntrain: t.csv\nvalidation: t.csv\ntest: t.csv\n")
    found = evaluate(plain_model, path, **settings)
    assert found.task.name == "my-name"
    assert found.task.overlaps == {"train/validation": 2, "train/test": 2, "validation/test": 2}
