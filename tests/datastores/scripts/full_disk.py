"""Write until the disk refuses (a limit on the size of files stands for it), and look at what is left."""

import resource
import signal
import sys
from collections.abc import Callable

from helpers.datastores import SMALL, contents_of

from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import StoreError


def refused(call: Callable[[], object]) -> bool:
    """Whether the disk refuses, which the error must say."""
    try:
        call()
    except StoreError as error:
        return "make room" in str(error).lower()
    return False


signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
wanted: dict[str, tuple[int, ...]] = {}
with TokenDatastoreWriter.open(sys.argv[1], SMALL, background=False) as store:
    for number in range(1000):
        text = tuple(range(number, number + 100))
        if refused(lambda number=number, text=text: store.append("corpus", f"d{number}", text)):
            break
        wanted[f"d{number}"] = text
    assert 10 < len(wanted) < 1000
    assert contents_of(store, "corpus") == wanted
    assert refused(store.seal)
    assert contents_of(store, "corpus") == wanted
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.append("corpus", "last", (1, 2, 3))
    store.merge()
with TokenDatastoreWriter.open(sys.argv[1], SMALL) as store:
    assert contents_of(store, "corpus") == {**wanted, "last": (1, 2, 3)}
