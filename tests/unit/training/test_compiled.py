"""Compiled layers."""

from functools import partial

import pytest
import torch

from biphasic.errors import ModelError
from biphasic.model.compute import layers
from biphasic.training import run
from biphasic.training.step.pending import StepReport
from short_runs import CLM, MIX, MLM, assert_close

# torch hides this one itself, but not where tests turn warnings into errors.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


@pytest.fixture(autouse=True)
def counters(monkeypatch):
    """Compile for the quick backend; return what dynamo counts."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    quick = partial(layers.compile_layers, backend="aot_eager")
    monkeypatch.setattr(run, "compile_layers", quick)
    with torch._dynamo.config.patch(recompile_limit=8):
        yield counters
    torch.compiler.reset()


def test_two_graphs_for_each_direction_give_the_results_of_none(train, make_recipe, counters):
    phases = [CLM, MLM, {**CLM, "learning_rate_scale": 0.5}, MLM]
    recipe = make_recipe(*phases, precision="fp32")
    options = {"heldout_every": 2}
    plain = train(recipe, "plain", options=options)
    graphs: list[int] = []

    def report(done: StepReport) -> None:
        graphs.append(counters["stats"]["unique_graphs"])

    whole = train(
        recipe,
        "compiled",
        options={**options, "report": report},
        compile=True,
    )
    small = 1  # what was tried out first
    # The last layer has a graph of its own.
    assert [count - small for count in graphs] == [2] * 3 + [4] * 9
    assert not counters["graph_break"]
    assert_close(plain, whole)
    assert (plain / "config.json").read_bytes() == (whole / "config.json").read_bytes()


def test_everything_at_once(train, make_recipe, counters):
    recipe = make_recipe({**MIX, "steps": 3}, rows_per_step=8, precision="fp32")
    plain = train(recipe, "plain")
    folder = train(
        recipe,
        "all",
        compile=True,
        activation_checkpointing=True,
        max_tokens_per_pass=64,
        read_back_every=2,
    )
    # Two rows a pass in both directions.
    assert counters["stats"]["unique_graphs"] == 1 + 2 * 2
    assert_close(plain, folder)


def test_no_compiler(training_data, make_recipe):
    def refuse(graph, inputs):
        raise RuntimeError("No working C++ compiler found in\n  CXX")

    model = run.first_model(make_recipe(), training_data)
    with pytest.raises(ModelError) as caught:
        layers.compile_layers(model, backend=refuse)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith("compile: torch cannot compile for cpu here (")
    assert "No working C++ compiler found in CXX" in text
    assert text.endswith("or set compile: false")


def test_a_model_without_layers():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="no layers to compile"):
        layers.compile_layers(model)  # type: ignore[arg-type]
