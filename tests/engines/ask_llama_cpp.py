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
file = f"{request['folder']}.gguf"
sys.argv = ["convert", request["folder"], "--outfile", file, "--outtype", sys.argv[1]]
convert_hf_to_gguf.main()

import llama_cpp

model = llama_cpp.Llama(
    file, embedding=True, n_ctx=request["max_seqlen"] * 8, n_seq_max=8, verbose=False
)
texts = request["texts"]
answer = {"alone": [model.embed([text])[0] for text in texts], "together": model.embed(texts)}
tokens = [model.tokenize(text.encode()) for text in texts]
print(json.dumps({"version": llama_cpp.__version__, "tokens": tokens, **answer}))
