"""Fork a writer, kill it at a random moment, compare what the store holds with what was committed; again."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
from helpers.datastores import SMALL, assert_exact, brute_force, contents_of

from groundspeed.datastores.checking import find_damage
from groundspeed.datastores.writer import TokenDatastoreWriter

Documents = dict[str, tuple[int, ...]]


def change(number: int) -> tuple[list[str], str, tuple[int, ...]]:
    """The change of a number: ids to delete, then a document to put."""
    draw = random.Random(number)
    deleted = [f"d{draw.randrange(40)}" for _ in range(draw.choice((0, 0, 3)))]
    text = tuple(draw.randrange(6) for _ in range(draw.randrange(120)))
    return deleted, f"d{draw.randrange(40)}", text


def write(path: Path, number: int, acknowledged: int) -> None:
    writer = TokenDatastoreWriter.open(path, SMALL, seal_at=700)
    while True:
        deleted, name, text = change(number)
        writer.delete("corpus", deleted, durable=False)
        os.write(acknowledged, b"d")
        writer.append("corpus", name, text, replace=True, durable=number % 5 == 0)
        os.write(acknowledged, b"p")
        if number % 97 == 0:
            writer.merge()
        number += 1


def applied(documents: Documents, number: int, half: str) -> Documents:
    deleted, name, text = change(number)
    after = {key: value for key, value in documents.items() if half != "d" or key not in deleted}
    if half == "p":
        after[name] = text
    return after


def main(path: Path, kills: int) -> None:
    draw = random.Random(0)
    documents: Documents = {}
    number = 0
    for _ in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            write(path, number, writing)
        os.close(writing)
        time.sleep(draw.expovariate(1 / 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            done = pipe.read().decode()
        for half in done:
            documents = applied(documents, number, half)
            number += half == "p"
        assert find_damage(path) == [] or not (path / "manifest.json").exists()
        with TokenDatastoreWriter.open(path, SMALL, background=False, seal_at=10**9) as store:
            held = contents_of(store, "corpus")
            # The call in progress when the signal came may have been committed, whole.
            half = "p" if done.endswith("d") else "d"
            if held != documents:
                assert held == applied(documents, number, half), "something committed is lost"
            if half == "p" and held == applied(documents, number, "p"):
                number += 1
            documents = held
            context = [draw.randrange(6) for _ in range(6)]
            found = store.snapshot().continuations(np.array(context), depth=6, spread=4096)
            assert_exact(found, brute_force(documents.values(), context))
    print("survived", kills, "after", number, "changes")


main(Path(sys.argv[1]), int(sys.argv[2]))
