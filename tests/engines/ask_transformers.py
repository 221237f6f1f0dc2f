"""Mean of the states by `AutoModel`, as a card of an export says."""

import json
import sys

import torch
from transformers import AutoModel, AutoTokenizer

request = json.load(sys.stdin)
own_code = {"trust_remote_code": request["needs_code"]}
tokenizer = AutoTokenizer.from_pretrained(request["folder"], split_special_tokens=True, **own_code)
model = AutoModel.from_pretrained(request["folder"], **own_code).eval()


@torch.no_grad()
def embed(texts):
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    mask = batch.attention_mask.unsqueeze(-1)
    return ((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)).tolist()


texts = request["texts"]
answer = {"alone": [embed([text])[0] for text in texts], "together": embed(texts)}
print(json.dumps(answer))
