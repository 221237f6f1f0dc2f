"""Final check of an export: `reload.py`, without biphasic, must reproduce our outputs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel

from biphasic.data.packing import Batching, TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import BiphasicError, ModelError, naming, system_fault_in
from biphasic.export import Dtype
from biphasic.export.hf import Source, WrittenModel, pair_ids, round_weights, write_tokenizer
from biphasic.files import ADAPTER, read_json, write_json
from biphasic.locks import Say
from biphasic.model.compute.device import on_compute_device
from biphasic.model.compute.forward import batching_of, padded_states, pooled
from biphasic.model.contract import check_contract, load_checked_encoder
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.reading import loading
from biphasic.seeds import stream
from biphasic.tasks.embedding import TrainedVectors
from biphasic.tasks.encoding import Encoder, FinetunedModel, encode_texts
from biphasic.tasks.records import Form
from biphasic.tasks.use import load_finetuned

# For hidden states, logits and embeddings: relative to the largest value, or to 1 if smaller.
TOLERANCE = 1e-5
FITTED_TOLERANCE = 1e-4  # of outputs of fine-tuned models, relative to the largest output
# Larger differences are refused at once: fp32 rounding in a deep or wide model is smaller.
_ROUNDING = 1e-3
_SCRIPT = Path(__file__).with_name("reload.py")
_HIDDEN, _PADDED = "hidden states", "hidden states in a padded batch"
_NAMES = {"alone": _HIDDEN, "many": _PADDED}
TEXTS = (
    "An encoder reads a sentence in both directions.",
    "Zwölf Boxkämpfer: 世界, naïve cafés & 3.14 😀",
    "def add(a, b):\n    return a + b  # two\tspaces",
    # Longer than most limits, so that truncation is compared as well.
    "again and again " * 800 + "the end",
    "",
)
PAIR = ("Who reads it?", "An encoder reads it, in both directions.")
_SHORT, _MIDDLE, _LONG = 5, 23, 48
_LONGEST = 1024  # longest sequence read, in tokens; longer ones would take minutes


@dataclass(frozen=True)
class Reference:
    """Outputs of the source model in biphasic."""

    batching: Batching  # how the model reads sequences in biphasic
    # Token ids of three lengths; the last is longer than any window of up to 1,015.
    sequences: list[list[int]]
    # In fp32: as `alone.N`, the final states of the sequence N on its own, [length, hidden_size];
    # as `many.N`, those in a batch of all sequences, which differ where rotary frequencies depend
    # on the longest sequence of a batch (Phi-3's long context); as `embeddings`, the vectors of
    # `embedded`, [num_texts, hidden_size].
    outputs: dict[str, Tensor] = field(repr=False)
    vectors: TrainedVectors
    embedded: list[str]  # the texts of `TEXTS` that are short enough to embed quickly
    text_ids: list[list[int]]  # ids of each of `TEXTS`, cut to the longest input
    pair_ids: list[int]  # ids of `PAIR`
    spelt: str  # a text that spells the mask token
    spelt_ids: list[int]  # its ids as plain text


@torch.no_grad()
def read_reference(source: Source, vectors: TrainedVectors, *, dtype: Dtype) -> Reference:
    """Run a model, rounded to `dtype`, as fine-tuning and evaluation do; probe its attention."""
    model = load_checked_encoder(source.folder, causal=vectors.causal)
    _round(model, source, dtype)
    tokenizer, limit = source.tokenizer, source.max_seqlen
    sequences = [ids.tolist() for ids in _sequences(tokenizer, model.config, limit=limit)]
    read, _ = encode_texts(TEXTS, tokenizer, max_seqlen=limit or 1 << 30)
    embedded = [text for text, ids in zip(TEXTS, read, strict=True) if len(ids) <= _LONGEST]
    spelt = f"a {tokenizer.special_tokens['mask']} b"
    return Reference(
        batching=batching_of(model),
        sequences=sequences,
        outputs=_outputs(model, source, vectors, sequences=sequences, embedded=embedded),
        vectors=vectors,
        embedded=embedded,
        text_ids=[ids.tolist() for ids in read],
        pair_ids=pair_ids(tokenizer, *PAIR),
        spelt=spelt,
        spelt_ids=[tokenizer.bos_id, *tokenizer.encode(spelt), tokenizer.eos_id],
    )


@torch.no_grad()
def _read_double(source: Source, reference: Reference, *, dtype: Dtype) -> dict[str, Tensor]:
    """Compute the outputs of a reference in fp64, where rounding is negligible."""
    model = load_encoder(source.folder, batching=reference.batching)
    _round(model, source, dtype)
    inputs = {"sequences": reference.sequences, "embedded": reference.embedded}
    return _outputs(model.double(), source, reference.vectors, **inputs)


def _round(model: PreTrainedModel, source: Source, dtype: Dtype) -> None:
    """Round a model as its export is: an adapter beside it stays fp32."""
    if source.adapter:
        source.adapter.take_out(model)
    round_weights(model, dtype)
    if source.adapter:
        source.adapter.merge(model)


def _outputs(
    model: PreTrainedModel,
    source: Source,
    vectors: TrainedVectors,
    *,
    sequences: list[list[int]],
    embedded: list[str],
) -> dict[str, Tensor]:
    how = {"causal": vectors.causal, "pooling": vectors.pooling}
    encoder = Encoder(model.eval(), source.tokenizer.pad_id, **how)
    ids = [np.array(sequence, dtype=np.int64) for sequence in sequences]
    cut, _ = encode_texts(embedded, source.tokenizer, max_seqlen=source.limits.longest_input)
    outputs = {"embeddings": encoder.pooled(cut)}
    many, spans = encoder.states(ids)
    for number, sequence in enumerate(ids):
        alone, [span] = encoder.states([sequence])
        outputs[f"alone.{number}"] = alone[slice(*span)].clone()
        outputs[f"many.{number}"] = many[slice(*spans[number])].clone()
    return outputs


def _sequences(
    tokenizer: TextTokenizer, config: PretrainedConfig, *, limit: int | None
) -> list[NDArray[np.int64]]:
    """Draw token ids between BOS and EOS in three lengths, the last longer than short windows."""
    # Within a window, a model that ignores its windows computes the same.
    windows = [getattr(config, name, None) or 0 for name in ("sliding_window", "local_attention")]
    beyond = [window + 9 for window in windows if window + 9 <= _LONGEST]
    lengths = [min(length, limit or length) for length in (_SHORT, _MIDDLE, max(_LONG, *beyond, 0))]
    special = set(tokenizer.special_ids.values())
    plain = np.array(sorted(set(tokenizer.vocabulary().values()) - special), dtype=np.int64)
    sequences = []
    for number, length in enumerate(lengths):
        draws = stream("export", number).random_raw(length - 2) % np.uint64(len(plain))
        inner = plain[draws.astype(np.int64)]
        # Plain tokens only: padding or masks inside a text change positions or states in some
        # families.
        sequences.append(np.array([tokenizer.bos_id, *inner, tokenizer.eos_id], dtype=np.int64))
    return sequences


@dataclass(frozen=True)
class Reloaded:
    """Differences between an export and the reference."""

    # By what was compared, relative to the largest value, or to 1 if all values are smaller.
    differences: dict[str, float]
    transformers: str  # version used for the check
    precision: str = "fp32"  # compute precision of hidden states and embeddings, on both sides

    @property
    def hidden_states(self) -> float:
        """Largest difference of hidden states."""
        return max(self.differences[_HIDDEN], self.differences[_PADDED])


def check_export(
    folder: Path,
    source: Source,
    reference: Reference,
    written: WrittenModel,
    *,
    dtype: Dtype,
    has_pooling: bool,
    say: Say,
) -> Reloaded:
    """Load an exported folder in a fresh process without biphasic, and measure differences.

    Both sides compute in fp32. If rounding may explain a difference of hidden states or embeddings,
    both compute these again in fp64.
    """
    roles, probe = source.tokenizer.special_ids, reference.sequences[0]
    other = next(token for token in reference.sequences[-1] if token not in probe)
    request = {
        "folder": str(folder.resolve()),
        "adapter": str(folder.resolve().with_name(ADAPTER)) if source.adapter else None,
        "sequences": reference.sequences,
        # The last token before EOS is another one: what changes before it has read to the right.
        "changed": [*probe[:-2], other, probe[-1]],
        "probe": probe,
        "pad_id": roles["pad"],
        "texts": TEXTS,
        "pair": PAIR,
        "spelt": reference.spelt,
        "head": None if written.logits is None else written.architecture,
        "embedded": reference.embedded if has_pooling else [],
        "needs_code": written.needs_code,
        "tolerance": TOLERANCE,
        "rounding": _ROUNDING,
    }
    expected = dict(reference.outputs)
    embeddings = expected.pop("embeddings")
    logits = {} if written.logits is None else {"logits": written.logits}
    pooled = {"embeddings": embeddings} if has_pooling else {}
    report, outputs = _ask(request, expected | pooled)
    if report["has_biphasic"]:
        raise ModelError("the export check imported biphasic, so its result is invalid")
    _compare_ids(report["ids"], reference, roles)
    _require_direction(outputs["fp32"], reference)
    differences = _differences(outputs["fp32"], expected | logits | pooled)
    precision = "fp32"
    if "fp64" in outputs:
        say("comparing in fp64, as fp32 rounding may explain the difference")
        double = _read_double(source, reference, dtype=dtype)
        differences |= _differences(
            outputs["fp64"], {key: double[key] for key in expected | pooled}
        )
        precision = "fp64"
    # A NaN is unequal to itself, so it counts as the largest.
    what, largest = max(differences.items(), key=lambda item: (item[1] != item[1], item[1]))
    if not largest <= TOLERANCE:  # NaN is not
        raise ModelError(
            f"the exported model, loaded by transformers, differs from ours: {what} by "
            f"{largest:.1e}, allowed {TOLERANCE:.0e} ({precision})"
        )
    return Reloaded(differences, report["transformers"], precision)


def _differences(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Return differences by what is compared, relative to its largest value or to 1."""
    differences: dict[str, Tensor] = {}
    for key, ours in expected.items():
        theirs = actual[key]
        if theirs.shape != ours.shape:
            raise ModelError(
                f"the exported model gives {list(theirs.shape)} numbers instead of "
                f"{list(ours.shape)}"
            )
        difference = (theirs - ours).abs().max() / ours.abs().max().clamp(min=1.0)
        way = key.partition(".")[0]
        what = _NAMES.get(way, way)
        differences[what] = torch.maximum(differences.get(what, difference), difference)  # NaN wins
    return {what: difference.item() for what, difference in differences.items()}


def _ask(
    request: dict[str, Any], expected: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Run the script in a separate process; return its report, and its outputs by precision."""
    # The fresh process must check the transformers that is used here, and is isolated from paths.
    packages = Path(transformers.__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix="biphasic-check-") as name:
        work = Path(name)
        write_json(work / "request.json", request)
        with naming(work):
            save_file(expected, work / "expected.safetensors")
        done = subprocess.run(  # noqa: S603 - our own script, no shell
            # `-I` ignores PYTHONPATH and the current folder, from which biphasic could be imported.
            [sys.executable, "-I", str(_SCRIPT), str(work), str(packages)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            # The device affects rounding, and others may be using a GPU.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        # A signal says nothing about the export, unlike an error.
        if done.returncode < 0:
            raise BiphasicError(
                f"the process that checks the export was ended by signal {-done.returncode} (out "
                "of memory?); nothing was written; run again"
            )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it wrote nothing"]
            if fault := system_fault_in(lines[-1], work):
                raise fault
            raise ModelError(
                f"transformers cannot use the exported folder ({lines[-1]}); nothing was written"
            )
        outputs = {path.stem: load_file(path) for path in work.glob("fp*.safetensors")}
        return read_json(work / "found.json"), outputs


def _compare_ids(
    actual: dict[str, list[list[int]]], reference: Reference, roles: dict[str, int]
) -> None:
    expected = {
        "texts": reference.text_ids,
        "pair": [reference.pair_ids],
        "spelt": [reference.spelt_ids],
        "roles": [[roles["mask"], roles["pad"]]],
    }
    for name, ids in expected.items():
        for place, (theirs, ours) in enumerate(zip(actual[name], ids, strict=True)):
            if theirs != ours:
                what = repr(TEXTS[place][:40]) if name == "texts" else f"the {name}"
                raise ModelError(
                    f"transformers' AutoTokenizer gives other ids for {what} than training "
                    f"({theirs[:8]}... instead of {ours[:8]}...): it may have a tokenizer class "
                    "for this type of model, which does not read this tokenizer.json"
                )


def _require_direction(tensors: dict[str, Tensor], reference: Reference) -> None:
    """Check that a changed token changes every state before it or, in a causal model, none."""
    before = len(reference.sequences[0]) - 2
    moved = (tensors["changed"] - tensors["alone.0"])[:before].abs().amax(-1)
    if reference.vectors.causal:
        if bool((moved > 0).any()):
            raise ModelError("transformers does not run the exported model causally")
    # Any change at all: a causal model gives exactly 0, whatever rounding is.
    elif not bool((moved > 0).all()):
        raise ModelError(
            "transformers runs the exported model causally: a token's state does not depend on "
            "those after it"
        )


def example_sequences(
    texts: Iterable[str | tuple[str, str]], tokenizer: TextTokenizer, *, max_seqlen: int
) -> list[TokenIds]:
    """Return the tokens of texts as in training, cut to the limit."""
    single = [text for text in texts if isinstance(text, str)]
    pairs = [pair_ids(tokenizer, *text) for text in texts if not isinstance(text, str)]
    cut = [np.array(ids[:max_seqlen], dtype=np.int64) for ids in pairs]
    return encode_texts(single, tokenizer, max_seqlen=max_seqlen)[0] + cut


def check_states(
    folder: Path, sequences: Sequence[TokenIds], *, pad_id: int, batching: Batching
) -> PreTrainedModel:
    """Check before training that transformers alone gives our hidden states; return its model."""
    model = on_compute_device(load_encoder(folder, batching=batching)).eval()
    with torch.inference_mode():
        ours, spans = Encoder(model, pad_id).states(sequences)
    del model  # there may not be memory for two
    # One text for each pass, so that neither padding nor packing takes part.
    alone = on_compute_device(load_encoder(folder, batching="padded")).eval()
    check_contract(alone, causal=False)
    with torch.inference_mode():
        theirs = [padded_states(alone, [sequence], pad_id=pad_id)[0] for sequence in sequences]
    ours = torch.cat([ours[slice(*span)] for span in spans.tolist()])
    difference = _difference(ours, torch.cat(theirs))
    if not difference <= FITTED_TOLERANCE:
        raise ModelError(
            f"{folder}: hidden states by transformers alone differ from ours ({difference:.0e} of "
            "the largest), so the fine-tuned model would only work in biphasic"
        )
    return alone


def check_tokenizer(
    tokenizer: TextTokenizer,
    texts: Sequence[str | tuple[str, str]],
    *,
    max_seqlen: int,
    scratch: Path,
) -> None:
    """Check before training that transformers alone gives our tokens."""
    write_tokenizer(tokenizer, scratch, max_seqlen=max_seqlen)
    # In training, text that spells a special token is plain text.
    plain = AutoTokenizer.from_pretrained(scratch, split_special_tokens=True)
    for text in texts:
        if isinstance(text, str):
            ours = encode_texts([text], tokenizer, max_seqlen=max_seqlen)[0][0].tolist()
            theirs = plain(text, truncation=True, max_length=max_seqlen)["input_ids"]
        else:
            # The pair may be longer than a window; transformers would warn of it.
            ours, theirs = pair_ids(tokenizer, *text), plain(*text, verbose=False)["input_ids"]
        if ours != theirs:
            raise ModelError(
                "transformers would tokenize a text differently from training "
                f"({len(theirs)} tokens, not {len(ours)}, or others): {str(text)[:60]!r}"
            )


def check_fitted(folder: Path, kind: Any, sequences: Sequence[TokenIds]) -> float:
    """Return the largest difference of outputs by `kind` and by us, in fp32, as a share."""
    finetuned = load_finetuned(folder, precision="fp32")
    with loading(folder), torch.inference_mode():
        model = kind.from_pretrained(folder, dtype=torch.float32, use_safetensors=True).eval()
        differences = [
            _difference(_ours(finetuned, sequence), _theirs(model, finetuned.record.form, sequence))
            for sequence in sequences
        ]
    return max(differences)


def _ours(finetuned: FinetunedModel, sequence: TokenIds) -> Tensor:
    states, spans = finetuned.encoder.states([sequence])
    if finetuned.record.form == "sequence-classification":
        outputs = finetuned.head(pooled(states, spans))
        return outputs * finetuned.record.deviation + finetuned.record.mean
    return finetuned.head(states[slice(*spans[0])])


def _theirs(model: nn.Module, form: Form, sequence: TokenIds) -> Tensor:
    output = model(input_ids=torch.from_numpy(sequence)[None])
    if form == "question-answering":
        return torch.stack([output.start_logits[0], output.end_logits[0]], dim=1)
    if form == "sentence-transformers":
        return output.last_hidden_state[0]
    return output.logits if form == "sequence-classification" else output.logits[0]


def _difference(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.cpu().float(), theirs.cpu().float()
    return float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-6))
