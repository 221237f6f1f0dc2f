"""The commands for everyday use: names of options, and what they refuse."""

import pytest

from biphasic.export import write


@pytest.mark.parametrize(
    ("given", "dtype"), [([], "float32"), (["--precision", "bf16"], "bfloat16")]
)
def test_an_export_has_a_precision(run, monkeypatch, given, dtype):
    exported = {}
    monkeypatch.setattr(write, "write_export", lambda *_, **options: exported.update(options))
    assert run("export", "model", "out", *given)[0] == 0
    assert exported["dtype"] == dtype


@pytest.mark.parametrize(
    "command",
    [
        "finetune model --task sc:x",
        "finetune model --out x",
        "encode model x.txt",
        "encode model x.txt --out x.npy --max-seqlen 2",
        "predict model",
        "export model out --precision half",
    ],
)
def test_what_is_missing_or_too_small_is_bad_usage(run, command):
    assert run(*command.split())[0] == 2
