"""Many requests at once: time by how they are decoded, and whether the answers are the same.

    python benchmarks/throughput.py ../shared/prompts/spec_bench.jsonl.gz benchmarks/nothing_to_copy.jsonl

For each file the same prompts are answered plainly one after another, plainly side by side, with drafts one
after another and with drafts side by side, in turns. Whole answers are timed, prompts included; what was read
is forgotten before each turn. One pass of each kind before the first turn is not timed. With more
``--requests`` than ``--active`` the others wait, and a place that becomes free is taken, as on a server; with
as many, the last answers are written beside fewer and fewer, and the slowest decides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from groundspeed.integrations.bench.prompts import read_prompts
from groundspeed.types import GenerationRequest, GenerationResult
from groundspeed.verify.engine import Engine

LENGTHS = range(1, 2_000)
PLAIN_TOGETHER = "plain, together"
WAYS = ("plain, one by one", PLAIN_TOGETHER, "drafts, one by one", "drafts, together")


def answer(engine: Engine, requests: Sequence[GenerationRequest], way: str) -> list[GenerationResult]:
    engine.forget_prefixes()
    requests = [replace(request, speculate=way.startswith("drafts")) for request in requests]
    if way.endswith("together"):
        return engine.generate_all(requests)
    return [engine.generate(request) for request in requests]


def measure(engine: Engine, file: Path, arguments: argparse.Namespace) -> None:
    prompts = read_prompts([file], engine.tokenizer, arguments.requests, LENGTHS)
    requests = [
        GenerationRequest(
            prompt.token_ids, prompt.passages, max_tokens=arguments.tokens, ignore_eos=True, seed=1,
            temperature=arguments.temperature,
        )
        for prompt in prompts
    ]  # fmt: skip
    for way in arguments.ways:
        answer(engine, [replace(request, max_tokens=8) for request in requests], way)
    seconds: dict[str, list[float]] = {way: [] for way in arguments.ways}
    texts: dict[str, list[tuple[int, ...]]] = {}
    for _ in range(arguments.rounds):
        for way in arguments.ways:
            start = time.perf_counter()
            results = answer(engine, requests, way)
            seconds[way].append(time.perf_counter() - start)
            texts[way] = [result.token_ids for result in results]
    print(
        f"{file.name}: {len(requests)} requests, {arguments.active} at once, {arguments.tokens} tokens each, "
        f"{engine.dtype}"
    )
    base = statistics.median(seconds[PLAIN_TOGETHER])
    for way in arguments.ways:
        median = statistics.median(seconds[way])
        same = sum(a == b for a, b in zip(texts[way], texts[PLAIN_TOGETHER], strict=True))
        runs = " ".join(f"{one:.2f}" for one in seconds[way])
        print(
            f"  {way:20} {median:6.2f} s ({runs}), {base / median:.2f} of plain together, "
            f"{len(requests) * arguments.tokens / median:6.1f} tokens/s, {same} answers as plain together"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    engine = Engine.from_pretrained(arguments.model, dtype=arguments.dtype, most_active=arguments.active)
    for file in arguments.files:
        measure(engine, file, arguments)


if __name__ == "__main__":
    main()
