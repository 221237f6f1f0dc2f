"""Every mutation of the list can be made: `make mutations` takes long, and this does not."""

from pathlib import Path

import yaml

HERE = Path(__file__).parent
MUTATIONS = yaml.safe_load((HERE / "mutations.yaml").read_text())


def test_every_mutation_changes_one_place_and_names_its_tests():
    for mutation in MUTATIONS:
        source = (HERE.parents[1] / "src" / mutation["file"]).read_text()
        assert source.count(mutation["before"]) == 1, mutation
        assert mutation["after"] not in {mutation["before"], ""}
        assert (HERE.parent / mutation["tests"]).is_file(), mutation
