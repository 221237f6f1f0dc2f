"""LoRA: trained low-rank additions to the frozen matrices of a model's layers, by peft.

A matrix W becomes W + alpha / rank * B A. A begins with random numbers and B with zeros, so the
model begins as it was. The embedding of the mask token, which a decoder has never read, is trained
as well: the row of the table itself, as an input. Its logit in a tied head follows the row.

Reference: Hu et al. 2021, "LoRA: low-rank adaptation of large language models", arXiv:2106.09685.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from biphasic.errors import ConfigError, ModelError, install_command
from biphasic.model.compute.layers import transformer_layers
from biphasic.model.cpu.kernels import use_own_layers
from biphasic.model.shape import Lora

_ADAPTER = "default"  # peft's name of the only one
_ROW = "mask_row"
_BASE = ".base_layer."  # within names of a wrapped matrix and its bias
_OWN = (".lora_A.", ".lora_B.", f".{_ROW}")  # within names of what is trained


def require_peft() -> None:
    """Raise an error if the package of the extra `lora` is missing."""
    if find_spec("peft") is None:
        raise ConfigError(f"lora needs peft; install with: {install_command('lora')}")


def add_lora(model: PreTrainedModel, lora: Lora, *, seed: int, mask_id: int | None) -> None:
    """Add LoRA to a model in fp32, in place; nothing else trains. `mask_id` is trained, if any."""
    require_peft()
    from peft import inject_adapter_in_model  # noqa: PLC0415 - optional package

    settings = _peft_settings(model, lora, lora_targets(model, lora))
    with torch.random.fork_rng(devices=[]):  # peft draws numbers, which are overwritten
        inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    # From a generator of our own: peft's numbers depend on the global one, and so on earlier work.
    draw_lora(dict(model.named_parameters()), seed=seed)
    # Again: peft has added linear layers that are not ours yet.
    use_own_layers(model)
    if mask_id is not None:
        _train_row(model, mask_id)


def _peft_settings(model: nn.Module, lora: Lora, targets: list[str]) -> Any:
    from peft import LoraConfig  # noqa: PLC0415 - optional package

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.scale,  # type: ignore[arg-type] - a float is as good
        target_modules=targets,
        # GPT-2's Conv1D keeps its matrix transposed, and peft must be told so.
        fan_in_fan_out=isinstance(model.get_submodule(targets[0]), Conv1D),
    )


@torch.no_grad()
def draw_lora(tensors: Mapping[str, Tensor], *, seed: int) -> None:
    """Draw the random numbers that LoRA begins with, as `nn.Linear` does, on any device."""
    # On the CPU, as each device would draw other numbers from the same seed.
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if ".lora_A." in name:
            # `nn.Linear` draws by `kaiming_uniform_(a=sqrt(5))`, whose bound is this.
            bound = tensor.shape[1] ** -0.5
            tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))


def lora_targets(model: PreTrainedModel, lora: Lora) -> list[str]:
    """Return the names of the matrices that get LoRA; raise an error if a target is none."""
    linear = [
        f"{prefix}.{name}"
        for prefix, layer in _named_layers(model)
        for name, module in layer.named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
    ]
    if not linear:
        raise ModelError(f"{type(model).__name__}: its layers have no linear modules for lora")
    for target in lora.targets:
        if not any(_is_named(name, target) for name in linear):
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
            raise ConfigError(f"lora.targets: no linear layer is named '{target}'; give {known}")
    return [n for n in linear if not lora.targets or any(_is_named(n, t) for t in lora.targets)]


def _named_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of the body with their names in the whole model."""
    layers = {id(layer) for _, layer in transformer_layers(model)}
    yield from ((name, part) for name, part in model.named_modules() if id(part) in layers)


def _is_named(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")


def _train_row(model: PreTrainedModel, token_id: int) -> None:
    """Make the row of a token in the embeddings a parameter, whose memory is the table's."""
    table = cast(nn.Embedding, model.get_input_embeddings())
    row = nn.Parameter(table.weight.data[token_id])  # a view: updates change the table
    table.register_parameter(_ROW, row)
    # The table multiplies what it looks up, so the gradient of its row needs the factor as well.
    scale = getattr(table, "embed_scale", 1.0)  # Gemma 3

    def connect(_module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        # Adds zero; the gradient of the row is that of the outputs at the token.
        is_token = (inputs[0] == token_id)[..., None].to(output.dtype)
        return output + is_token * scale * (row - row.detach()).to(output.dtype)

    table.register_forward_hook(connect)


def trains_lora(name: str) -> bool:
    """Return whether a parameter is trained when a model has LoRA."""
    return any(part in name for part in _OWN)


def load_lora(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Copy what `split_lora` returned second into a model with the same LoRA."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)


def split_lora(
    model: PreTrainedModel, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divide fp32 weights of a model: merged under their usual names, and all of LoRA."""
    # The second are what is trained, and the matrices below it. Without LoRA they are empty.
    # A resumed run needs the matrices below: taking the change out of merged ones would round them.
    kept = {name: tensor for name, tensor in tensors.items() if _BASE in name or trains_lora(name)}
    merged = {
        name.replace(_BASE, "."): tensor
        for name, tensor in tensors.items()
        if not trains_lora(name)
    }
    for name, layer in _lora_layers(model):
        if f"{name}.base_layer.weight" in tensors:  # of ranks, only the first has whole ones
            down, up = (tensors[f"{name}.lora_{side}.{_ADAPTER}.weight"] for side in "AB")
            change = _change(down, up, layer.scaling[_ADAPTER], layer.base_layer)
            merged[f"{name}.weight"] = tensors[f"{name}.base_layer.weight"] + change
    return merged, kept


def _change(down: Tensor, up: Tensor, scale: float, matrix: nn.Module) -> Tensor:
    change = scale * (up @ down)
    return change.T if isinstance(matrix, Conv1D) else change


def _lora_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


@dataclass(frozen=True)
class Adapter:
    """The additions of a trained model, apart from the matrices that they change."""

    lora: Lora
    tensors: Mapping[str, Tensor]  # what `split_lora` returned second

    @torch.no_grad()
    def take_out(self, model: PreTrainedModel) -> None:
        """Give a model with merged weights its matrices without the additions, in place."""
        for name, _, matrix in self._matrices(model):
            matrix.weight.copy_(self.tensors[f"{name}{_BASE}weight"])

    @torch.no_grad()
    def merge(self, model: PreTrainedModel) -> None:
        """Add the additions to the matrices of a model, in place."""
        for name, _, matrix in self._matrices(model):
            down, up = (self.tensors[f"{name}.lora_{side}.{_ADAPTER}.weight"] for side in "AB")
            matrix.weight += _change(down, up, self.lora.scale / self.lora.rank, matrix)

    def write(self, model: PreTrainedModel, folder: Path, *, base: str) -> int:
        """Write the additions in peft's format; return how many numbers they have.

        `model` is the body that others add them to, and `base` how they find its folder.
        """
        places = {name: place for name, place, _ in self._matrices(model)}
        settings = _peft_settings(model, self.lora, [*places.values()])
        settings.base_model_name_or_path, settings.inference_mode = base, True
        settings.target_modules = [*places.values()]  # peft keeps a set, in any order
        settings.task_type = "FEATURE_EXTRACTION"  # what peft calls a body without a head
        settings.save_pretrained(str(folder))
        added = {
            f"base_model.model.{place}.lora_{side}.weight": self.tensors[
                f"{name}.lora_{side}.{_ADAPTER}.weight"
            ]
            for name, place in places.items()
            for side in "AB"
        }
        save_file(added, folder / "adapter_model.safetensors", {"format": "pt"})
        return sum(tensor.numel() for tensor in added.values())

    def _matrices(self, model: PreTrainedModel) -> Iterator[tuple[str, str, Any]]:
        """Yield each changed matrix with its name in `tensors` and in the model, or its body."""
        modules = dict(model.named_modules())
        for key in self.tensors:
            name, is_matrix, _ = key.partition(f"{_BASE}weight")
            if is_matrix:
                place = name if name in modules else name.partition(".")[2]
                yield name, place, modules[place]
