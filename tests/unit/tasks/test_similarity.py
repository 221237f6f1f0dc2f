"""Similarity of sentences against transformers' own model and scipy, pair by pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from transformers import AutoModel

from biphasic import evaluate
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from tiny_use import words, write_jsonl, write_model

pytestmark = pytest.mark.usefixtures("unprobed", "one_thread")


STS12 = Path(__file__).parents[4] / "shared/data/tasks/sts/sts12/test.jsonl"
MODULES = {"": "Transformer", "1_Pooling": "Pooling"}


def pairs(number: int = 12) -> list[dict]:
    rng = np.random.default_rng(4)
    return [
        {"text_a": " ".join(words(rng)), "text_b": " ".join(words(rng)), "score": index % 5 + 0.5}
        for index in range(number)
    ]


def run(model: Path, task: str, root: Path):
    settings = {"protocol": {"max_seqlen": 64}, "root": root}
    return evaluate(model, task, **settings, quiet=True)


@torch.no_grad()
def by_hand(folder: Path, text: str, place: int | None = None) -> torch.Tensor:
    tokenizer = TextTokenizer.load(folder)
    ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
    model = AutoModel.from_pretrained(folder).eval()
    states = model(torch.tensor([ids])).last_hidden_state[0]
    return states.mean(0) if place is None else states[place]


def test_cosines_and_their_correlation_are_those_of_a_plain_loop(tmp_path):
    model = write_model(tmp_path / "model", "eurobert")
    path = write_jsonl(tmp_path / "pairs.jsonl", pairs())
    result = run(model, f"sts:{path}", tmp_path / "runs")
    table = pq.read_table(result.folder / result.results[0].id / "scores.parquet").to_pydict()
    expected = [
        float(torch.cosine_similarity(by_hand(model, p["text_a"]), by_hand(model, p["text_b"]), 0))
        for p in pairs()
    ]
    np.testing.assert_allclose(table["predicted"], expected, atol=1e-5)
    values = [pair["score"] for pair in pairs()]
    correlation = spearmanr(values, table["predicted"]).statistic
    assert result.results[0].test["spearman"] == pytest.approx(correlation, abs=1e-12)
    assert np.mean(table["score"]) == pytest.approx(correlation, abs=1e-12)


@pytest.mark.skipif(not STS12.is_file(), reason="the shared task data are not here")
def test_the_parts_of_sts12_have_the_cosines_of_the_whole(tmp_path):
    """Parts differ in scale: the correlation over all is no mean of theirs."""
    rows = [json.loads(line) for line in STS12.read_text(encoding="utf-8").splitlines()]
    parts: dict[str, list[dict]] = {}
    for row in rows:
        parts.setdefault(row["source"], []).append(row)
    parts = {name: part[:30] for name, part in parts.items()}
    assert parts.keys() == {"MSRpar", "OnWN", "SMTeuroparl", "SMTnews"}
    model = write_model(tmp_path / "model", "eurobert")

    def scored(name: str, some: list[dict]) -> tuple[float, dict[str, float]]:
        path = write_jsonl(tmp_path / f"{name}.jsonl", some)
        result = run(model, f"sts:{path}", tmp_path / "runs")
        table = pq.read_table(result.folder / result.results[0].id / "scores.parquet").to_pydict()
        return result.results[0].test["spearman"], dict(
            zip(table["id"], table["predicted"], strict=True)
        )

    whole, cosines = scored("whole", [row for part in parts.values() for row in part])
    assert whole == pytest.approx(
        spearmanr(
            [row["score"] for part in parts.values() for row in part],
            [cosines[row["id"]] for part in parts.values() for row in part],
        ).statistic,
        abs=1e-12,
    )
    for name, part in parts.items():
        spearman, alone = scored(name, part)
        assert alone == pytest.approx({row["id"]: cosines[row["id"]] for row in part}, abs=1e-5)
        expected = spearmanr([row["score"] for row in part], [*alone.values()]).statistic
        assert spearman == pytest.approx(expected, abs=1e-12)


def test_equal_cosines_are_ties_and_if_all_are_equal_there_is_no_correlation(tmp_path):
    model = write_model(tmp_path / "model", "eurobert")
    tied = [*pairs(5), {**pairs(1)[0], "score": 3.0}, {**pairs(1)[0], "score": 0.0}]
    constant = [{**pairs(1)[0], "score": score} for score in (0.0, 1.0, 2.0)]
    for name, rows in (("tied", tied), ("constant", constant)):
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        result = run(model, f"sts:{path}", tmp_path / "runs")
        table = pq.read_table(result.folder / result.results[0].id / "scores.parquet").to_pydict()
        score = result.results[0].test["spearman"]
        assert np.mean(table["score"]) == pytest.approx(score, abs=1e-12)
        if name == "tied":
            values = [row["score"] for row in rows]
            assert score == pytest.approx(spearmanr(values, table["predicted"]).statistic, abs=1e-9)
        else:
            assert not any(table["score"])


def test_cosines_that_differ_by_rounding_are_ties_and_the_result_says_collapsed(tmp_path):
    """Embeddings that hardly differ give every text the same vector, apart from rounding."""
    model = write_model(tmp_path / "model", "eurobert")
    weights = load_file(model / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = rows[5] + 1e-4 * rows
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    path = write_jsonl(tmp_path / "pairs.jsonl", pairs(40))
    result = run(model, f"sts:{path}", tmp_path / "runs")
    table = pq.read_table(result.folder / result.results[0].id / "scores.parquet").to_pydict()
    assert np.ptp(table["predicted"]) == 0  # as scored, so that reports find the same scores
    assert result.results[0].test == {"spearman": 0.0, "pearson": 0.0}
    assert not any(table["score"])
    assert "collapsed: 1 of 1 run" in "\n".join(result.sentences())
    plain = run(write_model(tmp_path / "other", "eurobert"), f"sts:{path}", tmp_path / "runs")
    assert "collapsed" not in "\n".join(plain.sentences())


@pytest.mark.parametrize(("pooling", "place"), [("first", 0), ("last", -1)])
def test_first_and_last_states_can_stand_for_a_sentence(tmp_path, pooling, place):
    model = write_model(tmp_path / "model", "eurobert")
    path = write_jsonl(tmp_path / "pairs.jsonl", pairs())
    settings = {"protocol": {"max_seqlen": 64, "pooling": pooling}, "root": tmp_path / "runs"}
    result = evaluate(model, f"sts:{path}", **settings, quiet=True)
    table = pq.read_table(result.folder / result.results[0].id / "scores.parquet").to_pydict()
    expected = [
        float(
            torch.cosine_similarity(
                by_hand(model, pair["text_a"], place), by_hand(model, pair["text_b"], place), 0
            )
        )
        for pair in pairs()
    ]
    np.testing.assert_allclose(table["predicted"], expected, atol=1e-5)
    mean = run(model, f"sts:{path}", tmp_path / "runs")
    assert mean.results[0].id != result.results[0].id


def test_options_of_training_that_a_zero_shot_task_does_not_use_are_named(tmp_path, capsys):
    model = write_model(tmp_path / "model", "eurobert")
    task = f"sts:{write_jsonl(tmp_path / 'pairs.jsonl', pairs())}"
    evaluate(model, task, seeds=[1], learning_rates=[1e-3], root=tmp_path / "runs")
    shown = capsys.readouterr().err
    for option in ("--learning-rate", "--seed"):
        assert f"{option} is not used: zero-shot tasks train nothing" in shown


def test_an_embedding_model_that_is_read_otherwise_is_named(tmp_path):
    model = write_model(tmp_path / "model", "eurobert")
    modules = [{"path": path, "type": f"models.{kind}"} for path, kind in MODULES.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    task = f"sts:{write_jsonl(tmp_path / 'pairs.jsonl', pairs())}"
    assert "trained with pooling=first; use --set pooling=first" in str(
        run(model, task, tmp_path / "runs")
    )
    protocol = {"max_seqlen": 64, "pooling": "first"}
    result = evaluate(model, task, protocol=protocol, root=tmp_path / "runs", quiet=True)
    assert result.other_reading == ""
    (model / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot"}')
    result = evaluate(model, task, protocol=protocol, root=tmp_path / "dot", quiet=True)
    by_product = "the task compares vectors by their cosine, and the model by 'dot'"
    assert result.other_reading == by_product
    modules.append({"path": "2_Dense", "type": "models.Dense"})
    (model / "modules.json").write_text(json.dumps(modules))
    assert "Dense" in run(model, task, tmp_path / "others").other_reading


def test_prompts_that_a_task_does_not_read_are_named(tmp_path):
    model, folder = write_model(tmp_path / "model", "eurobert"), tmp_path / "tales"
    modules = [{"path": path, "type": f"models.{kind}"} for path, kind in MODULES.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    prompts = {"prompts": {"query": "ask: ", "document": "read: "}}
    (model / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        rows = [{"_id": str(n), "text": f"{name} {n}"} for n in range(3)]
        write_jsonl(folder / f"{name}.jsonl", rows)
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
    message = run(model, f"zs:{folder}", tmp_path / "runs").other_reading
    assert message == (
        "the task does not read the model's prompts; set them in a task file: "
        'query_template: "ask: {text}", document_template: "read: {title} {text}"'
    )
    text = 'kind: zs\nfolder: tales\nquery_template: "ask: {text}"\n'
    (tmp_path / "task.yaml").write_text(text + 'document_template: "read: {title} {text}"\n')
    assert run(model, str(tmp_path / "task.yaml"), tmp_path / "runs").other_reading == ""


def test_a_trained_task_takes_the_mean(tmp_path):
    model, folder = write_model(tmp_path / "model", "eurobert"), tmp_path / "sc"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"text": f"{split} {n}", "label": ("a", "b")[n % 2]} for n in range(8)]
        write_jsonl(folder / f"{split}.jsonl", rows)
    with pytest.raises(ConfigError, match="pooling: last is "):
        evaluate(model, f"sc:{folder}", protocol={"pooling": "last"}, root=tmp_path)
