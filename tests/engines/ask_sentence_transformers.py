"""Vectors by sentence-transformers, of the backend that is asked for."""

import json
import sys

from sentence_transformers import SentenceTransformer

request = json.load(sys.stdin)
options = {"backend": sys.argv[1], "trust_remote_code": request["needs_code"], "device": "cpu"}
model = SentenceTransformer(request["folder"], **options)
texts = request["texts"]
alone = [model.encode([text])[0].tolist() for text in texts]
answer = {"alone": alone, "together": model.encode(texts, batch_size=len(texts)).tolist()}
print(json.dumps(answer))
