"""vLLM with the proposer beside the same vLLM without speculation."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.vllm_answers import PROPOSER, WORKER, answers, environment

from groundspeed.integrations.vllm.documents import DOCUMENTS_KEY, flat_documents

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed; `make test-vllm` installs it", allow_module_level=True)
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TOKENS = 16
BATCHES = {"alone": 1, "batches of 4": 4, "batches of 8": 8}
ROOMY = {"max_model_len": 1024, "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 29}
TIGHT = {"max_model_len": 384, "max_num_seqs": 8, "kv_cache_memory_bytes": 48 << 20}
RUSSIAN = ["Дерево черновика держит то, что может последовать за текстом."] * 3


@pytest.fixture(scope="module")
def model() -> str:
    from groundspeed.errors import MissingDependencyError
    from groundspeed.verify.gguf import convert_gguf
    from groundspeed.verify.loading import default_model_file

    try:
        return str(convert_gguf(default_model_file()))
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    """Forty questions over pieces of this project's pages."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("docs/*.md")))
    return [f"{text[i * 1000 : i * 1000 + 420]}\n\nThe text above says, word for word:" for i in range(40)]


@pytest.fixture(scope="module")
def plain(model: str, prompts: list[str]) -> dict[str, Any]:
    """What the engine says without speculation."""
    return answers({"model": model, **ROOMY}, [job(name, prompts, size) for name, size in BATCHES.items()])


@pytest.fixture(scope="module")
def drafting(model: str, prompts: list[str], plain: dict[str, Any]) -> dict[str, Any]:
    """What it says with drafts, and with all kinds of documents and of drafters."""
    page = (ROOT / "docs" / "drafting.md").read_text(encoding="utf-8")
    documents: dict[str, list[list[str] | None]] = {
        "with documents": [[page[:2000], prompt] for prompt in prompts],
        "with documents of another language": [RUSSIAN for _ in prompts],
        "with empty documents": [["", ""] if i % 2 else [] for i in range(len(prompts))],
        "with huge documents": [[page * 40] if i % 8 == 0 else None for i in range(len(prompts))],
    }
    runs = [job(name, prompts, size) for name, size in BATCHES.items()]
    runs += [job(name, prompts, 8, documents=given) for name, given in documents.items()]
    runs += [job(kind, prompts[:8], 8, saboteur=kind) for kind in SABOTAGE]
    runs.append(job("after sabotage", prompts, 8))
    return answers({"model": model, **ROOMY, "speculative_config": PROPOSER, "worker_cls": WORKER}, runs)


SABOTAGE = [
    "raises in begin",
    "raises in extend",
    "raises in propose",
    "too long",
    "outside the vocabulary",
    "below 0",
    "drafts nothing that is a tree",
]
WITH_DOCUMENTS = [
    "with documents",
    "with documents of another language",
    "with empty documents",
    "with huge documents",
]


def job(name: str, prompts: list[str], batch: int, tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    return {"name": name, "prompts": prompts, "batch": batch, "tokens": tokens, **more}


@pytest.mark.parametrize("name", BATCHES)
def test_greedy_answers_are_those_without_speculation(
    name: str, plain: dict[str, Any], drafting: dict[str, Any]
) -> None:
    assert drafting["runs"][name] == plain["runs"][name]
    assert drafting["counts"][name]["vllm:spec_decode_num_accepted_tokens"] > 100


@pytest.mark.parametrize("name", [*WITH_DOCUMENTS, "after sabotage"])
def test_no_documents_change_an_answer(name: str, plain: dict[str, Any], drafting: dict[str, Any]) -> None:
    assert drafting["runs"][name] == plain["runs"]["batches of 8"]


@pytest.mark.parametrize("kind", SABOTAGE)
def test_no_drafter_harms_the_engine(kind: str, plain: dict[str, Any], drafting: dict[str, Any]) -> None:
    assert drafting["runs"][kind] == plain["runs"]["batches of 8"][:8]
    assert drafting["counts"][kind].get("vllm:spec_decode_num_draft_tokens", 0) == 0


def test_answers_stay_the_same_when_requests_are_preempted(model: str, prompts: list[str]) -> None:
    asked = [job("tight", prompts, 40, tokens=48)]
    plain = answers({"model": model, **TIGHT}, asked)
    documents = [[prompt] for prompt in prompts]
    asked = [job("tight", prompts, 40, tokens=48, documents=documents)]
    drafting = answers({"model": model, **TIGHT, "speculative_config": PROPOSER, "worker_cls": WORKER}, asked)
    assert drafting["counts"]["tight"]["vllm:num_preemptions"] > 0
    assert drafting["counts"]["tight"]["vllm:spec_decode_num_accepted_tokens"] > 100
    assert drafting["runs"] == plain["runs"]


def test_documents_that_are_not_in_the_prompt_are_drafted_from(
    model: str, prompts: list[str], plain: dict[str, Any], drafting: dict[str, Any]
) -> None:
    """Here the plugin binds, without ``worker_cls``; the documents hold what will be said."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    said = plain["runs"]["batches of 8"]
    documents = [[f"Once more:{tokenizer.decode(ids)}"] for ids in said]
    runs = [job("known", prompts, 8, documents=documents)]
    known = answers({"model": model, **ROOMY, "speculative_config": PROPOSER}, runs)
    accepted = "vllm:spec_decode_num_accepted_tokens"
    assert known["runs"]["known"] == said
    assert known["counts"]["known"][accepted] > 1.5 * drafting["counts"]["batches of 8"][accepted]


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the proposer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "--model": model, "--served-model-name": "small", "--port": port, "--dtype": "float32",
        "--max-model-len": 1024, "--kv-cache-memory-bytes": 1 << 29, "--worker-cls": WORKER,
        "--speculative-config": json.dumps(PROPOSER),
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [str(word) for option in options.items() for word in option]
    log = (tmp_path_factory.mktemp("server") / "log").open("w+")
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        command, stdout=log, stderr=log, env=environment(), start_new_session=True
    ) as process:
        try:
            for _ in range(240):
                assert process.poll() is None, Path(log.name).read_text()[-5000:]
                with suppress(httpx.TransportError):
                    if httpx.get(f"{address}/health").is_success:
                        break
                time.sleep(1)
            else:
                pytest.fail(f"no server after four minutes: {Path(log.name).read_text()[-5000:]}")
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)
    log.close()


def accepted_by(server: str) -> float:
    lines = httpx.get(f"{server}/metrics").text.splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("vllm:spec_decode_num_accepted_tokens_total")
    )


def test_documents_come_over_http(model: str, prompts: list[str], plain: dict[str, Any], server: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    accepted = {}
    for name in ("nothing", "documents", "nonsense"):
        before = accepted_by(server)
        for prompt, ids in zip(prompts[:8], plain["runs"]["alone"], strict=False):
            flat = flat_documents([tokenizer("Nothing here.").input_ids, ids])
            given = {"nothing": [], "documents": flat, "nonsense": ["what", 1.5]}[name]
            body = {
                "model": "small", "prompt": prompt, "temperature": 0, "max_tokens": TOKENS,
                "ignore_eos": True, "vllm_xargs": {DOCUMENTS_KEY: given},
            }  # fmt: skip
            reply = httpx.post(f"{server}/v1/completions", json=body, timeout=60)
            assert reply.is_success, reply.text
            assert reply.json()["choices"][0]["text"] == tokenizer.decode(ids)
        accepted[name] = accepted_by(server) - before
    assert accepted["documents"] > 1.5 * accepted["nothing"]
    assert accepted["nonsense"] == accepted["nothing"]
