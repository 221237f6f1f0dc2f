"""Claims on work in a store, and on the whole store while it is cleaned.

Who works claims the work first and then looks whether the store is being cleaned; who cleans
claims the cleaning first and then looks for work. So whatever the order, one sees the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from biphasic.claim import Claim, Holder, Say, claim, find_holder, wait_for
from biphasic.errors import LockedError
from biphasic.process import this_process

CLAIMS = "claims"
_CLEANING = ".cleaning"


@contextmanager
def claim_work(store: Path, name: str, *, doing: str, say: Say | None = None) -> Iterator[Claim]:
    """Hold a piece of work while the block runs, or say at once who holds it.

    Args:
        store: Content store.
        name: Of the work.
        doing: For messages to others: "training nano-clm 0-100".
        say: Told when a silent holder on another machine is watched, for up to five minutes.

    Raises:
        TakenError: A process that lives holds it.
        LockedError: The store is being cleaned.
        StudyError: Nothing can be written there.
    """
    with claim(store / CLAIMS / name, doing=doing, say=say) as held:
        refuse_while_cleaning(store)
        yield held


@contextmanager
def wait_for_work(store: Path, name: str, *, doing: str, say: Say | None = None) -> Iterator[Claim]:
    """Hold a piece of work while the block runs; wait for whoever does it now.

    What was to be done may be done by then.

    Args:
        store: Content store.
        name: Of the work.
        doing: For messages to others.
        say: Told once, if there is somebody to wait for.

    Raises:
        LockedError: The store is being cleaned.
        StudyError: Nothing can be written there.
    """
    with wait_for(store / CLAIMS / name, doing=doing, say=say) as held:
        refuse_while_cleaning(store)
        yield held


def refuse_while_cleaning(store: Path) -> None:
    """Refuse to work in a store from which another process deletes.

    Raises:
        LockedError: One does.
    """
    holder = find_holder(store / _CLEANING)
    if holder is not None and holder.process != this_process():
        raise LockedError(
            f"{store}: being cleaned ({holder}); run again when 'biphasic study clean' has ended"
        )


def claim_cleaning(store: Path) -> AbstractContextManager[Claim]:
    """Hold a store for deleting from it; look for `running_work` after that, not before.

    Raises:
        TakenError: Another process cleans it.
    """
    return claim(store / _CLEANING, doing="cleaning this store")


def running_work(store: Path) -> dict[str, Holder]:
    """Return who works in a store, by name of the work."""
    claims = store / CLAIMS
    if not claims.is_dir():
        return {}
    found = ((each.name, find_holder(each)) for each in sorted(claims.iterdir()) if each.is_dir())
    return {name: holder for name, holder in found if holder is not None}
