"""Loads an exported folder without biphasic; run as a script, never imported.

It reads `request.json` and `expected.safetensors` in its working folder, and writes
`fp32.safetensors` and `found.json` there, and `fp64.safetensors` if fp32 rounding may explain a
difference: a second process would import and start everything again.
"""

# ruff: noqa: E402 - blocks an import before all others

import sys

sys.modules["biphasic"] = None  # type: ignore[assignment]  # importing it now raises

import json
import os
from functools import partial
from pathlib import Path

# An isolated interpreter ignores packages installed for a single user.
sys.path.extend(part for part in sys.argv[2:] if part not in sys.path)
# The folder must suffice: what is missing in it may not be fetched.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_MODULES_CACHE"] = str(Path(sys.argv[1]) / "modules")  # for a class in the folder

import torch
import transformers
from safetensors.torch import load_file, save_file

WORK = Path(sys.argv[1])
REQUEST = json.loads((WORK / "request.json").read_text(encoding="utf-8"))
FOLDER = REQUEST["folder"]
OWN_CODE = {"trust_remote_code": REQUEST["needs_code"]}


def padded(sequences: list[list[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask of sequences, padded on the right."""
    longest = max(map(len, sequences))
    ids = [[*sequence, *[pad_id] * (longest - len(sequence))] for sequence in sequences]
    mask = [[1] * len(sequence) + [0] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(ids), torch.tensor(mask)


@torch.no_grad()
def states(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return hidden states alone, in a padded batch, and after a change to a later token."""
    model = transformers.AutoModel.from_pretrained(FOLDER, dtype=dtype, **OWN_CODE).eval()
    if REQUEST["adapter"]:
        from peft import PeftModel  # noqa: PLC0415 - only if requested

        model = PeftModel.from_pretrained(model, REQUEST["adapter"])
    tensors = {}
    sequences = REQUEST["sequences"]
    for number, sequence in enumerate(sequences):
        alone = model(input_ids=torch.tensor([sequence])).last_hidden_state[0]
        tensors[f"alone.{number}"] = alone
    ids, mask = padded(sequences, REQUEST["pad_id"])
    many = model(input_ids=ids, attention_mask=mask).last_hidden_state
    for number, sequence in enumerate(sequences):
        tensors[f"many.{number}"] = many[number, : len(sequence)]
    changed = torch.tensor([REQUEST["changed"]])
    tensors["changed"] = model(input_ids=changed).last_hidden_state[0]
    return tensors


@torch.no_grad()
def logits() -> torch.Tensor:
    """Return the language-model head's logits for one sequence."""
    kind = getattr(transformers, REQUEST["head"])
    model = kind.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return model(input_ids=torch.tensor([REQUEST["probe"]])).logits[0]


def embeddings(dtype: torch.dtype) -> torch.Tensor:
    """Return the embeddings of the texts by sentence-transformers."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - only if requested

    model = SentenceTransformer(FOLDER, device="cpu", model_kwargs={"dtype": dtype}, **OWN_CODE)
    if REQUEST["adapter"]:
        model.load_adapter(REQUEST["adapter"])
    return model.encode(REQUEST["embedded"], convert_to_tensor=True)


def ids_of_texts() -> dict[str, list[list[int]]]:
    """Return the ids of texts and of a pair, by `AutoTokenizer`."""
    load = partial(transformers.AutoTokenizer.from_pretrained, FOLDER, **OWN_CODE)
    tokenizer, whole = load(), load(split_special_tokens=True)
    return {
        "texts": [tokenizer(text, truncation=True)["input_ids"] for text in REQUEST["texts"]],
        "pair": [tokenizer(*REQUEST["pair"])["input_ids"]],
        "spelt": [whole(REQUEST["spelt"])["input_ids"]],
        "roles": [[tokenizer.mask_token_id, tokenizer.pad_token_id]],
    }


def outputs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the outputs that are compared in a precision, as fp32."""
    tensors = states(dtype)
    if REQUEST["embedded"]:
        tensors["embeddings"] = embeddings(dtype)
    return {key: value.float().contiguous() for key, value in tensors.items()}


def may_be_rounding(tensors: dict[str, torch.Tensor]) -> bool:
    """Return whether outputs hardly differ from those expected; decides only what is computed."""
    differences = []
    for key, ours in load_file(WORK / "expected.safetensors").items():
        if tensors[key].shape != ours.shape:
            return False
        scale = ours.abs().max().clamp(min=1.0)
        differences.append((tensors[key] - ours).abs().max() / scale)
    # Smaller differences need no second look, and rounding explains no larger ones.
    return REQUEST["tolerance"] < torch.stack(differences).max().item() <= REQUEST["rounding"]


def main() -> None:
    """Process the request."""
    ids = ids_of_texts()
    tensors = outputs(torch.float32)
    if may_be_rounding(tensors):
        save_file(outputs(torch.float64), WORK / "fp64.safetensors")
    if REQUEST["head"]:
        tensors["logits"] = logits()
    save_file(tensors, WORK / "fp32.safetensors")
    report = {
        "ids": ids,
        "transformers": transformers.__version__,
        "has_biphasic": any(
            name.split(".")[0] == "biphasic" and module is not None
            for name, module in sys.modules.items()
        ),
    }
    (WORK / "found.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
