"""Readers in processes of their own beside a writer that seals and merges all the time.

One document is replaced all the time by a run of the next token: a reader that sees it missing, twice or
older than before has seen half a change.
"""

import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
from helpers.datastores import SMALL, contents_of

from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter


def read(path: Path, stop: object, seen: object) -> None:
    with TokenDatastore.open(path, SMALL) as store:
        last = 0
        while not stop.is_set():
            held = contents_of(store, "corpus")
            if not held:
                continue
            (text,) = set(held.values())
            newest = text[0]
            assert set(held) == {"it"}, held.keys()
            assert text == (newest,) * 50
            assert newest >= last, "went back in time"
            matches, _, _ = store.snapshot(["corpus"]).find(np.array([newest]), spread=8)
            assert set(matches[:, 1].tolist()) <= set(range(newest, 50_000))
            if newest > last:
                last = newest
                with seen.get_lock():
                    seen.value += 1


def main(path: Path, readers: int, seconds: float) -> None:
    TokenDatastoreWriter.open(path, SMALL).close()
    context = multiprocessing.get_context("fork")
    stop, seen = context.Event(), context.Value("l", 0)
    processes = [context.Process(target=read, args=(path, stop, seen)) for _ in range(readers)]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    number = 0
    with TokenDatastoreWriter.open(path, SMALL, seal_at=400) as writer:
        while time.monotonic() < end:
            number += 1
            writer.append("corpus", "it", [number] * 50, replace=True, durable=False)
            writer.append("other", f"d{number}", [number] * 50, durable=False)
            if number % 500 == 0:
                writer.merge()
    stop.set()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0, f"a reader ended with {process.exitcode}"
    assert seen.value > readers, "the readers saw nothing"
    print(number, "changes,", seen.value, "seen")


main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
