"""Model cards: every number from records, what is not known marked to be filled in."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from export_states import CORPUS_HASH, IDENTITY, LEDGER, RECIPE
from huggingface_hub import EvalResult, ModelCard
from markdown_it import MarkdownIt
from scipy import stats

from biphasic import export_model
from biphasic.export.card import write_fitted_card
from biphasic.files import write_json
from biphasic.tasks.use import HeadRecord

pytestmark = pytest.mark.usefixtures("one_thread", "unprobed")
Card = Callable[..., str]


@pytest.fixture
def card_of(unchecked: None, tmp_path: Path) -> Card:
    """Return what exports a model, without the check, and reads its card."""

    def make(model: Path, **options: Any) -> str:
        return (export_model(model, tmp_path / "my|en_coder", **options) / "README.md").read_text()

    return make


def front_matter(card: str) -> dict[str, Any]:
    _, block, _ = card.split("---\n", 2)
    return yaml.safe_load(block)


def rows(card: str, first: str) -> list[list[str]]:
    """Return the cells of table rows whose first cell is `first`."""
    lines = [line for line in card.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] == first]


class TestState:
    def test_front_matter(self, state, card_of):
        card = card_of(state)
        front = front_matter(card)
        assert front["license"] is None
        assert front["language"] is None
        assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "fill-mask")
        assert "base_model" not in front
        assert "# to fill in, e.g. apache-2.0" in card

    def test_phases_and_totals(self, state, card_of):
        card = card_of(state)
        assert rows(card, "1") == [["1", "CLM", "–", "3", "30", "3 K", "1.2 K", "7.5 × 10⁹"]]
        [second] = rows(card, "2")
        assert second[1:4] == ["MLM", r"freeze model.embed\*, mlm\_probability 0.4", "5"]
        # 8 steps of 10 documents, 1,000 tokens, 400 predicted, 2.5e9 operations.
        assert rows(card, "all") == [["all", "", "", "8", "80", "8 K", "3.2 K", "2.0 × 10¹⁰"]]
        assert IDENTITY in card
        assert "from random weights" in card

    def test_a_phase_cut_short(self, make_state, card_of):
        card = card_of(make_state(step=5, ledger=[LEDGER[0], {**LEDGER[1], "steps": 2}]))
        assert rows(card, "2")[0][3] == "2 of 5"

    def test_plugins(self, make_state, card_of):
        named = f"striding 1.2, strides@{64 * 'a'}"
        card = card_of(make_state(plugins={"strides": [named]}))
        assert (
            f"Plugins that read text or trained it, with the hash of their code:\n\n- `{named}`\n"
            in card
        )

    def test_losses(self, state, card_of):
        card = card_of(state)
        assert rows(card, "CLM") == [["CLM", "5.125"]]
        assert rows(card, "MLM") == [["MLM", "4.500"]]

    def test_losses_of_pairs_have_their_unit(self, make_state, card_of):
        phase = {"objective": "contrastive", "steps": 5, "pairs": "/nowhere/pairs"}
        card = card_of(
            make_state(
                recipe={**RECIPE, "phases": [RECIPE["phases"][0], phase]},
                ledger=[LEDGER[0], {**LEDGER[1], "objective": "contrastive"}],
                heldout={"clm": 5.125, "contrastive": 1.5},
            )
        )
        assert rows(card, "contrastive") == [["contrastive", "1.500 nats per pair"]]
        assert rows(card, "CLM") == [["CLM", "5.125"]]
        assert "in nats unless another unit is given, on text" in card
        assert "are those in the loss; of pairs, texts are counted there." in card

    def test_losses_of_plugins_have_their_unit(self, make_state, card_of):
        own = {"clm": 5.125, "own": 1.5, "other": 2.0}
        card = card_of(make_state(heldout=own, loss_units={"own": "bits"}))
        assert rows(card, "own") == [["own", "1.500 bits"]]
        assert rows(card, "other") == [["other", "2.000 in a unit that its plugin does not name"]]
        assert "in nats unless another unit is given, on text" in card

    def test_untrained(self, make_state, card_of):
        card = card_of(make_state(step=0, ledger=[], heldout={}))
        assert "It was not trained further" in card
        assert "Held-out" not in card
        assert front_matter(card)["pipeline_tag"] == "feature-extraction"

    @pytest.mark.parametrize("objective", ["clm", "mntp"])
    def test_a_head_for_next_tokens_fills_no_masks(self, objective, make_state, card_of):
        card = card_of(make_state(ledger=[{**LEDGER[0], "objective": objective}]))
        assert 'pipeline("fill-mask"' not in card
        assert front_matter(card)["pipeline_tag"] == "feature-extraction"

    @pytest.mark.parametrize(("other", "fills"), [("mntp", False), ("mlm", True)])
    def test_a_head_for_several_objectives(self, other, fills, make_state, card_of):
        mixed = {"objective": "mix", "objectives": [{"objective": "clm"}, {"objective": other}]}
        turns = {"objective": "alternate", "steps": 9, "objectives": [mixed, {"objective": "clm"}]}
        entry = {**LEDGER[0], "phase": 0, "objective": "alternate"}
        card = card_of(make_state(recipe={**RECIPE, "phases": [turns]}, ledger=[entry]))
        assert ('pipeline("fill-mask"' in card) == fills

    @pytest.mark.parametrize("name", ["a/b\nlicense: mit", "../b", "a/b: c", "./b"])
    def test_what_is_no_hub_id_is_no_base_model(self, name, make_state, card_of):
        card = card_of(make_state(recipe={**RECIPE, "model": {"pretrained": name}}))
        front = front_matter(card)
        assert "base_model" not in front
        assert not front["license"]

    def test_begun_with_a_finished_model(self, make_state, card_of):
        model = {"pretrained": "some-owner/decoder", "revision": "abc"}
        card = card_of(make_state(recipe={**RECIPE, "model": model}))
        assert "Continues from `some-owner/decoder` at revision `abc`." in card
        assert front_matter(card)["base_model"] == "some-owner/decoder"

    def test_paths_of_a_machine_are_omitted(self, make_state, card_of, tmp_path):
        phases = [{**phase, "corpus": "/home/me/secret/corpus"} for phase in RECIPE["phases"]]
        recipe = {**RECIPE, "model": {"pretrained": "/home/me/decoder"}, "phases": phases}
        fingerprint = {"corpus_hash": CORPUS_HASH, "corpora": {"/home/me/secret/corpus": "b" * 64}}
        card = card_of(make_state(recipe=recipe, ground=fingerprint))
        assert "/home" not in card
        assert str(tmp_path) not in card
        assert "Continues from `decoder`." in card
        assert "base_model" not in front_matter(card)
        assert "b" * 64 in card

    def test_names_are_no_markup(self, state, card_of):
        assert "# my\\|en\\_coder" in card_of(state)


class TestVectors:
    PHASE: ClassVar[dict[str, Any]] = {
        "objective": "contrastive",
        "pairs": "pairs",
        "steps": 5,
        "pooling": "first",
        "query_prompt": "ask: ",
    }

    def card(self, make_state, card_of, format, **phase):
        phases = [RECIPE["phases"][0], self.PHASE | phase]
        ledger = [LEDGER[0], {**LEDGER[1], "objective": "contrastive"}]
        return card_of(
            make_state(recipe={**RECIPE, "phases": phases}, ledger=ledger), format=format
        )

    def test_prompts_are_in_the_example(self, make_state, card_of):
        card = self.card(make_state, card_of, "sentence-transformers")
        assert "model.encode_query(" in card
        assert "model.encode(" not in card
        assert "It was trained with `'ask: '` before every query. `encode_query`" in card

    @pytest.mark.parametrize("attention", ["bidirectional", "causal"])
    def test_an_encoder_has_the_pooling_of_its_training(self, make_state, card_of, attention):
        card = self.card(make_state, card_of, "hf", attention=attention, document_prompt="read: ")
        is_as_trained = attention == "bidirectional"
        assert ("embeddings = states[:, 0]" in card) == is_as_trained
        both = "with `'ask: '` before every query and `'read: '` before every document. Add these"
        assert (both in card) == is_as_trained

    def test_without_prompts(self, state, card_of):
        card = card_of(state, format="sentence-transformers")
        assert "model.encode(" in card
        assert "before every" not in card


class TestCorpus:
    def test_sources_with_licences(self, state, add_corpus, card_of):
        add_corpus()
        card = card_of(state)
        assert rows(card, "hf:some/text") == [["hf:some/text", "mit (1,200)", "1,200", "3.46 M"]]
        assert CORPUS_HASH in card
        assert "(To fill in.)" not in card

    def test_outside_of_the_store(self, state, add_corpus, card_of):
        add_corpus()
        store = state.parent.parent
        [described] = store.glob("data/*/train/corpus.json")
        (store / "texts").mkdir()
        described.rename(store / "texts" / f"{CORPUS_HASH}.json")
        assert rows(card_of(state), "hf:some/text")

    def test_merged(self, state, add_corpus, card_of):
        part = {"documents": 7, "tokens": 70, "licenses": {}}
        parts = [{"provenance": {"by_source": {name: part}}} for name in ("a.txt", "/x/b.txt")]
        add_corpus(provenance={"merged": parts})
        card = card_of(state)
        assert rows(card, "a.txt") == [["a.txt", "to fill in", "7", "70"]]
        assert rows(card, "b.txt")

    def test_elsewhere(self, state, add_corpus, card_of):
        add_corpus(content_hash="f" * 64)
        card = card_of(state)
        assert "not recorded. (To fill in.)" in card
        assert "hf:some/text" not in card

    def test_damaged(self, state, add_corpus, card_of):
        add_corpus(provenance=None)
        assert "not recorded. (To fill in.)" in card_of(state)


class TestScores:
    GRID = ((1e-3, 0, 0.8, 0.70), (1e-4, 0, 0.9, 0.60), (1e-3, 1, 0.7, 0.72), (1e-4, 1, 0.6, 0.99))

    def test_selected_by_validation_with_student(self, state, add_result, card_of):
        for rate, seed, validation, test in self.GRID:
            add_result("reviews", rate, seed, validation, test)
        # Seed 0 takes 1e-4 (test 0.60), seed 1 takes 1e-3 (test 0.72).
        half = stats.t.ppf(0.975, 1) * (0.12 / math.sqrt(2)) / math.sqrt(2)
        expected = f"66.00 (±{100 * half:.2f})"
        assert rows(card_of(state), "reviews") == [
            ["reviews", "accuracy", "2", "1e-4 and 1e-3", expected]
        ]

    def test_several_tasks_and_results_of_other_states(self, state, add_result, card_of):
        add_result("reviews", 1e-3, 0, 0.8, 0.7)
        add_result("news", 1e-3, 0, 0.8, 0.75)
        add_result("foreign", 1e-3, 0, 0.8, 0.9, state="0" * 64)
        card = card_of(state)
        assert "After fine-tuning: for each seed the learning rate" in card
        assert rows(card, "reviews")[0][-1] == "70.00"
        assert rows(card, "news")[0][-1] == "75.00"
        assert "foreign" not in card

    def test_the_hub_gets_metadata(self, state, add_result, card_of, tmp_path):
        for rate, seed, validation, test in self.GRID:
            add_result("reviews", rate, seed, validation, test)
        add_result("lookup", 0.0, 0, None, 0.5, kind="zs")
        card_of(state)
        lookup, reviews = ModelCard.load(tmp_path / "my|en_coder/README.md").data.eval_results
        assert (lookup.task_type, lookup.metric_value) == ("information-retrieval", 0.5)
        assert reviews == EvalResult(
            task_type="text-classification",
            task_name="sequence classification",
            dataset_type="reviews",
            dataset_name="reviews",
            dataset_split="test",
            metric_type="accuracy",
            metric_name="accuracy, mean over 2 seeds",
            metric_value=0.66,  # a share: (0.60 + 0.72) / 2
        )

    def test_two_protocols_cannot_be_distinguished(self, state, add_result, card_of):
        add_result("reviews", 1e-3, 0, 0.8, 0.7)
        add_result("reviews", 1e-3, 0, 0.9, 0.8, steps=20)
        # At different rates as well, if records name the protocols.
        for steps, rate in ((100, 1e-3), (1000, 1e-4)):
            add_result("news", rate, 0, 0.8, 0.7, protocol={"max_steps": steps})
        omitted = [f"- {task}: fine-tuned under several protocols; see the reports\n"
                   for task in ("news", "reviews")]  # fmt: skip
        assert "\n\nOmitted:\n\n" + "".join(omitted) in card_of(state)

    def test_floors_and_references_stand_below_the_table(self, state, add_result, card_of):
        add_result("reviews", 1e-3, 0, 0.8, 0.7, examples_sha256="a")
        floors: list[tuple[str, float, dict[str, Any]]] = [
            ("a", 0.70, {"name": "floor:majority"}),
            ("a", 0.80, {"name": "reference:bag-of-words"}),
            ("b", 0.99, {"name": "floor:majority"}),  # of other examples
        ]
        shape = {"width": 64, "tokenizer": IDENTITY}
        for draw, share in ((0, 0.25), (1, 0.35)):
            floors.append(("a", share, {"name": "floor:random-vectors", **shape, "draw": draw}))
        others = ({**shape, "width": 96}, {**shape, "tokenizer": "of another encoder"})
        floors += [("a", 0.99, {"name": "floor:random-vectors", **other}) for other in others]
        for examples, share, baseline in floors:
            more = {"state": "", "examples_sha256": examples, "baseline": baseline}
            add_result("reviews", 0.0, 0, share, share, **more)
        card = card_of(state)
        assert rows(card, "reviews") == [["reviews", "accuracy", "1", "1e-3", "70.00"]]
        assert (
            "- reviews, for comparison: floors: majority 70.00, random vectors 30.00; "
            "references: bag of words 80.00; not clearly above floor: majority: the model may have "
            "learned nothing.\n\nAn encoder that learned nothing reaches the floors"
        ) in card

    def test_tasks_of_one_name_are_not_mixed(self, state, add_result, card_of):
        add_result("reviews", 1e-3, 0, 0.8, 0.7, examples_sha256="a")
        add_result("reviews", 1e-4, 0, 0.9, 0.8, examples_sha256="b")
        card = card_of(state)
        assert "reviews: several tasks have this name; see the reports" in card
        assert rows(card, "reviews") == []

    def test_diverged(self, state, add_result, card_of):
        add_result("reviews", 1e-3, 0, 0.8, 0.7)
        add_result("reviews", 1e-2, 0, None, None)
        add_result("news", 1e-2, 0, None, None)
        card = card_of(state)
        assert rows(card, "reviews")[0][3] == "1e-3 and 1e-2; 1 diverged"
        assert "news: every fine-tuning diverged" in card

    def test_zero_shot(self, state, add_result, card_of):
        add_result("lookup", 0.0, 0, None, 0.5, kind="zs")
        card = card_of(state)
        assert rows(card, "lookup") == [["lookup", "accuracy", "–", "none (zero-shot)", "50.00"]]
        assert "Without fine-tuning, in percent." in card
        assert "After fine-tuning" not in card

    def test_damaged_records_are_named(self, state, add_result, card_of, tmp_path):
        add_result("reviews", 1e-3, 0, 0.8, 0.7)
        [path] = (tmp_path / "store" / "finetunes").glob("*/result.json")
        path.write_text(path.read_text().replace("0.7", "0.9"))
        card = card_of(state)
        assert "its record is damaged" in card
        assert "90.00" not in card

    def test_none(self, state, card_of):
        card = card_of(state)
        assert "## Scores" not in card
        assert "model-index" not in front_matter(card)


class TestOtherModels:
    def test_decoder_by_birth(self, make_family, card_of):
        card = card_of(make_family("qwen3"))
        assert "Needs transformers 5.2 or newer" in card
        assert "fill-mask" not in card
        assert "Exported from `qwen3`. (To fill in.)" in card

    def test_check_for_old_releases_runs(self, make_family, card_of, tmp_path):
        """It is silent for a model that sees both ways, and speaks up for one that does not."""
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        card = card_of(make_family("qwen3"))
        code = card.partition("earlier state:")[2].partition("```python\n")[2].partition("```")[0]
        assert len(code.splitlines()) == 3
        out = tmp_path / "my|en_coder"
        names = {"tokenizer": AutoTokenizer.from_pretrained(out)}
        exec(code, {**names, "model": AutoModel.from_pretrained(out)})  # noqa: S102
        config = AutoConfig.from_pretrained(out)
        config.is_causal = True
        causal = AutoModel.from_pretrained(out, config=config)
        with pytest.raises(AssertionError, match="runs causally"):
            exec(code, {**names, "model": causal})  # noqa: S102

    def test_raw_llama_fills_no_masks(self, make_family, card_of):
        """Its head is one of a decoder, whatever the class says."""
        card = card_of(make_family("llama"))
        assert 'pipeline("fill-mask"' not in card
        assert "AutoModelForMaskedLM" not in card
        assert "AutoModelForTokenClassification" in card

    def test_sentence_transformers(self, make_family, card_of):
        front = front_matter(card_of(make_family("bert"), format="sentence-transformers"))
        assert front["library_name"] == "sentence-transformers"
        assert front["pipeline_tag"] == "feature-extraction"


HOSTILE = "a`b``c\n---\nlicense: mit\n```\n# x <script>|*{{ 7 * 7 }}{% raw %}\u202e'\"$(id)"


class TestFineTuned:
    @staticmethod
    def write(folder: Path, **details: Any) -> str:
        record = {
            "format": "biphasic.head/1",
            "kind": "sc",
            "form": "sequence-classification",
            "task": "reviews",
            "title": "Reviews",
            "metric": "macro_f1",
            "model": "some-owner/encoder",
            "model_identity": IDENTITY,
            "learning_rate": 1e-4,
            "seed": 3,
            "steps": 7,
            "validation": {"macro_f1": 0.5, "accuracy": 0.625},
            "test": {"macro_f1": 0.75},
            "protocol": {"max_seqlen": 64, "batch_size": 8},
            "labels": ("no", "yes"),
            **details,
        }
        write_json(folder / "config.json", {"is_causal": False})
        name = details.get("title", "mine")
        write_fitted_card(folder, HeadRecord.model_validate(record), name=name, difference=1e-7)
        return (folder / "README.md").read_text("utf-8")

    def test_the_hub_gets_metadata(self, tmp_path):
        card = self.write(tmp_path)
        data = ModelCard.load(tmp_path / "README.md").data
        assert (data.base_model, data.model_name) == ("some-owner/encoder", "mine")
        results = data.eval_results
        assert [(each.dataset_split, each.metric_type, each.metric_value) for each in results] == [
            ("validation", "macro_f1", 0.5),
            ("validation", "accuracy", 0.625),
            ("test", "macro_f1", 0.75),
        ]
        assert rows(card, "macro F1") == [["macro F1", "50.00", "75.00"]]
        assert front_matter(card)["license"] is None

    def test_floors_and_references_stand_below_the_scores(self, tmp_path):
        above = {"floor:majority": 0.499, "reference:bag-of-words": 0.803}
        card = self.write(tmp_path, baselines=above)
        assert "for comparison: floors: majority 49.90; references: bag of words 80.30. An" in card
        card = self.write(tmp_path, baselines={"floor:majority": 0.76})
        below = "below floor: majority: the model may have learned nothing"
        assert f"for comparison: floors: majority 76.00; {below}. An" in card

    def test_vectors_are_made_as_for_the_scores(self, tmp_path):
        def written(kind: str, query: str, document: str) -> str:
            details = {"query_template": query, "document_template": document, "labels": ()}
            return self.write(tmp_path, kind=kind, form="sentence-transformers", **details)

        card = written("zs", "{text}", "{title} {text}")
        assert "`some-owner/encoder`, scored on Reviews without training: it embeds" in card
        assert "encode_query" not in card
        assert "biphasic encode mine texts.txt --out vectors.npy" in card
        prompted = written("zs", "query: {text}", "passage: {title} {text}")
        assert "encode_query" in prompted
        for role in ("query", "document"):
            assert f"mine {role}.txt --prompt {role} --out {role}.npy" in prompted
        assert "a document as `'passage: {title} {text}'`" in prompted
        one = written("ir", "query: {text}", "{title} {text}")
        assert "mine document.txt --out document.npy" in one
        assert "`some-owner/encoder`, fine-tuned on Reviews" in one
        similar = written("sts", "{text}", "{text}")
        assert "scored on Reviews without training: it embeds sentences; similar ones" in similar
        assert front_matter(similar)["pipeline_tag"] == "sentence-similarity"

    @pytest.mark.parametrize(
        ("kind", "form"),
        [
            ("sc", "sequence-classification"),
            ("ir", "sentence-transformers"),
            ("qa", "question-answering"),
            ("tc", "token-classification"),
        ],
    )
    def test_names_are_text(self, kind, form, tmp_path):
        fields = {"task": HOSTILE, "title": HOSTILE, "model": HOSTILE, "template": HOSTILE}
        card = self.write(tmp_path, kind=kind, form=form, test={HOSTILE: 0.5}, **fields)
        front = front_matter(card)
        assert front["license"] is None
        assert "base_model" not in front
        assert "\u202e" not in card
        assert "49" not in card  # of 7 * 7
        _, _, body = card.split("---\n", 2)
        tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
        headings = [
            after.content for token, after in pairwise(tokens)
            if token.type == "heading_open"
        ]  # fmt: skip
        assert headings[1:] == [
            "Use", "Scores", "Training", "Check", "Needs transformers 5.2 or newer"
        ]  # fmt: skip
        inline = [each.type for token in tokens for each in token.children or ()]
        assert "html_block" not in {token.type for token in tokens}
        assert "html_inline" not in inline
        for token in tokens:
            if token.type == "fence" and token.info == "python":
                compile(token.content, "card", "exec")
        assert len([token for token in tokens if token.type == "tr_open"]) == 1 + 3
