"""The server in a replica of Ray Serve beside the same server by itself, and what a killed replica costs.

    python benchmarks/ray_serve.py benchmarks/nothing_to_copy.jsonl --prompts 8 --tokens 32

Runs in an environment of ``make test-ray``, with the model that ``--model`` names. Both servers are asked in
turn, one request at a time and 8 at once. Then two replicas run, and one is killed while both answer.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
from serving import http_first, http_together, serve

PORT = 18434


def deploy(arguments: argparse.Namespace, replicas: int) -> None:
    from ray import serve as ray_serve

    from groundspeed.integrations.ray_serve import ReplicaOptions, groundspeed_app

    options = ReplicaOptions(
        model=arguments.model,
        dtype=arguments.dtype,
        num_replicas=replicas,
        deployment={"ray_actor_options": {"num_cpus": 2 / replicas}, "health_check_period_s": 1.0},
    )
    ray_serve.run(groundspeed_app(options))


def actors() -> dict[str, Any]:
    import ray

    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    return {
        name: ray.get_actor(name, namespace="serve") for name in names if name.startswith("SERVE_REPLICA::")
    }


async def beside(
    addresses: dict[str, str], model: str, prompts: list[list[int]], rounds: int, tokens: int
) -> None:
    """Ask both in turn; no prompt comes twice, as what was read before would be kept."""
    first: dict[str, list[float]] = {name: [] for name in addresses}
    rates: dict[str, list[float]] = {name: [] for name in addresses}
    clients = {name: httpx.AsyncClient(base_url=url, timeout=120) for name, url in addresses.items()}
    for client in clients.values():
        await http_first(client, model, prompts[0])
    for turn in range(rounds):
        for name, client in clients.items():
            for prompt in prompts:
                first[name].append(await http_first(client, model, [*prompt, *prompt[: turn + 1]]))
            longer = [[*prompt[turn + 1 :], *prompt] for prompt in prompts]
            rates[name].append(await http_together(client, model, longer, tokens, 8))
    for name, client in clients.items():
        await client.aclose()
        print(
            f"{name}: first token {statistics.median(first[name]) * 1e3:.1f} ms (median), 8 at once "
            + " ".join(f"{rate:.1f}" for rate in rates[name])
            + " tokens/s"
        )
    alone, replica = (statistics.median(rates[name]) for name in addresses)
    more = statistics.median(b - a for a, b in zip(*first.values(), strict=True))
    print(f"by pairs {more * 1e3:+.1f} ms to the first token; {replica / alone:.3f} of the tokens/s")


async def killing(address: str, model: str, prompts: list[list[int]]) -> None:
    """Kill one of two replicas while both answer."""
    import ray

    async def ask(prompt: list[int]) -> bool:
        body = {"model": model, "prompt": prompt, "max_tokens": 96, "temperature": 0}
        try:
            return (await client.post("/v1/completions", json=body)).is_success
        except httpx.TransportError:
            return False

    while not all_run():
        await asyncio.sleep(0.1)
    before = actors()
    async with httpx.AsyncClient(base_url=address, timeout=300) as client:
        running = [asyncio.create_task(ask(prompt)) for prompt in prompts]
        await asyncio.sleep(1)
        victim = next(iter(before.values()))
        there = await victim.get_num_ongoing_requests.remote()
        ray.kill(victim)
        killed = time.monotonic()
        new = [asyncio.create_task(ask(prompt)) for prompt in prompts]
        lost = (await asyncio.gather(*running)).count(False)
        lost_later = (await asyncio.gather(*new)).count(False)
        while not all_run() or actors().keys() == before.keys():
            await asyncio.sleep(0.1)
    print(
        f"{len(prompts)} answers in flight, {there} of them on the replica that was killed: {lost} lost; of "
        f"{len(new)} asked at once afterwards {lost_later}; two replicas again after "
        f"{time.monotonic() - killed:.1f} s"
    )


def all_run() -> bool:
    from ray import serve as ray_serve

    (status,) = ray_serve.status().applications["default"].deployments.values()
    return dict(status.replica_states) == {"RUNNING": 2} and len(actors()) == 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    arguments.cache_mib = 512
    import ray
    from ray import serve as ray_serve

    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    child = context.Process(target=serve, args=(theirs, arguments))
    child.start()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    ray_serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    replica = f"http://127.0.0.1:{PORT}"
    try:
        alone, model, prompts = pipe.recv()
        deploy(arguments, 1)
        addresses = {"by itself": alone, "in a replica": replica}
        asyncio.run(beside(addresses, model, prompts, arguments.rounds, arguments.tokens))
        ray_serve.delete("default")  # or both new ones would wait for the cores of the old one
        deploy(arguments, 2)
        asyncio.run(killing(replica, model, prompts))
    finally:
        pipe.send(("end",))
        child.join()
        ray_serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
