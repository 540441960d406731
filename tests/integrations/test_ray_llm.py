"""``ray.serve.llm`` on the processor, with the proposer and without it side by side."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.vllm_answers import PROPOSER, WORKER, environment

from groundspeed.integrations.vllm.documents import DOCUMENTS_KEY, flat_documents

if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("ray") is None:
    pytest.skip("needs vLLM and Ray; `make test-ray-llm` installs them", allow_module_level=True)
pytestmark = [pytest.mark.ray_llm, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

ADDRESS = "http://127.0.0.1:18433"
ENVIRONMENT = ("VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", "LD_PRELOAD")
PROMPTS = [f"prompt number {number}" for number in range(6)]


def config(name: str, model: Path, **engine: Any) -> Any:
    from ray.serve.llm import LLMConfig

    return LLMConfig(
        model_loading_config={"model_id": name, "model_source": str(model)},
        accelerator_config={"kind": "cpu"},
        deployment_config={"num_replicas": 1},
        engine_kwargs={
            "dtype": "float32",
            "max_model_len": 512,
            "max_num_seqs": 8,
            "kv_cache_memory_bytes": 1 << 26,
            "enforce_eager": True,
            **engine,
        },
        log_engine_metrics=False,  # vLLM's own counters are read below
    )


@pytest.fixture(scope="module", autouse=True)
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import ray
    from helpers.families import tiny_parts
    from ray import serve
    from ray.serve.llm import build_openai_app

    folder = tmp_path_factory.mktemp("model")
    for part in tiny_parts(head_dim=32):
        part.save_pretrained(folder)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=100_000_000,
        log_to_driver=False,
        runtime_env={"env_vars": {name: environment()[name] for name in ENVIRONMENT}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": 18433})
    models = [
        config("plain", folder),
        config("drafting", folder, speculative_config=PROPOSER, worker_cls=WORKER),
    ]
    serve.run(build_openai_app({"llm_configs": models}))
    yield
    serve.shutdown()
    ray.shutdown()


def ask(model: str, prompt: str, documents: list[list[int]] | None = None) -> list[int]:
    """The tokens of an answer."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "vllm_xargs": {DOCUMENTS_KEY: flat_documents(documents or [])},
    }
    reply = httpx.post(f"{ADDRESS}/v1/completions", json=body, timeout=120)
    assert reply.is_success, reply.text
    ids: list[int] = reply.json()["choices"][0]["token_ids"]
    return ids


def accepted() -> float:
    """Draft tokens that vLLM has accepted since it began."""
    import ray

    def count(actor: Any) -> float:
        from prometheus_client import REGISTRY

        return sum(
            sample.value
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.name == "vllm:spec_decode_num_accepted_tokens_total"
        )

    (name,) = (
        one["name"]
        for one in ray.util.list_named_actors(all_namespaces=True)
        if one["name"].startswith("SERVE_REPLICA::") and "drafting" in one["name"]
    )
    return float(ray.get(ray.get_actor(name, namespace="serve").__ray_call__.remote(count)))


def test_answers_are_those_without_speculation_and_documents_are_drafted_from() -> None:
    plain = {prompt: ask("plain", prompt) for prompt in PROMPTS}
    before = accepted()
    for prompt, ids in plain.items():
        assert len(ids) == 40
        assert ask("drafting", prompt, [ids]) == ids
    assert accepted() > before
    assert [ask("drafting", prompt) for prompt in PROMPTS] == [*plain.values()]
