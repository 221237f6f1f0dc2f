"""Vectors by infinity, of the engine that is asked for; they have length 1."""

import json
import os
import sys

from infinity_emb import EngineArgs, SyncEngineArray

request = json.load(sys.stdin)
options = EngineArgs(
    model_name_or_path=request["folder"],
    engine=sys.argv[1],
    device="cpu",
    dtype="float32",
    trust_remote_code=request["needs_code"],
    bettertransformer=False,
    pooling_method="mean",  # its ONNX engine reads none from the folder, and takes the first token
    model_warmup=False,
)
engines = SyncEngineArray([options])
texts = request["texts"]


def embed(texts):
    vectors, _ = engines.embed(model=options.served_model_name, sentences=texts).result()
    return [vector.tolist() for vector in vectors]


answer = {"alone": [embed([text])[0] for text in texts], "together": embed(texts)}
print(json.dumps(answer), flush=True)
os._exit(0)  # its threads fail to end
