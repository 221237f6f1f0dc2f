# ruff: noqa: E402 - the converter is found by its path
"""Vectors by llama.cpp, after its own converter, in the precision that is asked for."""

import json
import sys
from pathlib import Path

request, source = json.load(sys.stdin), Path(sys.argv[2])
sys.path[:0] = [str(source), str(source / "gguf-py")]
import convert_hf_to_gguf
from conversion import base

# It knows a pre-tokenizer by a hash of what a tokenizer makes of a text; ours is that of GPT-2.
base.TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
file = f"{request['folder']}-{sys.argv[1]}.gguf"
sys.argv = ["convert", request["folder"], "--outfile", file, "--outtype", sys.argv[1]]
convert_hf_to_gguf.main()

import llama_cpp


def load(num_tokens):
    lengths = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), num_tokens)
    pooling = llama_cpp.LLAMA_POOLING_TYPE_MEAN  # which the file does not state
    options = {"embedding": True, "pooling_type": pooling, "verbose": False, **lengths}
    return llama_cpp.Llama(file, **options)


texts = request["texts"]
one, many = load(request["max_seqlen"]), load(request["max_seqlen"] * 8)
alone = [one.embed([text])[0] for text in texts]
# Texts are cut to the size of a batch, not to the length that the model reads.
answer = {"alone": alone, "together": [*many.embed(texts[:-1]), alone[-1]]}
print(json.dumps(answer))
