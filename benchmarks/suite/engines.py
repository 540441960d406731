"""One engine, by number of requests, length of the context, drafter and way in."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from suite.figures import comparison, spread
from suite.part import BENCHMARKS, SHARED, Json, LeftOut, Part, Size
from suite.speed import SPEC_BENCH

if TYPE_CHECKING:
    from groundspeed.types import GenerationRequest
    from groundspeed.verify.engine import Engine

__all__ = ["PARTS"]

NOTHING_TO_COPY = BENCHMARKS / "nothing_to_copy.jsonl"
NORTHWIND = SHARED / "traces" / "northwind.jsonl.gz"
PEPS = SHARED / "corpora" / "peps.jsonl.gz"
ACTIVE = (1, 2, 4, 8)
CONTEXTS = (1_000, 2_000, 4_000, 8_000, 16_000)


def measure_throughput(size: Size) -> Json:
    """Eight requests, so many of them at once, plainly and with drafts; new, and with their prompts read."""
    from throughput import DRAFTS_TOGETHER, PLAIN_TOGETHER, measure, requests_for

    from groundspeed.verify.engine import Engine

    engine = Engine.from_pretrained()
    tokens, rounds = size.of(96, 6), size.of(3)
    requests = requests_for(engine, [SPEC_BENCH], size.of(8, 2), tokens)
    rows: list[Json] = []
    compared: list[list[Json]] = []
    for active in ACTIVE[: size.of(len(ACTIVE), 2)]:
        engine.scheduler.most_active = active
        rows.append({"active": active})
        compared.append([])
        for kind, read_before in (("whole", False), ("written", True)):
            measured = measure(
                engine, requests, [PLAIN_TOGETHER, DRAFTS_TOGETHER], rounds, read_before=read_before
            )
            plain, drafts = measured["seconds"].values()
            rows[-1][kind] = {
                "plain": spread([measured["tokens"] / seconds for seconds in plain]),
                "drafts": spread([measured["tokens"] / seconds for seconds in drafts]),
                "same": measured["same"][DRAFTS_TOGETHER],
            }
            what = f"requests at once: {active}" + ", prompts read before" * read_before
            ratios = [a / b for a, b in zip(plain, drafts, strict=True)]
            compared[-1].append(comparison(what, "groundspeed-plain", ratios))
    return {
        "model": engine.model_name,
        "dtype": engine.dtype,
        "requests": len(requests),
        "tokens": tokens,
        "rounds": rounds,
        "rows": rows,
        "comparisons": [one for both in compared for one in both],
    }


def measure_contexts(size: Size) -> Json:
    """One text of growing length: reading it, and writing on with and without drafts."""
    import torch
    from transformers import logging

    from groundspeed.integrations.bench.json_lines import json_lines
    from groundspeed.types import GenerationRequest
    from groundspeed.verify.engine import Engine
    from groundspeed.verify.loading import load_model
    from groundspeed.verify.target import TransformersTarget

    logging.set_verbosity_error()  # the tokenizer warns of texts beyond what the model was trained for
    loaded = load_model()
    trained = loaded.model.config.max_position_embeddings
    lengths = CONTEXTS[: size.of(len(CONTEXTS))]
    tokens, rounds = size.of(32, 6), size.of(2)
    loaded.model.config.max_position_embeddings = max(trained, lengths[-1] + tokens + 64)
    engine = Engine(TransformersTarget.packed(loaded.model), loaded.tokenizer)
    text = ""
    for _, row in json_lines(PEPS):
        text += row["text"]
        if len(text) > 8 * lengths[-1]:
            break
    ids = tuple(engine.encode(text)[: lengths[-1]])
    rows, compared = [], []
    for length in lengths:
        request = GenerationRequest(ids[:length], max_tokens=tokens, ignore_eos=True)
        engine.forget_prefixes()
        begun = time.perf_counter()
        engine.generate(replace(request, max_tokens=1))
        read = time.perf_counter() - begun
        seconds = _writing(engine, request, rounds)
        rows.append(
            {
                "context": length,
                "beyond_training": length + tokens > trained,
                "read_seconds": read,
                "plain": spread([tokens / one for one in seconds[False]]),
                "drafts": spread([tokens / one for one in seconds[True]]),
            }
        )
        ratios = [a / b for a, b in zip(seconds[False], seconds[True], strict=True)]
        compared.append(comparison(f"writing behind {length:,} tokens", "groundspeed-plain", ratios))
    return {
        "dtype": engine.dtype,
        "trained": trained,
        "tokens": tokens,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "rows": rows,
        "comparisons": compared,
    }


def _writing(engine: Engine, request: GenerationRequest, rounds: int) -> dict[bool, list[float]]:
    """Seconds of an answer behind a prompt that was read, without drafts (False) and with, in turns."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for drafts, taken in seconds.items():
            stats = engine.generate(replace(request, speculate=drafts)).stats
            if number:
                taken.append(stats.decode_s)
    return seconds


def measure_drafters(size: Size) -> Json:
    """The drafters that need nothing but the target."""
    return _drafters(size, rounds=2, heads=None, models=[], leave_out=())


def measure_trained_drafters(size: Size) -> Json:
    """Those that need a model of their own or trained heads, where the environment names the folders.

    ``GROUNDSPEED_BENCH_HEADS`` is a folder of Medusa heads for the embedded model,
    ``GROUNDSPEED_BENCH_DRAFT_MODELS`` draft models, smallest first, with the separator of paths between.
    """
    heads = os.environ.get("GROUNDSPEED_BENCH_HEADS")
    models = [one for one in os.environ.get("GROUNDSPEED_BENCH_DRAFT_MODELS", "").split(os.pathsep) if one]
    if not heads and not models:
        raise LeftOut(
            "neither GROUNDSPEED_BENCH_HEADS nor GROUNDSPEED_BENCH_DRAFT_MODELS names a trained folder"
        )
    leave_out = ("prompt lookup", "lookahead", "first ")
    return _drafters(size, rounds=1, heads=Path(heads) if heads else None, models=models, leave_out=leave_out)


def _drafters(
    size: Size, *, rounds: int, heads: Path | None, models: list[str], leave_out: tuple[str, ...]
) -> Json:
    from drafters import drafters, measure
    from throughput import requests_for

    from groundspeed.verify.engine import Engine

    engine = Engine.from_pretrained()
    tokens, rounds = size.of(48, 6), size.of(rounds)
    sets = {"RAG": [NORTHWIND], "nothing to copy": [NOTHING_TO_COPY]}
    asked = {name: requests_for(engine, files, size.of(2), tokens) for name, files in sets.items()}
    text = list(asked["RAG"][0].prompt)
    there = drafters(engine, models, engine.dtype, 0.0, heads, text)
    factories = {name: make for name, make in there.items() if not name.startswith(leave_out)}
    found, compared = {}, []
    for name, requests in asked.items():
        found[name] = measure(engine, requests, factories, rounds)
        plain = found[name]["none"]["seconds"]
        for drafter, figures in found[name].items():
            ratios = [a / b for a, b in zip(plain, figures["seconds"], strict=True)]
            figures["times_as_fast"] = spread(ratios)
            if drafter != "none":
                compared.append(comparison(f"{drafter}, {name}", "groundspeed-plain", ratios))
    return {"dtype": engine.dtype, "tokens": tokens, "rounds": rounds, "sets": found, "comparisons": compared}


def measure_serving(size: Size) -> Json:
    """The server beside its engine."""
    import asyncio

    from serving import parse, server, speed

    prompts, tokens, rounds = size.of(8, 2), size.of(32, 4), size.of(3)
    words = f"speed {NOTHING_TO_COPY} --prompts {prompts} --tokens {tokens} --rounds {rounds}"
    arguments = parse(words.split())
    with server(arguments) as (pipe, address, model, texts, _):
        measured = asyncio.run(speed(pipe, address, model, texts, arguments))
    first, rates = measured["first_seconds"], measured["tokens_per_second"]
    pairs = [a / b for a, b in zip(first["engine"], first["http"], strict=True)]
    return {
        "prompts": prompts,
        "tokens": tokens,
        "rounds": rounds,
        "first_seconds": {way: spread(seconds) for way, seconds in first.items()},
        "tokens_per_second": {way: spread(some) for way, some in rates.items()},
        "comparisons": [
            comparison("first token through HTTP", "the engine itself", [statistics.median(pairs)]),
            comparison(
                "eight requests at once through HTTP",
                "the engine itself",
                [a / b for a, b in zip(rates["http"], rates["engine"], strict=True)],
            ),
        ],
    }


def measure_idle(size: Size) -> Json:
    """What the queue costs one request."""
    from idle_latency import measure
    from throughput import requests_for

    from groundspeed.verify.engine import Engine

    engine = Engine.from_pretrained()
    requests = [
        replace(request, seed=None)
        for request in requests_for(engine, [SPEC_BENCH], size.of(4), size.of(48, 6))
    ]
    ratios = measure(engine, requests, size.of(2))
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "requests": len(requests),
        "times": len(ratios),
        "share": {"median": middle, "low": low, "high": high},
        "comparisons": [comparison("one request, queue included", "the same passes by hand", [1 / middle])],
    }


PARTS = (
    Part("throughput", 11, measure_throughput, (SPEC_BENCH,)),
    Part("contexts", 3.0, measure_contexts, (PEPS,)),
    Part("drafters", 2.3, measure_drafters, (NORTHWIND, NOTHING_TO_COPY)),
    Part("drafters-trained", 3.5, measure_trained_drafters, (NORTHWIND, NOTHING_TO_COPY)),
    Part("serving", 1.2, measure_serving, (NOTHING_TO_COPY,)),
    Part("idle", 1.2, measure_idle, (SPEC_BENCH,)),
)
