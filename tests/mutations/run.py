"""Break the source in one place after another, and see the tests that are named for it fail.

`run.py [TEXT]` takes the mutations of `mutations.yaml` whose file or tests contain TEXT. Each is
made in a copy of `src` and tested in a fork of this process, which has torch imported, not us.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
import torch  # noqa: F401 - so that forks need not
import transformers  # noqa: F401
import yaml

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutations.yaml")
PASSED, FAILED = 0, 1


def main() -> int:
    """Return how many mutations no test noticed."""
    os.chdir(ROOT)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    mutations = [
        each for each in yaml.safe_load(LIST.read_text()) if wanted in each["file"] + each["tests"]
    ]
    if not mutations:
        sys.exit(f"no mutation has '{wanted}' in its file or tests")
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        source, log = Path(folder) / "src", Path(folder) / "log"
        shutil.copytree(ROOT / "src", source)
        if run(sorted({each["tests"] for each in mutations}), source, log) != PASSED:
            sys.exit(f"{log.read_text()}\ntests fail before anything is changed")
        for each in mutations:
            path, text = source / each["file"], (ROOT / "src" / each["file"]).read_text()
            if text.count(each["before"]) != 1:
                sys.exit(f"{each['file']}: not there, or not once: {each['before']}")
            path.write_text(text.replace(each["before"], each["after"]))
            code = run([each["tests"]], source, log)
            shutil.copy2(ROOT / "src" / each["file"], path)
            if code not in {PASSED, FAILED}:
                sys.exit(f"{log.read_text()}\n{each['file']}: tests cannot run: {each['after']}")
            survivors += code == PASSED
            verdict = "SURVIVES" if code == PASSED else "caught"
            print(f"{verdict:8} {each['file']}: {each['after'].strip()}", flush=True)  # noqa: T201
    print(f"{survivors} of {len(mutations)} survive")  # noqa: T201
    return survivors


def run(tests: list[str], source: Path, log: Path) -> int:
    """Run test files on a copy of the source; return pytest's exit code."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.path.insert(0, str(source))
        # A mutation can leave time and size of a file as they were, by which caches go.
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(source)
        paths = [f"tests/{test}" for test in tests]
        known = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
        options = ["-x", "-n", "0", "-p", "no:cacheprovider", "-W", known]
        code = int(pytest.main([*options, *paths]))
        if not str(sys.modules["biphasic"].__file__).startswith(str(source)):
            code = 71
    except BaseException:  # noqa: BLE001 - logged, as all else
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
