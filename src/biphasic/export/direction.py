"""The check by which anybody sees, without our package, whether a model reads both ways.

`is_causal: false` in a decoder's `config.json` is heeded by transformers 5.2 and newer. Release
4.57 keeps the field, ignores it, and runs the model from left to right without a word.
"""

DIRECTION_CHECK = """\
import torch
first, other = (model(torch.tensor([[5, 6, last]])).last_hidden_state[0, 0] for last in (7, 8))
print(not torch.equal(first, other))  # True: the first token sees the last one
"""
"""Three lines about a `model` that `AutoModel.from_pretrained` gave: they print True if a change of
the last token changes the state of the first, as in an encoder, and False if the model is causal.
"""
