"""The libraries of matrix products: measured once for a machine, remembered, and recorded."""

import pytest
import torch

from biphasic.model.cpu import products as module
from biphasic.model.cpu.products import Products, products
from biphasic.training.metrics_log import environment

CHOSEN = Products("mkl", "onednn", "mkl", widens_bf16=False)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A machine that has measured nothing; returns the measurements that were made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for limit in module._LIMITS:
        monkeypatch.delenv(limit, raising=False)
    measured = []
    monkeypatch.setattr(module, "_measured", lambda: measured.append(1) or CHOSEN)
    products.cache_clear()
    yield measured
    products.cache_clear()


def test_one_process_measures_for_all(fresh):
    assert products() == CHOSEN
    products.cache_clear()  # as in another process
    assert products() == CHOSEN
    assert len(fresh) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"forward": "mkl"',
        '{"forward": "mkl", "tiles": 3}',
        '{"forward": "blis"}',
        "[]",
        "\0\xff",
    ],
)
def test_a_file_that_was_cut_or_is_another_versions_is_measured_again(fresh, tmp_path, content):
    products()
    (file,) = tmp_path.glob("biphasic/products-*.json")
    intact = file.read_text()
    file.write_text(content)
    products.cache_clear()
    assert products() == CHOSEN
    assert len(fresh) == 2
    assert file.read_text() == intact


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"])
def test_limited_instructions_are_another_machine(fresh, monkeypatch, variable):
    products()
    monkeypatch.setenv(variable, "AVX2")
    products.cache_clear()
    products()
    assert len(fresh) == 2


def test_without_a_cache_every_process_makes_the_first_choice(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")
    assert products() == module._first_choice()
    assert fresh == []


def test_a_user_without_a_home_gets_the_first_choice(fresh, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(module.Path, "home", no_home)
    assert products() == module._first_choice()


@pytest.mark.parametrize(
    ("name", "library"), [("Intel(R) Xeon(R) Processor", "mkl"), ("AMD EPYC 9R14", "onednn")]
)
def test_noise_does_not_choose_between_libraries_that_are_as_fast(monkeypatch, name, library):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN to choose")
    monkeypatch.setattr(module, "processor", lambda: name)
    monkeypatch.setattr(module, "_gain", lambda *_: 1.04)
    assert module._measured()[:3] == (library, library, "mkl")


def test_the_faster_library_is_chosen(monkeypatch):
    """oneDNN's forward product and MKL's weight gradient are made slow: a loop of ten."""
    multiply = module.multiply

    def slowed(library, left, right, bias=None):
        is_weight_gradient = left.shape[0] < left.shape[1]
        slow = "mkl" if is_weight_gradient else "onednn"
        for _ in range(10 if library == slow else 1):
            result = multiply(library, left, right, bias)
        return result

    monkeypatch.setattr(module, "multiply", slowed)
    monkeypatch.setattr(module, "_SHAPES", ((512, 128, 128),))
    chosen = module._measured()
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN to choose")
    assert (chosen.forward, chosen.weight_gradient) == ("mkl", "onednn")


def test_results_record_the_choice(fresh):
    assert environment()["products"] == "mkl/onednn/mkl, bf16 as it is"
