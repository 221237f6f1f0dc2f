"""What cards say of models that old releases of transformers would run causally."""

from __future__ import annotations

from biphasic.export.markdown import section

_NEEDS = "5.2"
_LINES = """\
```python
a = tokenizer("one two", return_tensors="pt").input_ids; b = a.clone(); b[0, -2] = a[0, 0]
first, other = (model(ids).last_hidden_state[0, 0] for ids in (a, b))
assert not first.allclose(other), "runs causally: pip install -U transformers"
```"""


def direction_section() -> str:
    """Return the section on releases that ignore `is_causal`, with three lines that find out.

    They need `tokenizer`, and as `model` what `AutoModel` loads.
    """
    return section(
        f"Needs transformers {_NEEDS} or newer",
        f"This type of model is a decoder by birth; `is_causal: false` in its configuration lets "
        f"it see both ways. Releases of transformers before {_NEEDS} (4.57 among them) ignore that "
        "and run it causally, without a word. To see whether yours heeds it, change a later token "
        "and look at an earlier state:",
        _LINES,
    )
