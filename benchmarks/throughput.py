"""Many requests at once: time by how they are decoded, and whether the answers are the same.

    python benchmarks/throughput.py ../shared/prompts/spec_bench.jsonl.gz benchmarks/nothing_to_copy.jsonl

For each file the same prompts are answered plainly side by side, plainly one after another, with drafts one
after another and with drafts side by side, in turns. Whole answers are timed, prompts included; what was read
is forgotten before each turn, or kept with ``--read-before``, so that answers are only written. One pass of
each kind before the first turn is not timed. With more ``--requests`` than ``--active`` the others wait, and
a place that becomes free is taken, as on a server; with as many, the last answers are written beside fewer
and fewer, and the slowest decides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groundspeed.integrations.bench.prompts import read_prompts
from groundspeed.types import GenerationRequest, GenerationResult
from groundspeed.verify.engine import Engine

LENGTHS = range(1, 2_000)
PLAIN_TOGETHER = "plain, together"
DRAFTS_TOGETHER = "drafts, together"
WAYS = (PLAIN_TOGETHER, "plain, one by one", "drafts, one by one", DRAFTS_TOGETHER)


def answer(engine: Engine, requests: Sequence[GenerationRequest], way: str) -> list[GenerationResult]:
    requests = [replace(request, speculate=way.startswith("drafts")) for request in requests]
    if way.endswith("together"):
        return engine.generate_all(requests)
    return [engine.generate(request) for request in requests]


def measure(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    ways: Sequence[str],
    rounds: int,
    *,
    read_before: bool = False,
) -> dict[str, Any]:
    """Answer requests in every way, in turns, their prompts read each time or ``read_before`` the first one.

    Returns:
        ``seconds``, by way and round; ``tokens`` of all answers together; and ``same``, by way, how many
        answers are those of the first way.
    """
    for way in ways:
        answer(engine, [replace(request, max_tokens=8) for request in requests], way)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    texts: dict[str, list[tuple[int, ...]]] = {}
    for _ in range(rounds):
        for way in ways:
            if not read_before:
                engine.forget_prefixes()
            start = time.perf_counter()
            results = answer(engine, requests, way)
            seconds[way].append(time.perf_counter() - start)
            texts[way] = [result.token_ids for result in results]
    first = texts[ways[0]]
    return {
        "seconds": seconds,
        "tokens": sum(map(len, first)),
        "same": {way: sum(a == b for a, b in zip(texts[way], first, strict=True)) for way in ways},
    }


def show(measured: dict[str, Any]) -> None:
    base = statistics.median(next(iter(measured["seconds"].values())))
    for way, seconds in measured["seconds"].items():
        median = statistics.median(seconds)
        runs = " ".join(f"{one:.2f}" for one in seconds)
        print(
            f"  {way:20} {median:6.2f} s ({runs}), {base / median:.2f} times as fast as the first, "
            f"{measured['tokens'] / median:6.1f} tokens/s, {measured['same'][way]} answers as the first"
        )


def requests_for(
    engine: Engine, files: Sequence[Path], count: int, tokens: int, temperature: float = 0.0
) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt.token_ids, prompt.passages, max_tokens=tokens, ignore_eos=True, seed=1,
            temperature=temperature,
        )
        for prompt in read_prompts(files, engine.tokenizer, count, LENGTHS)
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--read-before", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    engine = Engine.from_pretrained(arguments.model, dtype=arguments.dtype, most_active=arguments.active)
    for file in arguments.files:
        requests = requests_for(engine, [file], arguments.requests, arguments.tokens, arguments.temperature)
        print(
            f"{file.name}: {len(requests)} requests, {arguments.active} at once, {arguments.tokens} tokens "
            f"each, {engine.dtype}"
        )
        read = arguments.read_before
        show(measure(engine, requests, arguments.ways, arguments.rounds, read_before=read))


if __name__ == "__main__":
    main()
