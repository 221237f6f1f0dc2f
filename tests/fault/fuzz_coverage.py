"""Search for inputs that reach code no other input has reached, with atheris.

`fuzz_coverage.py SECONDS` searches that long for each kind of `test_fuzz.py`, whose properties must
hold; `fuzz_coverage.py SECONDS KIND` for one. The first byte of an input chooses a file, the rest
is its content, and the search starts from the whole files. An input that shows a fault is written
to `build/fuzz/`, and the process ends with a traceback; `fuzz_coverage.py 1 KIND FILE` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]
os.environ["HF_HUB_OFFLINE"] = "1"
os.fsync = lambda _: None

with atheris.instrument_imports(include=["biphasic", "yaml"]):
    from test_fuzz import KINDS, Subject, changed, tree

    from biphasic.errors import BiphasicError


def search(seconds: str, kind: str, *inputs: str) -> None:
    """Search for some seconds, or repeat inputs; this ends the process."""
    faults = Path("build/fuzz").resolve()
    faults.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="work-", dir=faults))
    tempfile.tempdir = str(work / "here" / "store")
    subject = Subject(kind, work / "here")
    files = subject.files
    whole = {file: file.read_bytes() for file in files}
    seeds = work / "seeds"
    seeds.mkdir()
    for number, content in enumerate(whole.values()):
        (seeds / str(number)).write_bytes(bytes([number]) + content)

    def test(data: bytes) -> None:
        file = files[data[0] % len(files)] if data else files[0]
        subject.write(file, data[1:])
        before = tree(work)
        with suppress(BiphasicError):
            subject.read()
        assert not changed(before, tree(work))
        file.write_bytes(whole[file])

    prefix = faults / kind.replace(" ", "-")
    options = [
        f"-max_total_time={seconds}",
        "-seed=1",
        "-max_len=65536",
        f"-artifact_prefix={prefix}-",
    ]
    options += ["-verbosity=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, *(inputs or [str(seeds)])], test)
    atheris.Fuzz()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        search(*sys.argv[1:])
    for each in KINDS:
        print(each, flush=True)  # noqa: T201
        subprocess.run([sys.executable, *sys.argv, each], check=True)
