"""Record answers of the embedded model with the runner-ups of every token, to fit and replay drafters on.

    python benchmarks/record_answers.py OUT.npz [bfloat16|float32]

Greedy decoding without drafts of 60 RAG prompts (the 20 that ``groundspeed bench speed`` takes from
``../shared/traces``, 30 others of the same files, 10 of Spec-Bench) and of 60 prompts with nothing to copy.
The groups say which answers are for fitting; the prompts of the benchmarks are for reporting only.

The file's arrays, over a answers in order, texts laid behind one another:

    id, group                    [a] strings; groups: rag-report, rag-fit, other-report, other-fit
    prompt, answer               int32, token ids; prompt_length, answer_length: int64 [a]
    passage                      int32, token ids; passage_length: int64, a number per passage;
                                 passages: int64 [a], how many of them each answer has
    top, top_logit               int32 and float32 [tokens of all answers, 8], the most probable tokens at
                                 each position of the answer, best first; top[i, 0] == answer[i]

An end-of-sequence token is the last of its answer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from groundspeed.integrations.bench.prompts import BenchPrompt, read_prompts
from groundspeed.verify.base import Segment
from groundspeed.verify.engine import Engine

DATA_SETS = ("mtrag", "mtragun", "northwind", "hf_docs", "aragog")
SHARED = Path(os.environ.get("GROUNDSPEED_SHARED", Path(__file__).parents[2] / "shared"))
MAX_TOKENS = 96
TOP = 8
LENGTHS = range(1, 1201)


def prompts(engine: Engine) -> dict[str, list[BenchPrompt]]:
    """The prompts by group, none in two groups."""
    here = Path(__file__).parent
    traces = [SHARED / "traces" / f"{name}.jsonl.gz" for name in DATA_SETS]
    spec_bench = [SHARED / "prompts" / "spec_bench.jsonl.gz"]
    report = read_prompts(traces, engine.tokenizer, 20, LENGTHS)
    taken = {prompt.id for prompt in report}
    more = [
        prompt for prompt in read_prompts(traces, engine.tokenizer, 60, LENGTHS) if prompt.id not in taken
    ]
    kept = [more[i] for i in np.linspace(0, len(more) - 1, 30).round().astype(int)]
    return {
        "rag-report": report,
        "rag-fit": kept + read_prompts(spec_bench, engine.tokenizer, 10, LENGTHS),
        "other-report": read_prompts([here / "nothing_to_copy.jsonl"], engine.tokenizer, 20, LENGTHS),
        "other-fit": read_prompts([here / "nothing_to_copy_fit.jsonl"], engine.tokenizer, 40, LENGTHS),
    }


def record(engine: Engine, prompt: BenchPrompt) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The most probable tokens [TOP] and their logits [TOP] at each position of the answer."""
    target = engine.target
    session = target.open(len(prompt.token_ids) + MAX_TOKENS)
    pending = list(prompt.token_ids)
    tops: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    while len(tops) < MAX_TOKENS and not (tops and pending[0] in target.eos_token_ids):
        row = target.verify([Segment(session, pending)])[0][0]
        session.commit([])
        values, ids = row.float().topk(TOP)
        best = int(row.argmax())  # of equals the one that decoding takes stands first
        ids = [best, *(i for i in ids.tolist() if i != best)][:TOP]
        tops.append(np.array(ids, np.int32))
        logits.append(values.numpy())
        pending = [best]
    return tops, logits


def main() -> None:
    out, *dtype = sys.argv[1:]
    engine = Engine.from_pretrained(dtype=dtype[0] if dtype else "bfloat16")
    groups = prompts(engine)
    chosen = [(group, prompt) for group, members in groups.items() for prompt in members]
    passages = [
        [engine.tokenizer(p.text, add_special_tokens=False)["input_ids"] for p in prompt.passages]
        for _, prompt in chosen
    ]
    recorded = []
    for place, (_, prompt) in enumerate(chosen, start=1):
        recorded.append(record(engine, prompt))
        print(f"\r{place} of {len(chosen)}", end="", flush=True)
    print()
    np.savez_compressed(
        out,
        id=[prompt.id for _, prompt in chosen],
        group=[group for group, _ in chosen],
        prompt=np.concatenate([np.array(prompt.token_ids, np.int32) for _, prompt in chosen]),
        prompt_length=np.array([len(prompt.token_ids) for _, prompt in chosen]),
        passage=np.array([token for texts in passages for ids in texts for token in ids], np.int32),
        passage_length=np.array([len(ids) for texts in passages for ids in texts]),
        passages=np.array([len(texts) for texts in passages]),
        answer=np.array([top[0] for tops, _ in recorded for top in tops], np.int32),
        answer_length=np.array([len(tops) for tops, _ in recorded]),
        top=np.concatenate([tops for tops, _ in recorded]),
        top_logit=np.concatenate([logits for _, logits in recorded]),
    )


if __name__ == "__main__":
    main()
