"""Random numbers are functions of their coordinates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.seeds import derive_seed, permutation, permute, stream, uniforms

SEEDS = st.integers(0, 2**63)
COORDINATES = st.lists(st.integers(0, 2**40), max_size=3)


def raw(name: str, seed: int, *coordinates: int, count: int = 4) -> list[int]:
    return stream(name, seed, *coordinates).random_raw(count).tolist()


def test_known_values():
    # Golden: a change here changes the rows, masks and weights of every recipe.
    assert raw("rows", 7, 1, 2, 3, count=2) == [13925194867196542648, 9628606386738292563]
    assert permutation(stream("rows", 7), 8).tolist() == [6, 0, 5, 2, 4, 3, 7, 1]
    places = permute(stream("documents", 7), np.arange(10), 10).tolist()
    assert places == [3, 7, 6, 1, 4, 9, 5, 0, 2, 8]
    assert derive_seed("init", 0) == 7441833814295572589
    assert uniforms(stream("mask", 0), 2).tolist() == [0.1560572307536301, 0.5022126270078079]


@given(SEEDS, COORDINATES, st.integers(0, 50))
def test_a_stream_does_not_depend_on_what_was_drawn_before(seed, coordinates, drawn):
    expected = raw("mask", seed, *coordinates)
    stream("mask", seed, *coordinates).random_raw(drawn)
    np.random.default_rng().random(drawn)
    assert raw("mask", seed, *coordinates) == expected


@given(SEEDS, COORDINATES)
def test_name_seed_and_each_coordinate_matter(seed, coordinates):
    padded = [*coordinates, 0, 0, 0][:3]
    base = raw("mask", seed, *padded)
    assert raw("mask", seed, *coordinates) == base  # absent coordinates are zero
    others = [raw("rows", seed, *padded), raw("mask", seed + 1, *padded)]
    for place in range(3):
        moved = [value + (index == place) for index, value in enumerate(padded)]
        others.append(raw("mask", seed, *moved))
    assert all(other != base for other in others)


def test_neighbouring_coordinates_do_not_overlap():
    # One document's draws must not run into the next one's, however long it is.
    first = set(raw("mask", 0, 0, 0, 0, count=20_000))
    assert first.isdisjoint(raw("mask", 0, 1, 0, 0, count=20_000))
    assert first.isdisjoint(raw("mask", 0, 0, 1, 0, count=20_000))
    assert first.isdisjoint(raw("mask", 0, 0, 0, 1, count=20_000))


@pytest.mark.parametrize("coordinates", [(1, 2, 3, 4), (-1,)])
def test_impossible_coordinates_are_refused(coordinates):
    with pytest.raises(ValueError, match="up to three coordinates"):
        stream("rows", 0, *coordinates)


def test_uniforms_are_uniform():
    draws = uniforms(stream("mask", 3), 100_000)
    assert draws.min() >= 0
    assert draws.max() < 1
    # Standard error of the mean: 1 / sqrt(12 * 100,000) = 0.0009.
    assert abs(draws.mean() - 0.5) < 0.004
    # Expected 10,000 in each tenth, with a standard deviation of 95.
    counts = np.histogram(draws, bins=10, range=(0, 1))[0]
    assert np.abs(counts - 10_000).max() < 400
    assert len(uniforms(stream("mask", 3), 0)) == 0


@given(SEEDS, st.integers(0, 300))
def test_permutation_is_an_order(seed, length):
    order = permutation(stream("rows", seed), length)
    assert sorted(order.tolist()) == list(range(length))
    assert order.tolist() == permutation(stream("rows", seed), length).tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_permute_is_a_bijection_for_every_small_length(seed):
    for length in range(1, 260):
        images = permute(stream("documents", seed), np.arange(length), length)
        assert sorted(images.tolist()) == list(range(length)), length


def test_permute_is_a_bijection_of_a_large_length():
    length = 1_000_003
    images = permute(stream("documents", 5), np.arange(length), length)
    assert np.array_equal(np.sort(images), np.arange(length))
    # Random: a value stays near its place no more often than chance (2,000 / 1,000,003 = 0.2 %).
    assert (np.abs(images - np.arange(length)) < 1000).mean() < 0.004


@given(SEEDS, st.integers(1, 10**15), st.lists(st.integers(0), min_size=1, max_size=50))
def test_permute_needs_no_table_and_maps_each_index_by_itself(seed, length, indices):
    places = np.unique(np.array([index % length for index in indices], dtype=np.int64))
    images = permute(stream("documents", seed), places, length)
    assert len(np.unique(images)) == len(places)
    assert images.min() >= 0
    assert images.max() < length
    alone = [
        permute(stream("documents", seed), places[i : i + 1], length)[0]
        for i in range(3)
        if i < len(places)
    ]
    assert images[:3].tolist() == [int(image) for image in alone]


def test_permute_leaves_its_argument_alone():
    places = np.arange(50)
    permute(stream("documents", 0), places, 50)
    assert np.array_equal(places, np.arange(50))


def test_permute_has_no_favourite_place():
    # Where index 0 of 20 goes under 4,000 seeds: 200 times each, standard deviation 13.8.
    hits = [int(permute(stream("documents", s), np.array([0]), 20)[0]) for s in range(4000)]
    assert np.abs(np.bincount(hits, minlength=20) - 200).max() < 70


@given(st.text(), SEEDS)
def test_derived_seeds_fit_torch_and_differ(name, seed):
    derived = derive_seed(name, seed)
    assert 0 <= derived < 2**63
    assert derived != derive_seed(name, seed + 1)
