"""What an idle queue costs one request: the engine beside the same passes driven by hand, in turns.

    python benchmarks/idle_latency.py ../shared/prompts/spec_bench.jsonl.gz

By hand means: no thread, no queue, no events handed over, no kept prefixes, only the draft, the pass and its
outcome, one request at a time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from groundspeed.drafting.budget import share_budget
from groundspeed.drafting.worth import Price
from groundspeed.integrations.bench.prompts import read_prompts
from groundspeed.types import GenerationRequest
from groundspeed.verify.engine import Engine
from groundspeed.verify.generation import Generation

LENGTHS = range(1, 2_000)
PIECE = 1024
IDLE = 2.5
"""Seconds until the engine's thread has ended: beside its team of threads the one here would be slower."""


def by_hand(engine: Engine, request: GenerationRequest) -> tuple[int, ...]:
    generation = Generation(engine, request, engine.encode(request.prompt), None)
    generation.begin(engine.target.open(generation.capacity))
    price = Price(1.0, 0.0)
    while not generation.finished:
        if generation.decoding:
            context = generation.session.length
            pass_s = engine.cost.seconds(context)
            [tree] = share_budget([generation.propose()], pass_s / pass_s[0])
            price = Price(pass_s[0], (pass_s[len(tree)] - pass_s[0]) / max(len(tree), 1))
            segment = generation.step(tree)
        else:
            segment = generation.segment(PIECE)
        begun = time.perf_counter()
        [logits] = engine.target.verify([segment])
        seconds = time.perf_counter() - begun
        if generation.written:
            engine.cost.observe(len(segment.tree), context, seconds)
        for _ in generation.take(segment, logits, 0.0, seconds, price, shared=False):
            pass
    token_ids = generation.result().token_ids
    generation.end()
    return token_ids


def measure(engine: Engine, requests: Sequence[GenerationRequest], rounds: int) -> list[float]:
    """Times of the engine over times by hand, request by request, in turns."""
    by_hand(engine, requests[0])
    ratios = []
    for round_ in range(rounds):
        for request in requests:
            seconds = {}
            for way in ("engine", "by hand") if round_ % 2 else ("by hand", "engine"):
                engine.forget_prefixes()
                start = time.perf_counter()
                if way == "engine":
                    tokens = engine.generate(request).token_ids
                    seconds[way] = time.perf_counter() - start
                else:
                    time.sleep(IDLE)
                    start = time.perf_counter()
                    alone = by_hand(engine, request)
                    seconds[way] = time.perf_counter() - start
            if tokens != alone:
                raise SystemExit("the answers differ")
            ratios.append(seconds["engine"] / seconds["by hand"])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    engine = Engine.from_pretrained(arguments.model)
    prompts = read_prompts(arguments.files, engine.tokenizer, arguments.requests, LENGTHS)
    requests = [
        GenerationRequest(prompt.token_ids, prompt.passages, max_tokens=arguments.tokens, ignore_eos=True)
        for prompt in prompts
    ]
    ratios = measure(engine, requests, arguments.rounds)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{len(requests)} requests of {arguments.tokens} tokens, {arguments.rounds} rounds, {engine.dtype}: "
        f"the engine takes {middle:.3f} of the time by hand (quartiles {low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()
