"""Answers of a vLLM engine, in a process of its own: a job as JSON on stdin, what came of it on stdout.

A job has ``engine`` (arguments of ``vllm.LLM``) and ``runs``, each with ``prompts`` (texts), ``batch`` (how
many at once), ``tokens``, ``documents`` (by prompt a list of texts or None) and ``saboteur``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROPOSER = {
    "method": "custom_class",
    "model": "groundspeed.integrations.vllm.Proposer",
    "num_speculative_tokens": 8,
}
WORKER = "groundspeed.integrations.vllm.Worker"


def environment() -> dict[str, str]:
    """For a process of vLLM on this machine's processor."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"  # without it a step with drafts takes over a second
    return os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": str(openmp) if openmp.exists() else "",
    }


def answers(engine: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Have a job done in a process of its own."""
    job = json.dumps({"engine": engine, "runs": runs})
    done = subprocess.run(
        [sys.executable, "-m", "helpers.vllm_answers"],
        input=job,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result | {"log": done.stderr + done.stdout}


class Saboteur:
    """A drafter that breaks its contract."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def begin(self, request: Any) -> None:
        self.vocab_size = request.vocab_size
        if self.kind == "raises in begin":
            raise RuntimeError("sabotage")

    def extend(self, token_ids: Any) -> None:
        if self.kind == "raises in extend":
            raise RuntimeError("sabotage")

    def propose(self, budget: int) -> Any:
        import numpy as np

        from groundspeed.drafting.tree import chain

        if self.kind == "raises in propose":
            raise RuntimeError("sabotage")
        if self.kind == "too long":
            return chain(np.full(budget + 5, 7, np.int32))
        if self.kind == "outside the vocabulary":
            return chain(np.full(budget, self.vocab_size, np.int32))
        if self.kind == "below 0":
            return chain(np.full(budget, -1, np.int32))
        return None

    def end(self) -> None:
        raise RuntimeError("sabotage")


def _runner(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


@contextmanager
def _drafters(llm: Any, saboteur: str | None) -> Iterator[None]:
    if saboteur is None:
        yield
        return
    proposer = _runner(llm).drafter
    kept = proposer.drafters
    proposer.drafters = lambda: Saboteur(saboteur)
    yield
    proposer.drafters = kept


def _run(llm: Any, run: dict[str, Any]) -> list[list[int]]:
    from vllm import SamplingParams

    from groundspeed.integrations.vllm.documents import DOCUMENTS_KEY, flat_documents

    tokenizer = llm.get_tokenizer()

    def sampling(documents: Sequence[str] | None) -> Any:
        extra = None
        if documents is not None:
            ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in documents]
            extra = {DOCUMENTS_KEY: flat_documents(ids)}
        return SamplingParams(temperature=0, max_tokens=run["tokens"], ignore_eos=True, extra_args=extra)

    prompts, batch = run["prompts"], run["batch"]
    documents = run.get("documents") or [None] * len(prompts)
    found = []
    with _drafters(llm, run.get("saboteur")):
        for start in range(0, len(prompts), batch):
            piece = slice(start, start + batch)
            outputs = llm.generate(prompts[piece], [*map(sampling, documents[piece])], use_tqdm=False)
            found += [list(output.outputs[0].token_ids) for output in outputs]
    return found


def main() -> None:
    """Do the job on stdin."""
    from vllm import LLM

    job = json.load(sys.stdin)
    llm = LLM(dtype="float32", enforce_eager=True, disable_log_stats=False, **job["engine"])

    def counters() -> dict[str, float]:
        return {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}

    result: dict[str, Any] = {"runs": {}, "counts": {}}
    for run in job["runs"]:
        before = counters()
        result["runs"][run["name"]] = _run(llm, run)
        result["counts"][run["name"]] = {k: v - before.get(k, 0) for k, v in counters().items()}
    print()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
