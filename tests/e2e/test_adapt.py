"""`biphasic adapt`: from a decoder on disk to an encoder that others load."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, Gemma3Config, Gemma3TextConfig

from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.files import read_json
from biphasic.model.loading.hub import LocalModel
from families import save_family
from mini_study import states

pytestmark = pytest.mark.slow

SHORT = ("--steps", "4", "--rows-per-step", "2", "--max-seqlen", "32", "--precision", "fp32")


@pytest.fixture(scope="module")
def without_mask(documents) -> TextTokenizer:
    """A decoder's tokenizer: it declares no mask token, and has none that could be one."""
    trained = train_tokenizer([text for _, text in documents], vocab_size=320)
    renamed = json.dumps(trained.rules()).replace("<|mask|>", "<|image|>")
    tokens = {role: token for role, token in trained.special_tokens.items() if role != "mask"}
    return TextTokenizer(Tokenizer.from_str(renamed), tokens)


@pytest.fixture
def decoder(tmp_path, without_mask) -> Path:
    """A Qwen3 in the hub's format."""
    special = without_mask.special_ids
    ids = {f"{role}_token_id": special[role] for role in ("bos", "eos", "pad")}
    folder = save_family("qwen3", tmp_path / "decoder", vocab_size=without_mask.vocab_size, **ids)
    without_mask.save(folder)
    return folder


@pytest.fixture
def adapt(cli, tmp_path, text_file):
    def run(model: Path, *options: str, corpus: Path | str | None = None, out: str = "encoder"):
        arguments = ("--corpus", str(corpus or text_file), "--root", tmp_path / "runs", *options)
        return cli("adapt", str(model), *SHORT, "--out", tmp_path / out, *arguments)

    return run


def test_a_decoder_becomes_an_encoder(decoder, adapt, tmp_path):
    before = {path.name: path.read_bytes() for path in decoder.iterdir()}
    code, out, err = adapt(decoder)
    assert code == 0, err
    assert {path.name: path.read_bytes() for path in decoder.iterdir()} == before
    folder = tmp_path / "encoder"
    assert str(folder) in out
    assert re.search(r"held-out loss in nats per token: MLM \d", err)
    # As others load it: it sees both ways, and has a mask token that it was trained with.
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.mask_token_id == model.config.vocab_size - 1
    assert model.get_input_embeddings().weight.shape[0] == tokenizer.mask_token_id + 1
    with torch.no_grad():
        one, other = (
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state
            for text in ("rows tokens", "rows memory")
        )
    assert not torch.equal(one[0, 1], other[0, 1])  # a token of "rows" sees what comes after
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(folder)).encode("rows of tokens").shape == (32,)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "mlm" in card.lower()


def test_lora_is_merged_at_export_and_leaves_the_rest_to_the_bit(decoder, adapt, tmp_path):
    """The decoder's head is tied, and its mask token is new; transformers checks the export."""
    code, _, err = adapt(decoder, "--lora", "rank=2", "--lora", "targets=[q_proj,down_proj]")
    assert code == 0, err
    before = load_file(decoder / "model.safetensors")
    after = load_file(tmp_path / "encoder" / "model.safetensors")
    assert before.keys() == after.keys()
    table = "model.embed_tokens.weight"
    assert len(after[table]) == len(before[table]) + 1  # the mask token's row
    assert torch.equal(after[table][:-1], before[table])
    assert not torch.equal(after[table][-1], before[table].mean(0))
    changed = {
        name for name in before if name != table and not torch.equal(before[name], after[name])
    }
    parts = ("self_attn.q_proj", "mlp.down_proj")
    assert changed == {f"model.layers.{n}.{part}.weight" for n in (0, 1, 2) for part in parts}
    again = adapt(decoder, "--lora", "rank=2", "--lora", "targets=[q_proj,down_proj]")
    assert (again[0], "nothing to do" in again[2]) == (0, True)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # peft reads it
@pytest.mark.parametrize("options", [(), ("--format", "hf")])
def test_an_adapter_is_beside_the_base(options, decoder, adapt, cli, tmp_path):
    """The adapter changes what LoRA trained, and nothing else; peft alone gives our vectors."""
    lora = ("--lora", "rank=2", "--lora", "targets=[q_proj,down_proj]")
    assert adapt(decoder, *lora)[0] == 0
    code, _, err = adapt(decoder, *lora, *options, "--adapter", out="apart")
    assert code == 0, err
    apart = tmp_path / "apart"
    before, base = (load_file(at / "model.safetensors") for at in (decoder, apart / "base"))
    for name, tensor in base.items():
        theirs = before[f"model.{name}"]
        assert torch.equal(tensor[: len(theirs)], theirs), name
    added = load_file(apart / "adapter" / "adapter_model.safetensors")
    assert len(added) == 3 * 2 * 2
    assert all(".lora_" in name for name in added)
    config = json.loads((apart / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == "base"
    model = AutoModel.from_pretrained(apart, subfolder="base").eval()
    from peft import PeftModel

    model = PeftModel.from_pretrained(model, apart, subfolder="adapter").merge_and_unload()
    merged = AutoModel.from_pretrained(tmp_path / "encoder").eval()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=0, atol=1e-7)
    card = (apart / "README.md").read_text(encoding="utf-8")
    assert "library_name: peft" in card
    assert "PeftModel.from_pretrained(model, 'apart/adapter')" in card
    assert cli("push", apart, "me/apart")[0] == 0
    (tmp_path / "texts.txt").write_text("One text.\n", encoding="utf-8")
    code, _, err = cli("encode", apart, tmp_path / "texts.txt", "--out", tmp_path / "v.npy")
    assert (code, "an adapter beside its base" in err) == (2, True), err
    for part in ("base", "adapter"):  # neither is an export by itself
        (apart / part).rename(tmp_path / part)
        assert cli("push", apart, "me/apart")[0] == 2
        (tmp_path / part).rename(apart / part)
    code, _, err = adapt(decoder, *lora, *options, "--adapter", out="apart")
    assert (code, "nothing to do" in err) == (0, True)
    (state,) = {path.parent for path in tmp_path.glob("runs/store/states/*/lora.safetensors")}
    code, _, err = cli("export", state, tmp_path / "half", "--adapter", "--precision", "bf16")
    assert code == 0, err  # our vectors have the same rounded base, and an adapter in fp32
    half = load_file(tmp_path / "half" / "base" / "model.safetensors")
    assert {tensor.dtype for tensor in half.values()} == {torch.bfloat16}
    both = (tmp_path / at / "adapter" / "adapter_model.safetensors" for at in ("half", "apart"))
    assert next(both).read_bytes() == next(both).read_bytes()
    targets = config["target_modules"]
    assert targets == [
        f"layers.{n}.{t}" for n in range(3) for t in ("mlp.down_proj", "self_attn.q_proj")
    ]
    card = (tmp_path / "half" / "README.md").read_text(encoding="utf-8")
    assert "Weights of the base were rounded" in card


def test_an_adapter_needs_lora(decoder, adapt, cli, tmp_path):
    code, _, err = adapt(decoder, "--adapter")
    assert (code, "adapter: there is none without lora" in err) == (2, True), err
    assert adapt(decoder)[0] == 0
    state = next(tmp_path.glob("runs/store/states/*/state.json")).parent
    for of in (state, tmp_path / "encoder"):
        code, _, err = cli("export", of, tmp_path / "apart", "--adapter")
        assert (code, "is no state whose last phase had lora" in err) == (2, True), err
    code, _, err = cli("export", state, tmp_path / "apart", "--adapter", "--format", "onnx")
    assert (code, "a graph has merged weights" in err) == (2, True), err


@pytest.mark.parametrize("setting", ["lora", "freeze"])
def test_names_that_the_model_lacks_are_refused_before_text_is_read(
    cli, decoder, text_file, tmp_path, setting
):
    named = {"lora": {"rank": 2, "targets": ["qproj"]}, "freeze": ["qproj"]}[setting]
    recipe = {
        "model": {"pretrained": str(decoder)},
        "max_seqlen": 16,
        "rows_per_step": 2,
        "learning_rate": {"peak": 1e-3},
        "phases": [{"objective": "mntp", "steps": 2, setting: named}],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (tmp_path / "corpus.yaml").write_text(
        json.dumps({"sources": [{"source": str(text_file)}], "tokenizer": str(decoder)})
    )
    place = ("--corpus", tmp_path / "corpus.yaml", "--root", tmp_path / "runs")
    code, _, err = cli("pretrain", tmp_path / "recipe.yaml", *place)
    assert (code, f"phases.0.{setting}" in err, "'qproj'" in err) == (2, True, True), err
    assert not list((tmp_path / "runs").rglob("built.json"))


def test_lora_without_its_package_is_refused_before_text_is_read(
    cli, text_file, tmp_path, monkeypatch
):
    monkeypatch.setattr("biphasic.model.lora.find_spec", lambda _: None)
    phases = [{"objective": "clm", "steps": 2}, {"objective": "mlm", "steps": 2}]
    phases[1]["lora"] = {"rank": 2}
    recipe = {"model": "pico", "learning_rate": {"peak": 1e-3}, "phases": phases}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    place = ("--corpus", str(text_file), "--root", tmp_path / "runs")
    code, _, err = cli("pretrain", tmp_path / "recipe.yaml", *place)
    assert (code, "lora needs peft" in err, "pip install" in err) == (2, True, True), err
    assert not list((tmp_path / "runs").rglob("built.json"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_phases_with_lora_are_probed_trained_and_exported(cli, text_file, tmp_path, precision):
    lora = {"objective": "mntp", "steps": 2, "lora": {"rank": 2}}
    recipe = {
        "model": "pico",
        "max_seqlen": 41,  # of no other test: a model is compared with transformers' once
        "rows_per_step": 2,
        "precision": precision,
        "learning_rate": {"peak": 1e-3},
        "phases": [{"objective": "clm", "steps": 2}, lora, {**lora, "objective": "mlm"}],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    place = ("--corpus", str(text_file), "--root", tmp_path / "runs")
    code, _, err = cli("pretrain", tmp_path / "recipe.yaml", *place)
    assert code == 0, err
    made = {
        read_json(folder / "state.json")["step"]: folder for folder in states(tmp_path / "runs")
    }
    assert sorted(made) == [2, 4, 6]  # where LoRA begins, where it begins anew, and the last
    code, _, err = cli("export", made[6], tmp_path / "out")
    assert code == 0, err


def test_a_run_with_lora_is_interrupted_cleaned_and_continued(cli, tmp_path, text_file):
    """Each call makes one or two updates, and probes the model, also one with LoRA."""
    of_lora = {"objective": "mlm", "steps": 2, "lora": {"rank": 2}}
    phases = [{"objective": "clm", "steps": 2}, of_lora]
    raw = {"model": "pico", "phases": phases, "learning_rate": {"peak": 1e-3}, "max_seqlen": 32}
    recipe, runs = tmp_path / "recipe.yaml", tmp_path / "runs"
    recipe.write_text(json.dumps(raw), encoding="utf-8")
    command = ("pretrain", recipe, "--corpus", text_file, "--root", runs)
    codes, before = [], set[Path]()
    for _ in range(3):
        code, _, err = cli(*command, "--max-time", "00:00:00")
        codes.append(code)
        assert before <= (before := {*states(runs)}), err
        cli("study", "clean", "--root", runs, "--delete")
    assert (codes, len(states(runs))) == ([130, 130, 0], 2)


@pytest.mark.usefixtures("unchecked")
def test_run_again_finds_the_training_done(decoder, adapt, tmp_path):
    adapt(decoder, "--format", "hf")
    [state] = states(tmp_path / "runs")
    written = state.joinpath("state.json").stat().st_mtime_ns
    code, _, err = adapt(decoder, "--format", "hf", out="again")
    assert code == 0, err
    assert state.joinpath("state.json").stat().st_mtime_ns == written
    one, other = (load_file(tmp_path / each / "model.safetensors") for each in ("encoder", "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    code, out, err = adapt(decoder, "--format", "hf", out="again")
    assert (code, out) == (0, f"encoder: {tmp_path / 'again'}\n")
    assert "already made from the same model, text and settings; nothing to do" in err
    code, _, err = adapt(decoder, "--format", "hf", "--seed", "1", out="again")
    assert (code, "made from another model, text or settings" in err) == (2, True)
    assert states(tmp_path / "runs") == [state]


@pytest.fixture
def unexported(monkeypatch) -> None:
    """Leave the export out: it takes most of the time."""
    monkeypatch.setattr("biphasic.export.write.write_export", lambda _, out, *__, **___: out)


@pytest.fixture
def built(cli, tmp_path, text_file) -> Path:
    folder = tmp_path / "corpus"
    code, _, err = cli("corpus", "build", text_file, "--vocab-size", "320", "--out", folder)
    assert code == 0, err
    return folder


@pytest.mark.usefixtures("unexported")
def test_a_state_continues_its_own_run(cli, adapt, built, tmp_path):
    """New rows, the same optimizer: the very state that one run with two phases has."""
    schedule = "{peak: 2.0e-3, warmup_steps: 1, decay_steps: 2}"
    recipe = (
        "model: pico\nmax_seqlen: 32\nrows_per_step: 2\nprecision: fp32\n"
        f"learning_rate: {schedule}\nphases:\n- {{objective: clm, steps: 5}}\n"
    )
    (tmp_path / "clm.yaml").write_text(recipe)
    second = "- {objective: mlm, steps: 4, learning_rate: {peak: 2.0e-3, warmup_steps: 1}}\n"
    (tmp_path / "both.yaml").write_text(recipe + second)
    states = {}
    for name in ("clm", "both"):
        arguments = ("--corpus", built, "--root", tmp_path / name)
        code, out, err = cli("pretrain", tmp_path / f"{name}.yaml", *arguments)
        assert code == 0, err
        states[name] = Path(out.strip())
    options = ("--warmup-steps", "1", "--decay-steps", "0")
    # From another store, whence it is copied.
    code, _, err = adapt(states["clm"], *options, corpus=built)
    assert code == 0, err
    assert "after its 5 steps" in err
    adapted = tmp_path / "runs" / "store" / "states" / states["both"].name
    one, other = (load_file(each / "model.safetensors") for each in (adapted, states["both"]))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert read_json(adapted / "state.json")["parent"] == states["clm"].name


@pytest.mark.usefixtures("unexported")
def test_an_adapted_model_is_adapted_on_as_one_run(decoder, adapt, tmp_path):
    """The second training reads new rows, although the first began with a finished model."""
    code, _, err = adapt(decoder)
    assert code == 0, err
    [corpus] = (tmp_path / "runs" / "store" / "data").iterdir()
    [first] = states(tmp_path / "runs")
    code, _, err = adapt(first, corpus=corpus, out="further")
    assert code == 0, err
    assert "after its 4 steps" in err
    [second] = set(states(tmp_path / "runs")) - {first}
    assert read_json(second / "state.json")["parent"] == first.name
    assert [phase["steps"] for phase in read_json(second / "state.json")["ledger"]] == [4, 4]


@pytest.mark.usefixtures("unexported")
def test_a_model_of_the_hub_keeps_its_name(decoder, adapt, tmp_path, monkeypatch):
    def fetch(name, *, revision=None):
        assert (str(name), revision) in {("owner/decoder", None), ("owner/decoder", "c0ffee")}
        return LocalModel(decoder, "0" * 64, "c0ffee")

    monkeypatch.setattr("biphasic.model.loading.hub.fetch_model", fetch)
    monkeypatch.setattr("biphasic.study.inputs.models.fetch_model", fetch)
    code, _, err = adapt("owner/decoder", "--optimizer", "muon")
    assert code == 0, err
    [state] = states(tmp_path / "runs")
    recipe = read_json(state / "state.json")["recipe"]
    assert recipe["optimizer"]["name"] == "muon"
    assert recipe["model"] == {"pretrained": "owner/decoder", "revision": "c0ffee"}


@pytest.mark.usefixtures("unexported")
def test_a_state_on_other_text_is_a_model_like_any_other(cli, adapt, built, tmp_path):
    recipe = "model: pico\nmax_seqlen: 32\nrows_per_step: 2\nlearning_rate: {peak: 1.0e-3}\n"
    (tmp_path / "recipe.yaml").write_text(recipe + "phases: [{objective: clm, steps: 2}]\n")
    arguments = ("--corpus", built, "--root", tmp_path / "first")
    _, out, _ = cli("pretrain", tmp_path / "recipe.yaml", *arguments)
    other = tmp_path / "other.jsonl"
    lines = [json.dumps({"text": f"stream {n} of other text, {n} after index"}) for n in range(400)]
    other.write_text("\n".join(lines), encoding="utf-8")
    code, _, err = adapt(Path(out.strip()), corpus=other)
    assert code == 0, err
    assert "continuing the run" not in err
    assert "run cannot be continued" in err


def _wrong_shapes(decoder: Path) -> None:
    weights = load_file(decoder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()
    save_file(weights, decoder / "model.safetensors", {"format": "pt"})


def _other_vocabulary(decoder: Path) -> None:
    config = read_json(decoder / "config.json")
    weights = load_file(decoder / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:200].clone()
    save_file(weights, decoder / "model.safetensors", {"format": "pt"})
    (decoder / "config.json").write_text(json.dumps({**config, "vocab_size": 200}))


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), (), "no weights here"),
        (_wrong_shapes, (), "model.norm.weight"),
        (_other_vocabulary, (), "build the corpus with '--tokenizer"),
        (lambda folder: (folder / "tokenizer.json").unlink(), (), "no tokenizer.json"),
        (None, ("--mlm-probability", "0"), "mlm_probability: input should be greater than 0"),
        (None, ("--mlm-probability", "1.5"), "mlm_probability: input should be less than or equal"),
        (
            None,
            ("--optimizer", "mun"),
            "optimizer.name: unknown value 'mun' (did you mean 'muon'?)",
        ),
        (None, ("--objective", "clmm"), "objective: unknown value 'clmm'; give mlm or mntp"),
        (None, ("--learning-rate", "-1"), "learning_rate.peak: input should be greater than 0"),
        (None, ("--warmup-steps", "9"), "exceed the 4 steps"),
        (None, ("--max-seqlen", "4096"), "exceeds the model's 64 positions"),
        (None, ("--format", "onyx"), "give hf, sentence-transformers or onnx"),
    ],
)
def test_bad_input_is_one_line_and_costs_nothing(
    decoder, adapt, tmp_path, damage, options, message
):
    if damage:
        damage(decoder)
    code, out, err = adapt(decoder, *options)
    assert code != 0
    assert out == ""
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert message in line
    assert not (tmp_path / "encoder").exists()
    assert not states(tmp_path / "runs")


def test_an_output_folder_that_exists_is_left_as_it_is(decoder, adapt, tmp_path):
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "thesis.txt").write_text("precious")
    code, _, err = adapt(decoder)
    assert code == 2
    assert "already exists" in err
    assert (tmp_path / "encoder" / "thesis.txt").read_text() == "precious"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--compute", "processes=3", "rows_per_step: 2 are fewer"),
        ("--compute", "max_tokens_per_pass=5", "5 tokens are fewer than a row"),
        ("--skip-step", "500", "skip_steps: no step 500"),
    ],
)
def test_what_does_not_fit_the_steps_is_refused_before_the_corpus_is_built(
    decoder, adapt, tmp_path, option, value, problem
):
    code, _, err = adapt(decoder, option, value)
    assert code == 2
    assert problem in err
    assert not [*(tmp_path / "runs").rglob("data")]


def test_a_family_that_stays_causal_is_refused_by_its_layer(adapt, tmp_path, tokenizer):
    folder = save_family("stablelm", tmp_path / "stablelm", tokenizer=tokenizer)
    code, _, err = adapt(folder)
    assert code == 2
    assert "error: " in err
    assert "layer" in err or "StableLm" in err


@pytest.mark.usefixtures("unexported")
@pytest.mark.parametrize(("place", "said"), [(20, True), (90, False)])
def test_text_that_a_long_document_ends_is_reported(
    decoder, adapt, tmp_path, monkeypatch, place, said
):
    """Training reads at most 4 x 2 x 30 tokens of text."""
    monkeypatch.setattr("biphasic.api.adapt.LEAST_TOKENS", 700)
    texts = [f"rows of {number}" for number in range(120)]
    texts.insert(place, "tokens " * 900)
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "corpus.yaml").write_text("sources: [t.jsonl]\nheldout_fraction: 0.3\n")
    for out in ("first", "again"):
        code, _, err = adapt(decoder, corpus=tmp_path / "corpus.yaml", out=out)
        assert code == 0, err
        assert ("warning: t.jsonl: the text ends after" in err) == said
        assert ("training reads up to 240, so it repeats text" in err) == said


def test_a_tokenizer_of_the_text_is_refused(decoder, adapt, built, tmp_path, text_file):
    path = tmp_path / "corpus.yaml"
    path.write_text(f"sources: [{text_file}]\ntokenizer: {built / 'tokenizer'}\n")
    code, _, err = adapt(decoder, corpus=path)
    assert code == 2
    assert f"corpus: 'tokenizer' is {built / 'tokenizer'}; omit it" in err


def test_a_model_of_images_and_text_is_refused_in_one_line(decoder, adapt):
    """Its configuration states no width."""
    text = Gemma3TextConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = Gemma3Config(text_config=text, vision_config={"num_hidden_layers": 1})
    config.save_pretrained(decoder)
    code, _, err = adapt(decoder)
    assert code == 2
    assert err.splitlines()[-1].endswith("a model of type 'gemma3' reads more than text")


def test_the_corpus_must_be_made_with_the_models_tokenizer(decoder, adapt, built):
    code, _, err = adapt(decoder, corpus=built)
    assert code != 0
    assert "token" in err.splitlines()[-1]
