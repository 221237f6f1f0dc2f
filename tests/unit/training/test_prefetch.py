"""Work made ready in the background."""

import threading

import pytest

from biphasic.training.loop import prefetched


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


class BrokenError(Exception):
    pass


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_more_is_prefetched_than_configured(ahead):
    calls: list[int] = []
    with prefetched(calls.append, range(100), ahead=ahead) as results:
        for item in range(5):
            next(results)
            assert item + 1 <= len(calls) <= item + 1 + ahead
    assert len(calls) <= 5 + ahead


@pytest.mark.parametrize("ahead", [0, 1, 5])
@pytest.mark.parametrize("error", [BrokenError("at 3"), Killed("at 3")])
def test_errors_come_up_as_themselves_in_their_turn(ahead, error):
    def produce(item: int) -> int:
        if item == 3:
            raise error
        return item

    seen: list[int] = []
    with (
        pytest.raises(type(error)) as caught,
        prefetched(produce, range(9), ahead=ahead) as results,
    ):
        seen.extend(results)
    assert caught.value is error
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("leaves", [BrokenError, Killed, KeyboardInterrupt, GeneratorExit])
def test_the_thread_ends_however_the_block_is_left(leaves):
    calls: list[int] = []

    def leave() -> None:
        with prefetched(calls.append, range(1000), ahead=20) as results:
            next(results)
            raise leaves

    with pytest.raises(leaves):
        leave()
    assert len(calls) <= 21
    # The fixture looks for threads; so does this, at once.
    assert not [t for t in threading.enumerate() if t.name.startswith("biphasic-prefetch")]
