"""Checks that a fine-tuned folder gives the same outputs in transformers alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from biphasic.data.packing import Batching, TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ModelError
from biphasic.export.hf import pair_ids, write_tokenizer
from biphasic.model.checks.contract import check_contract
from biphasic.model.compute.device import on_compute_device
from biphasic.model.compute.forward import padded_states
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.reading import loading
from biphasic.tasks.encoding import Encoder, encode_texts, mean_pool
from biphasic.tasks.finetuned import FinetunedModel, Form, load_finetuned

TOLERANCE = 1e-4  # largest difference of outputs, relative to the largest output
NUM_EXAMPLES = 8  # texts on which outputs are compared


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
) -> None:
    """Check before training that transformers alone gives our hidden states."""
    model = on_compute_device(load_encoder(folder, batching=batching)).eval()
    with torch.inference_mode():
        ours, spans = Encoder(model, pad_id).states(sequences)
    del model  # there may not be memory for two
    alone = on_compute_device(load_encoder(folder, batching="padded")).eval()
    check_contract(alone, causal=False)
    with torch.inference_mode():
        theirs = [padded_states(alone, [sequence], pad_id=pad_id)[0] for sequence in sequences]
    ours = torch.cat([ours[slice(*span)] for span in spans.tolist()])
    difference = _difference(ours, torch.cat(theirs))
    if not difference <= TOLERANCE:
        raise ModelError(
            f"{folder}: hidden states by transformers alone differ from ours ({difference:.0e} of "
            "the largest), so the fine-tuned model would only work in biphasic"
        )


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
        outputs = finetuned.head(mean_pool(states, spans))
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
