"""Whether a seed gives one text: plainly, with drafts, and in batches of eight, on a real model.

    python benchmarks/seed_equality.py ../shared/traces/*.jsonl.gz [--dtype bfloat16]

Prompts are taken evenly from the files; each is answered at temperatures 0.3, 0.8 and 1.2, with top-p 0.9 and
without. Exits with 1 when a text differs from plain decoding of that request alone.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from groundspeed.integrations.bench.prompts import read_prompts
from groundspeed.types import GenerationRequest, GenerationResult
from groundspeed.verify.engine import Engine

LENGTHS = range(1, 700)
BATCH = 8


def in_batches(engine: Engine, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
    results: list[GenerationResult] = []
    for start in range(0, len(requests), BATCH):
        results += engine.generate_all(requests[start : start + BATCH])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    engine = Engine.from_pretrained(arguments.model, dtype=arguments.dtype)
    prompts = read_prompts(arguments.files, engine.tokenizer, arguments.prompts, LENGTHS)
    requests = [
        GenerationRequest(
            prompt.token_ids, prompt.passages, max_tokens=arguments.tokens, ignore_eos=True,
            temperature=temperature, top_p=top_p, seed=seed,
        )
        for seed, (prompt, temperature, top_p) in enumerate(
            itertools.product(prompts, (0.3, 0.8, 1.2), (0.9, 1.0))
        )
    ]  # fmt: skip
    plain = [replace(request, speculate=False) for request in requests]
    wanted = [engine.generate(request).token_ids for request in plain]
    ways = {
        "with drafts, one by one": lambda: [engine.generate(request) for request in requests],
        "with drafts, eight at once": lambda: in_batches(engine, requests),
        "plain, eight at once": lambda: in_batches(engine, plain),
    }
    differ = 0
    for name, answer in ways.items():
        engine.forget_prefixes()
        results = answer()
        same = sum(result.token_ids == ids for result, ids in zip(results, wanted, strict=True))
        accepted = sum(result.stats.accepted for result in results)
        print(f"{engine.dtype}, {name}: {same} of {len(wanted)} the same, {accepted} draft tokens accepted")
        differ += len(wanted) - same
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
