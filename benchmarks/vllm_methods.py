"""vLLM without speculation, with its own n-gram and suffix methods, and with groundspeed's proposer.

    python benchmarks/vllm_methods.py ../shared/prompts/spec_bench.jsonl.gz --json vllm.json

Runs in the environment that vLLM is installed in (``.venv-vllm``). Each way is an engine in a process of
its own, one after another, all with the same prompts, in float32, without prefix caching. ``suffix``
needs arctic-inference (see benchmarks/peers.md) and is left out where that is missing. Steps are counted
by request: tokens per step are accepted drafts and the bonus token. The reading of the prompts is timed
by itself and taken off. At last the answers that were found are sent along as documents, each with
another's: what a page brings that the answer quotes, and that is not in the prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OURS = {"method": "custom_class", "model": "groundspeed.integrations.vllm.Proposer"}
WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "groundspeed": OURS,
}
WORKER = "groundspeed.integrations.vllm.Worker"
QUOTED = "groundspeed, documents"


def environment() -> dict[str, str]:
    """Without Intel's OpenMP vLLM's CPU engine takes over a second for each step with drafts."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    fixed = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "LD_PRELOAD": str(openmp) if openmp.exists() else "",
    }
    return os.environ | fixed


def run_way(way: str, job: dict[str, Any]) -> dict[str, Any]:
    """Have one engine answer, in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job | {"way": way}, file)
        file.flush()
        command = [sys.executable, __file__, "--job", file.name]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{way} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def do_job(job: dict[str, Any]) -> dict[str, Any]:
    """Answer with one engine; runs in the process made for it."""
    from vllm import LLM, SamplingParams

    from groundspeed.integrations.vllm.documents import DOCUMENTS_KEY, flat_documents

    method = OURS if job["way"] == QUOTED else WAYS[job["way"]]
    speculation = None if method is None else method | {"num_speculative_tokens": job["drafts"]}
    if job["way"] == "ngram" and job["ngram"]:
        speculation |= {"prompt_lookup_min": job["ngram"][0], "prompt_lookup_max": job["ngram"][1]}
    llm = LLM(
        job["model"], dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=job["batch"],
        kv_cache_memory_bytes=1 << 30, enable_prefix_caching=False, disable_log_stats=False,
        speculative_config=speculation, **({"worker_cls": WORKER} if method is OURS else {}),
    )  # fmt: skip
    timed = time_proposals(llm) if method is OURS else []

    def answer(texts: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
        prompts = [{"prompt_token_ids": ids} for ids in texts]
        sampling = []
        for number in range(len(prompts)):
            extra = None
            if job["way"] == QUOTED:
                others = [job["answers"][number - 1], job["answers"][number]]
                extra = {DOCUMENTS_KEY: flat_documents(others)}
            sampling.append(SamplingParams(temperature=0, max_tokens=tokens, extra_args=extra))
        start = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs], time.perf_counter() - start

    texts = job["prompts"]
    answer([ids[::-1] for ids in texts[: job["batch"]]], 24)  # what is compiled, or learnt, at its first use
    _, reading = answer(texts, 1)
    before = accepted(llm)
    timed.clear()
    answers, seconds = answer(texts, job["tokens"])
    tokens = sum(map(len, answers)) - len(answers)  # the first one comes from the prompt's reading
    steps = tokens - (accepted(llm) - before)
    full = [spent / rows for rows, spent in timed if rows == job["batch"]]
    return {
        "tokens_per_step": tokens / steps,
        "tokens_per_second": tokens / (seconds - reading),
        "seconds": seconds,
        "reading_seconds": reading,
        "tokens": tokens,
        "propose_microseconds_per_row": sorted(full)[len(full) // 2] * 1e6 if full else None,
        "propose_mean_microseconds_per_row": sum(full) / len(full) * 1e6 if full else None,
        "answers": answers,
    }


def accepted(llm: Any) -> float:
    """Draft tokens that were accepted so far."""
    return sum(m.value for m in llm.get_metrics() if m.name == "vllm:spec_decode_num_accepted_tokens")


def time_proposals(llm: Any) -> list[tuple[int, float]]:
    """Time each ``propose``: rows that are written, seconds."""
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    propose = runner.drafter.propose
    timed: list[tuple[int, float]] = []

    def watched(sampled: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        drafts = propose(sampled, *args, **kwargs)
        timed.append((sum(map(bool, sampled)), time.perf_counter() - start))
        return drafts

    runner.drafter.propose = watched
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", help="folder; the embedded small model by default")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="requests at once")
    parser.add_argument("--drafts", type=int, default=16, help="num_speculative_tokens of all methods")
    parser.add_argument("--longest", type=int, default=700, help="tokens of a prompt")
    parser.add_argument("--ngram", type=int, nargs=2, help="prompt_lookup_min and _max; vLLM's by default")
    parser.add_argument("--ways", nargs="+", default=[*WAYS, QUOTED], choices=[*WAYS, QUOTED])
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    if given.job:
        print("\n" + json.dumps(do_job(json.loads(given.job.read_text()))))
        return

    from groundspeed.integrations.bench.prompts import read_prompts
    from groundspeed.verify.gguf import convert_gguf
    from groundspeed.verify.loading import default_model_file, load_tokenizer

    model = given.model or str(convert_gguf(default_model_file()))
    prompts = read_prompts(
        given.files, load_tokenizer(model), given.requests, range(1, given.longest), at_most=True
    )
    job = {
        "model": model, "prompts": [prompt.token_ids for prompt in prompts], "tokens": given.tokens,
        "batch": given.batch, "drafts": given.drafts, "ngram": given.ngram, "answers": None,
    }  # fmt: skip
    figures: dict[str, dict[str, Any]] = {}
    for way in given.ways:
        if way == "suffix" and find_spec("arctic_inference") is None:
            print("suffix: arctic-inference is not installed")
            continue
        figures[way] = run_way(way, job)
        answers = figures[way].pop("answers")
        job["answers"] = job["answers"] or answers
        figures[way]["same_answers"] = sum(map(list.__eq__, answers, job["answers"]))
        shown = figures[way]
        spent = shown["propose_microseconds_per_row"]
        print(
            f"{way}: {shown['tokens_per_step']:.2f} tokens per step, {shown['tokens_per_second']:.1f} "
            f"tokens/s while writing, {shown['same_answers']} of {len(prompts)} answers the same"
            + (f", propose takes {spent:.0f} us a row" if spent else ""),
            flush=True,
        )
    if given.json:
        settings = {key: value for key, value in job.items() if key not in ("prompts", "answers")}
        settings["requests"] = len(prompts)
        settings["prompt_tokens"] = sum(len(prompt.token_ids) for prompt in prompts) / len(prompts)
        given.json.write_text(json.dumps({"settings": settings, "ways": figures}, indent=1, default=str))


if __name__ == "__main__":
    main()
