"""The server beside its engine, and under a mixed load.

    python benchmarks/serving.py speed benchmarks/nothing_to_copy.jsonl
    python benchmarks/serving.py load --seconds 300

``speed`` asks the engine itself and through HTTP in turn, in one process that loads the model; the clients
are in another. It reports the time to the first token, one request at a time, and tokens a second with 8 at
once.

``load`` keeps 16 clients busy with chats and completions, whole and streamed, with documents, tools and
schemas; a tenth of their requests are malformed, and a tenth are left in the middle. It compares every answer
with that of the quiet server for the same seed, and reports memory and what is left over at the end. What is
bounded is full before: kept prefixes, and the kernels of oneDNN, made for each number of tokens in a pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from serving_load import load

LENGTHS = range(1, 1_000)
MET = range(1, 400)


def serve(pipe: Any, arguments: argparse.Namespace) -> None:
    """In a process of its own: the engine, its server, and measurements without the server."""
    import threading

    from groundspeed.integrations.bench.prompts import read_prompts
    from groundspeed.integrations.server.app import create_app
    from groundspeed.integrations.server.run import make_server
    from groundspeed.integrations.server.settings import Settings
    from groundspeed.verify.engine import Engine

    engine = Engine.from_pretrained(
        arguments.model, dtype=arguments.dtype, cache_bytes=arguments.cache_mib << 20
    )
    if arguments.kind == "load":
        meet_all_sizes(engine)
    server = make_server(create_app(engine, Settings()), "127.0.0.1", 0, 10)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    files = getattr(arguments, "files", None)
    prompts = read_prompts(files, engine.tokenizer, arguments.prompts, LENGTHS) if files else []
    port = server.servers[0].sockets[0].getsockname()[1]
    pipe.send((f"http://127.0.0.1:{port}", engine.model_name, [list(prompt.token_ids) for prompt in prompts]))
    direct = {"first": direct_first, "together": direct_together}
    while (order := pipe.recv())[0] != "end":
        if order[0] == "forget":
            time.sleep(0.1)  # what was answered last is kept after its last event
            pipe.send(engine.forget_prefixes())
        else:
            pipe.send(asyncio.run(direct[order[0]](engine, *order[1:])))
    server.should_exit = True
    thread.join()


def meet_all_sizes(engine: Any) -> None:
    """Read prompts of all lengths that passes may have, twice: memory then stays as it is.

    oneDNN keeps 1024 kernels, one for each shape of a product. With four shapes of weights they are
    full after 256 lengths; the second time they are made anew in the memory that the first ones left.
    """
    from groundspeed.types import GenerationRequest

    for length in (*MET, *MET):
        ids = tuple(random.choices(range(1000, engine.target.vocab_size), k=length))
        engine.generate(GenerationRequest(ids, max_tokens=1))


async def direct_first(engine: Any, prompt: list[int]) -> float:
    """Seconds to the first token of one request."""
    from groundspeed.types import GenerationRequest, StepEvent

    begun = time.perf_counter()
    events = engine.astream(GenerationRequest(tuple(prompt), max_tokens=4))
    seconds = 0.0
    async for event in events:
        if isinstance(event, StepEvent) and not seconds:
            seconds = time.perf_counter() - begun
    return seconds


async def direct_together(engine: Any, prompts: Sequence[list[int]], tokens: int, clients: int) -> float:
    """Tokens a second with so many requests at once."""
    from groundspeed.types import GenerationRequest

    waiting = iter(prompts)

    async def client() -> int:
        done = 0
        for prompt in waiting:
            done += len(
                (await engine.agenerate(GenerationRequest(tuple(prompt), max_tokens=tokens))).token_ids
            )
        return done

    begun = time.perf_counter()
    done = await asyncio.gather(*(client() for _ in range(clients)))
    return sum(done) / (time.perf_counter() - begun)


async def http_first(client: httpx.AsyncClient, model: str, prompt: list[int]) -> float:
    """Seconds to the first token of one request, through HTTP."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": True}
    begun = time.perf_counter()
    seconds = 0.0
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {") and not seconds:
                seconds = time.perf_counter() - begun
    return seconds


async def http_together(
    client: httpx.AsyncClient, model: str, prompts: Sequence[list[int]], tokens: int, clients: int
) -> float:
    """Tokens a second with so many clients, each reading a stream."""
    waiting = iter(prompts)

    async def one() -> int:
        done = 0
        for prompt in waiting:
            body = {
                "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True},
            }  # fmt: skip
            async with client.stream("POST", "/v1/completions", json=body) as reply:
                last = [line async for line in reply.aiter_lines() if line.startswith("data: {")][-1]
            done += json.loads(last[6:])["usage"]["completion_tokens"]
        return done

    begun = time.perf_counter()
    done = await asyncio.gather(*(one() for _ in range(clients)))
    return sum(done) / (time.perf_counter() - begun)


async def speed(
    pipe: Any, address: str, model: str, prompts: list[list[int]], arguments: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Measure both ways in turn.

    Returns:
        ``first_seconds``, to the first token, prompt by prompt in every round, and ``tokens_per_second`` with
        8 at once, round by round; each of ``engine`` and ``http``.
    """

    def order(*what: Any) -> Any:
        pipe.send(what)
        return pipe.recv()

    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await http_first(client, model, prompts[0])
        order("first", prompts[0])
        first: dict[str, list[float]] = {"engine": [], "http": []}
        for _ in range(arguments.rounds):
            for prompt in prompts:
                order("forget")
                first["engine"].append(order("first", prompt))
                order("forget")
                first["http"].append(await http_first(client, model, prompt))
        rates: dict[str, list[float]] = {"engine": [], "http": []}
        for _ in range(arguments.rounds):
            order("forget")
            rates["engine"].append(order("together", prompts, arguments.tokens, 8))
            order("forget")
            rates["http"].append(await http_together(client, model, prompts, arguments.tokens, 8))
    return {"first_seconds": first, "tokens_per_second": rates}


def show(measured: dict[str, dict[str, list[float]]], arguments: argparse.Namespace) -> None:
    first, rates = measured["first_seconds"], measured["tokens_per_second"]
    more = statistics.median(b - a for a, b in zip(first["engine"], first["http"], strict=True))
    medians = {way: statistics.median(seconds) * 1e3 for way, seconds in first.items()}
    print(
        f"time to first token, {arguments.prompts} prompts, {arguments.rounds} rounds, medians: engine "
        f"{medians['engine']:.1f} ms, HTTP {medians['http']:.1f} ms; by pairs {more * 1e3:+.1f} ms"
    )
    told = {way: " ".join(f"{rate:.1f}" for rate in some) for way, some in rates.items()}
    share = statistics.median(rates["http"]) / statistics.median(rates["engine"])
    print(
        f"tokens/s, 8 at once, {arguments.tokens} tokens each: engine {told['engine']}, HTTP {told['http']}; "
        f"of the medians {share:.3f}"
    )


@contextmanager
def server(arguments: argparse.Namespace) -> Iterator[tuple[Any, str, str, list[list[int]], int]]:
    """A server in a process of its own: the pipe to it, its address, its model, the prompts and its id."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    child = context.Process(target=serve, args=(theirs, arguments))
    child.start()
    try:
        yield pipe, *pipe.recv(), child.pid or 0
    finally:
        pipe.send(("end",))
        child.join()


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) << 10


async def watched_load(address: str, model: str, pid: int, arguments: argparse.Namespace) -> bool:
    """Load the server while its memory is watched; whether all was as it should be."""
    seen: list[tuple[float, int]] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append((time.monotonic(), resident(pid)))

    watching = asyncio.create_task(watch())
    report = await load(
        address, model, seconds=arguments.seconds, clients=arguments.clients, tokens=arguments.tokens
    )
    watching.cancel()
    sizes = [size for moment, size in seen if moment >= report.begun]
    tenths = [statistics.median(sizes[len(sizes) * i // 10 :][: max(1, len(sizes) // 10)]) for i in range(10)]
    for text in report.wrong[:5]:
        print(text[:500])
    print(", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.most_common()))
    print(
        f"{len(report.wrong)} wrong, {report.stuck:.0f} stuck; memory in MiB by tenths of the time: "
        + " ".join(f"{size / 2**20:.0f}" for size in tenths)
        + f"; the last against the first {tenths[-1] / tenths[0] - 1:+.2%}"
    )
    return not report.wrong and not report.stuck


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--cache-mib", type=int, default=128, help="of KV caches; full early, so that it stays so"
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    measuring = kinds.add_parser("speed")
    measuring.add_argument("files", nargs="+", type=Path)
    measuring.add_argument("--prompts", type=int, default=16)
    measuring.add_argument("--tokens", type=int, default=64)
    measuring.add_argument("--rounds", type=int, default=3)
    loading = kinds.add_parser("load")
    loading.add_argument("--seconds", type=float, default=300)
    loading.add_argument("--clients", type=int, default=16)
    loading.add_argument("--tokens", type=int, default=48)
    return parser.parse_args(words)


def main() -> None:
    arguments = parse()
    with server(arguments) as (pipe, address, model, prompts, pid):
        if arguments.kind == "speed":
            show(asyncio.run(speed(pipe, address, model, prompts, arguments)), arguments)
        elif not asyncio.run(watched_load(address, model, pid, arguments)):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
