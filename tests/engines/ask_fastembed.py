"""Vectors by fastembed, of a folder on disk."""

import json
import sys

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

request = json.load(sys.stdin)
TextEmbedding.add_custom_model(
    model="ours",
    pooling=PoolingType.MEAN,
    normalization=False,
    sources=ModelSource(hf="nobody/ours"),
    dim=request["width"],
    model_file="onnx/model.onnx",
)
model = TextEmbedding("ours", specific_model_path=request["folder"])
texts = request["texts"]
alone = [next(iter(model.embed([text]))).tolist() for text in texts]
answer = {"alone": alone, "together": [vector.tolist() for vector in model.embed(texts)]}
print(json.dumps(answer))
