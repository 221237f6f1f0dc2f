"""Sizing of runs: memory against arithmetic and against real tensors, what fits, bad input."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from biphasic import estimate
from biphasic.data.packing import pack_sequences
from biphasic.model.compute.layers import recompute_activations
from biphasic.model.cpu.kernels import cpu_kernels
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.lora import add_lora
from biphasic.model.shape import KEPT_KEYS, PRESETS, Architecture, Lora, lora_parameters
from biphasic.study.plan.cost import Parameters, parameters_of, state_bytes
from biphasic.study.sizing.estimate import choose_device, known_devices, least_memory
from biphasic.study.sizing.memory import MARGIN, PROCESS_BYTES, PassShape, Training
from biphasic.training.compute import ComputeConfig
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.muon import Muon
from biphasic.training.recipe import Recipe
from biphasic.training.step.input import Pass, pass_loss
from biphasic.training.step.optimizer import set_precision

TINY = Architecture(
    num_layers=2, hidden_size=48, intermediate_size=112, num_heads=6, num_key_value_heads=2
)
# Queries and output, keys and values (a third as wide), SwiGLU, two norms; and the final norm.
BODY = 2 * (2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 112 + 2 * 48) + 48
VOCAB = 1000
ROW = 40


def recipe(**settings):
    return {
        "model": TINY.model_dump(),
        "max_seqlen": ROW,
        "rows_per_step": 8,
        "learning_rate": {"peak": 1e-3},
        "phases": [{"objective": "clm", "steps": 10}, {"objective": "mlm", "steps": 20}],
        **settings,
    }


def training(**changes):
    tiny = Training(
        architecture=TINY,
        parameters=Parameters(body=BODY, embeddings=48 * VOCAB, head=48 * VOCAB),
        precision="bf16",
        processes=1,
        kernels="cuda",
        recomputes=False,
    )
    return replace(tiny, **changes)


def rows_of(count, **changes):
    return replace(PassShape(count, ROW, supervised=16 * count), **changes)


@pytest.mark.parametrize(
    ("preset", "total"),
    # arXiv 2507.00994, Appendix A, with a vocabulary of 128,256 and an untied head.
    [("210m", 310_266_624), ("610m", 755_625_600), ("1b", 1_409_482_944)],
)
def test_parameters_are_those_of_the_paper(preset, total):
    parameters = parameters_of(Recipe(**recipe(model=preset)), vocab_size=128_256)
    assert parameters.total == total
    assert parameters.embeddings == parameters.head == 128_256 * PRESETS[preset].hidden_size


def test_weights_gradients_and_moments_take_18_bytes():
    peak = training().peak(PassShape(1, 1, supervised=1))  # the update: next to no activations
    total = BODY + 2 * 48 * VOCAB
    assert peak.weights == 2 * (total - 48 * VOCAB)  # embeddings are their own masters
    assert (peak.masters, peak.moments, peak.gradients) == (4 * total, 8 * total, 4 * total)
    in_fp32 = training(precision="fp32").peak(PassShape(1, 1, supervised=1))
    assert in_fp32.weights == 0
    assert in_fp32.total - in_fp32.temporary == 16 * total


def test_muon_keeps_one_moment_of_matrices_in_layers():
    total, matrices = BODY + 2 * 48 * VOCAB, BODY - 5 * 48  # two norms in each layer, and the last
    muon = Muon(name="muon")
    assert training(optimizer=muon).peak(PassShape(1, 1, supervised=1)).moments == 4 * (
        2 * total - matrices
    )
    for optimizer, moments in ((AdamW(), 2 * total), (muon, 2 * total - matrices)):
        made = recipe(optimizer=optimizer)
        assert state_bytes(Recipe(**made), vocab_size=VOCAB) == 4 * (total + moments)
        estimated = estimate(made, vocab_size=VOCAB, devices=2).memory
        assert estimated["sharded"].moments == 4 * moments // 2


def test_lora_has_gradients_and_moments_of_what_it_adds_alone():
    total, one = BODY + 2 * 48 * VOCAB, PassShape(1, 1, supervised=1)
    architecture = training().architecture
    model = new_model(
        architecture_config(
            architecture, vocab_size=VOCAB, max_seqlen=8,
            special_ids={"bos": 0, "eos": 1, "pad": 2, "mask": 3},
        ),
        init_seed=0,
    )  # fmt: skip
    lora = Lora(rank=3, targets=("k_proj", "mlp.up_proj", "down_proj"))
    add_lora(model, lora, seed=0, mask_id=None)
    added = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert lora_parameters(architecture, lora) == added
    assert lora_parameters(architecture, Lora(rank=3)) > added
    peak = training(lora=lora).peak(one)
    assert peak.masters == 4 * (total + added)
    assert peak.weights == 2 * (total - 48 * VOCAB + added)
    assert (peak.moments, peak.gradients) == (8 * added, 0)  # before the backward pass
    assert training(lora=lora).peak(replace(one, num_passes=2)).gradients == 4 * added
    phase = {"objective": "mlm", "steps": 2, "lora": lora}
    made = recipe(phases=[phase])
    estimated = estimate(made, vocab_size=VOCAB).memory["stored"]
    assert estimated.moments == 8 * added
    mixed = recipe(phases=[{"objective": "clm", "steps": 1}, phase])
    assert estimate(mixed, vocab_size=VOCAB).memory["stored"].moments == 8 * total
    after_clm, last = (state_bytes(Recipe(**mixed), vocab_size=VOCAB, end=end) for end in (1, 3))
    assert after_clm == 12 * total > last


def test_a_pretrained_model_is_trained_in_the_memory_of_its_largest_phase(tmp_path):
    special = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
    architecture_config(
        training().architecture, vocab_size=VOCAB, max_seqlen=8, special_ids=special
    ).save_pretrained(tmp_path)
    clm = {"objective": "clm", "steps": 1}
    by_lora = {"objective": "mlm", "steps": 2, "lora": {"rank": 2}}
    full, mixed, lora = (
        least_memory(
            Recipe(**recipe(model={"pretrained": str(tmp_path)}, phases=phases)),
            vocab_size=VOCAB, compute=ComputeConfig(), is_gpu=False,
        )
        for phases in ([clm], [clm, by_lora], [by_lora])
    )  # fmt: skip
    assert full == mixed > lora > 0


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_embeddings_of_a_pretrained_model_count_once(tmp_path, is_tied):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, tie_word_embeddings=is_tied,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    made = Recipe(**recipe(model={"pretrained": str(tmp_path)}))
    model = LlamaForCausalLM(config)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)
    assert parameters_of(made, vocab_size=VOCAB).total == matrices
    assert state_bytes(made, vocab_size=VOCAB) == 12 * matrices


def test_several_passes_and_processes_hold_more_gradients():
    total, embeddings = BODY + 2 * 48 * VOCAB, 48 * VOCAB
    fresh = 2 * (total - embeddings) + 4 * embeddings
    one = PassShape(1, 1, supervised=1)
    alone = training().peak(replace(one, num_passes=2))
    assert alone.gradients == 4 * total + fresh
    # With several processes, embeddings and head are copied to be summed, and layers one by one.
    assert training(processes=2).peak(one).gradients == 4 * total + 2 * 4 * 2 * embeddings


def test_divided_weights_by_hand():
    total, outside, one = BODY + 2 * 48 * VOCAB, 2 * 48 * VOCAB, PassShape(1, 1, supervised=1)
    divided = training(processes=4, shards=4)
    # The update: the layers' weights are divided again, and embeddings and head are summed.
    peak = divided.peak(one)
    assert (peak.weights, peak.masters, peak.moments) == (0, total, 2 * total)
    assert peak.gradients == total + 2 * 4 * outside
    # With many activations: embeddings and head in fp32, the head rounded, and two layers.
    peak = divided.peak(rows_of(512))
    assert peak.weights == 4 * outside + 2 * 48 * VOCAB + 2 * 2 * (BODY // 2)
    assert peak.activations == training(processes=4).peak(rows_of(512)).activations


def test_activations_of_a_layer_by_hand():
    few, more = (
        training().peak(rows_of(512)),
        training(architecture=TINY.model_copy(update={"num_layers": 3})).peak(rows_of(512)),
    )
    norms = 2 * (4 * 48 + 2 * 2 * 48 + 4)  # input in fp32, two results in bf16, the scale
    attention = 2 * (48 + 16 + 16 + 48) + 4 * 6  # query, key, value, result; a sum per head
    feed_forward = 4 * 2 * 112
    assert more.activations - few.activations == 512 * ROW * (norms + attention + feed_forward)


def stored_bytes(architecture, *, precision, recomputes, row_length):
    """Return the bytes that autograd stores for the backward pass of a real model."""
    config = architecture_config(
        architecture,
        vocab_size=VOCAB,
        max_seqlen=row_length,
        special_ids={"bos": 0, "eos": 1, "pad": 2, "mask": 3},
    )
    model = new_model(config, init_seed=0).train()
    set_precision(model, precision)
    if recomputes:
        recompute_activations(model)
    length = min(row_length, KEPT_KEYS)  # which needs most memory
    documents = list(np.full((5 * row_length // length, length), 7))
    batch = pack_sequences(documents, row_length=row_length, pad_id=2)
    given = Pass(
        input_ids=torch.from_numpy(batch.input_ids),
        position_ids=torch.from_numpy(batch.position_ids),
        cu_seqlens=torch.from_numpy(batch.cu_seqlens),
        positions=torch.arange(16 * 5),
        labels=torch.full((16 * 5,), 5),
        max_seqlen=length,
        causal=False,
    )
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            stored[storage.data_ptr()] = storage
        return tensor

    kept = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with cpu_kernels(True), kept:
        pass_loss(model, given)
    return sum(storage.nbytes() for storage in stored.values())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("row_length", [64, 2 * KEPT_KEYS])
def test_activations_are_those_that_autograd_stores(monkeypatch, precision, recomputes, row_length):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("without oneDNN, products of bf16 factors store other tensors")
    # As on a processor without bf16 instructions.
    monkeypatch.setattr("biphasic.model.cpu.products._widens_bf16", lambda: True)
    deeper = TINY.model_copy(update={"num_layers": 3})
    real, counted = [], []
    for architecture in (TINY, deeper):
        size = {"precision": precision, "recomputes": recomputes}
        real.append(stored_bytes(architecture, **size, row_length=row_length))
        tiny = training(
            architecture=architecture, precision=precision, kernels="cpu", recomputes=recomputes
        )
        counted.append(tiny._stored(rows_of(5, row_length=row_length)))
    assert counted[1] - counted[0] == real[1] - real[0]
    # The result of the last norm, the states of the labels, the mask, positions and angles live on
    # without being stored; the weight's gradient is the head's.
    size, tokens = 2 if precision == "bf16" else 4, 5 * row_length
    live = size * (48 * (tokens + 16 * 5) + tokens * (row_length + 2 * 8)) + 16 * tokens
    assert 0 <= counted[0] - (real[0] - size * 48 * VOCAB) <= live


@pytest.mark.parametrize("kernels", ["cuda", "cpu"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("recomputes", [False, True])
def test_memory_grows_with_rows(kernels, precision, recomputes):
    tiny = training(kernels=kernels, precision=precision, recomputes=recomputes)
    totals = [tiny.peak(rows_of(count)).total for count in (1, 2, 3, 10, 100, 1000, 5000, 20_000)]
    assert totals == sorted(set(totals))
    if recomputes:  # which saves memory where activations are most of it
        assert totals[-1] < replace(tiny, recomputes=False).peak(rows_of(20_000)).total


def test_flops_of_objectives_by_hand():
    result = estimate(recipe(), vocab_size=VOCAB)
    matrices = BODY - 5 * 48
    # Six per weight; scores and their sums, four per pair and feature, three times.
    causal = 6 * (matrices + 48 * VOCAB) + 12 * 2 * 48 * (ROW + 1) / 2
    masked = 6 * (matrices + 0.4 * 48 * VOCAB) + 12 * 2 * 48 * ROW
    flops = [phase.objectives[0].flops_per_token for phase in result.phases]
    assert flops == pytest.approx([causal, masked])
    assert result.tokens == 30 * 8 * ROW
    assert result.flops == pytest.approx(8 * ROW * (10 * causal + 20 * masked))


def test_labels_are_those_that_the_head_reads():
    mlm = {"objective": "mlm", "mlm_probability": 0.2}
    mix = {"objective": "mix", "steps": 2, "objectives": [mlm, {"objective": "clm"}],
           "shares": [0.75, 0.25]}  # fmt: skip
    (mixed,) = estimate(recipe(phases=[mix]), vocab_size=VOCAB).phases
    assert mixed.objectives[0].supervised_share == pytest.approx(0.75 * 0.2 + 0.25)
    pairs = {"objective": "contrastive", "steps": 2, "pairs": "none", "batch": 2}
    read = estimate(recipe(phases=[pairs]), vocab_size=VOCAB)
    assert read.phases[0].objectives[0].supervised_share == 0
    assert read.memory["stored"].head == 0


def test_the_peak_of_gpus_is_that_of_bf16():
    line = "the peaks of GPUs are those of bf16"
    assert [line in str(estimate(recipe(precision=each))) for each in ("bf16", "fp32")] == [
        False, True
    ]  # fmt: skip


def test_time_by_hand():
    options = {"flops": 1e9, "memory": 1e12, "mfu": 0.5, "devices": 2}
    result = estimate(recipe(), vocab_size=VOCAB, **options)
    custom, *others = result.times
    seconds = result.flops / (2 * 0.5 * 1e9)
    assert custom.hours == pytest.approx(seconds / 3600)
    assert custom.tokens_per_second == pytest.approx(result.tokens / seconds)
    assert [time.device for time in others] == [name for name in known_devices() if name != "cpu"]


def test_the_study_s_hardware_takes_the_study_s_hours():
    """81,000 hours for the 15 base models, 42,000 steps each (arXiv 2507.00994, section 2)."""
    phases = [{"objective": "clm", "steps": 42_000}]
    phases += [
        {**phases[0], "objective": "mlm", "mlm_probability": p} for p in (0.2, 0.3, 0.4, 0.5)
    ]
    hours = 0.0
    for model in ("210m", "610m", "1b"):
        for phase in phases:
            recipe = {
                "model": model, "max_seqlen": 2048, "rows_per_step": 1152,
                "learning_rate": {"peak": 5e-4}, "phases": [phase],
            }  # fmt: skip
            found = estimate(recipe, vocab_size=128_256, device="mi250x")
            assert (found.mfu, found.times[0].mfu, found.times[1].mfu) == (0.11, 0.11, 0.4)
            hours += found.times[0].hours
    assert hours == pytest.approx(81_000, rel=0.02)


def test_rows_that_fit_are_the_most():
    whole = estimate(recipe(), vocab_size=VOCAB, flops=1e9)
    assert whole.compute is None  # its memory is unknown
    exact = estimate(recipe(), vocab_size=VOCAB, flops=1e9, memory=whole.memory["stored"].total)
    assert exact.phases[0].rows_that_fit["stored"] == 8
    assert exact.compute == {}
    small = estimate(recipe(), vocab_size=VOCAB, flops=1e9, memory=whole.memory["stored"].total - 1)
    fitting = small.phases[0].rows_that_fit["stored"]
    assert 0 <= fitting < 8


def test_suggestions():
    needs = recipe(rows_per_step=100_000)

    def suggested(memory, **changes):
        options = {"vocab_size": VOCAB, "flops": 1e9, "devices": 2, **changes}
        return estimate(needs, memory=memory, **options)

    several = suggested(2e9)
    rows = min(phase.rows_that_fit["stored"] for phase in several.phases)
    assert several.compute == {"processes": 2, "max_tokens_per_pass": rows * ROW}
    assert 0 < rows < 50_000
    for fits in (phase.rows_that_fit for phase in several.phases):
        assert fits["stored"] < fits["sharded"] < fits["both"]
        assert fits["stored"] < fits["recomputed"] < fits["both"]
    assert suggested(PROCESS_BYTES).compute is None
    assert suggested(1e15).compute == {"processes": 2}


def test_margin_and_process_are_added():
    memory = estimate(recipe(), vocab_size=VOCAB).memory["stored"]
    parts = memory.total - memory.margin - memory.process
    assert memory.margin == round(MARGIN * parts)
    assert memory.process == PROCESS_BYTES


def test_objectives_that_take_turns_or_mix():
    parts = [{"objective": "clm"}, {"objective": "mlm", "mlm_probability": 0.2}]
    phases = [
        {"objective": "alternate", "every": 1, "objectives": parts, "steps": 4},
        {"objective": "mix", "shares": [0.5, 0.5], "objectives": parts, "steps": 4},
        {"objective": "mlm", "final_mlm_probability": 0.6, "steps": 4},
    ]
    turns, mix, rising = estimate(recipe(phases=phases), vocab_size=VOCAB).phases
    assert [part.objective for part in turns.objectives] == ["clm", "mlm"]
    assert [part.supervised_share for part in turns.objectives] == [1.0, 0.2]
    first, second = (part.flops_per_token for part in turns.objectives)
    assert mix.objectives[0].flops_per_token == pytest.approx((first + second) / 2)
    assert rising.objectives[0].supervised_share == 0.6


def test_json_round_trip():
    record = estimate(recipe(), vocab_size=VOCAB, devices=2).to_json()
    again = json.loads(json.dumps(record))
    assert again["format"] == "biphasic.estimate/1"
    assert again["parameters"] == {"body": BODY, "embeddings": 48 * VOCAB, "head": 48 * VOCAB}
    assert json.loads(json.dumps(again)) == again
    assert again["memory"].keys() == {"stored", "sharded", "recomputed", "both"}
    for memory in again["memory"].values():
        assert sum(memory.values()) == 2 * memory["total"]


def test_text_names_what_fits():
    result = estimate(recipe(), vocab_size=VOCAB, device="a100-40gb")
    lines = "\n".join(result.lines())
    assert "suggested: the default compute settings" in lines
    assert "a100-40gb: NVIDIA A100" in lines
    unknown = estimate(recipe(), vocab_size=VOCAB, device="cpu", flops=1e11)
    assert "unknown; give its memory" in "\n".join(unknown.lines())


def test_given_numbers_replace_those_of_the_table():
    device = choose_device("h100", memory=94e9)
    assert (device.memory, device.flops) == (94e9, known_devices()["h100"].flops)
    assert device.source.endswith("memory as given")
    assert choose_device(None).name == "h100"


def test_the_command_prints_and_imports_no_torch(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(recipe()), encoding="utf-8")
    program = f"""
import sys
sys.argv = ["biphasic", "estimate", {str(file)!r}, "--set", "model=nano", "--json"]
from biphasic.cli.main import main
try:
    main()
finally:
    print(sorted({{"torch", "transformers", "datasets"}} & set(sys.modules)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    *record, imported = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stderr
    assert imported == "[]"
    assert json.loads("\n".join(record))["model"] == "nano"
