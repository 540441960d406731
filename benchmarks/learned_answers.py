"""The free form of alignment: what a datastore that took in the target's answers wins on further questions.

    python benchmarks/learned_answers.py ../shared/traces/northwind.jsonl.gz [--taught 60] [--asked 40]

Most questions of a file are answered, and the answers learnt, as ``groundspeed ask --learn`` does; then
others are answered with and without them. The target's own answers are what it is going to say again, so
this costs no training. Reports tokens per step; nothing here is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.drafting.blend import Blend
from groundspeed.integrations.bench.prompts import BenchPrompt, read_prompts
from groundspeed.types import GenerationRequest
from groundspeed.verify.engine import Engine


def tokens_per_step(engine: Engine, prompts: Sequence[BenchPrompt], tokens: int) -> float:
    steps = accepted = 0
    for start in range(0, len(prompts), 8):
        results = engine.generate_all(
            GenerationRequest(prompt.token_ids, prompt.passages, max_tokens=tokens)
            for prompt in prompts[start : start + 8]
        )
        steps += sum(result.stats.steps for result in results)
        accepted += sum(result.stats.accepted for result in results)
    return (accepted + steps) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--taught", type=int, default=60)
    parser.add_argument("--asked", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--longest", type=int, default=450, help="longest prompt, in tokens")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    engine = Engine.from_pretrained(arguments.model)
    for file in arguments.files:
        count = arguments.taught + arguments.asked
        lengths = range(1, arguments.longest + 1)
        prompts = read_prompts([file], engine.tokenizer, count, lengths, at_most=True)
        every = -(-len(prompts) // min(arguments.asked, len(prompts)))
        asked = prompts[::every]
        taught = [prompt for prompt in prompts if prompt not in asked]
        engine.drafter = Blend()
        without = tokens_per_step(engine, asked, arguments.tokens)
        with TemporaryDirectory() as folder:
            fingerprint = TokenizerFingerprint.of(engine.tokenizer)
            with TokenDatastoreWriter.open(Path(folder), fingerprint, background=False) as writer:
                engine.drafter = Blend(
                    writer, learn=lambda ids, to=writer: to.learn("answers", ids, max_tokens=1_000_000)
                )
                tokens_per_step(engine, taught, arguments.tokens)
                engine.drafter = Blend(writer)
                with_answers = tokens_per_step(engine, asked, arguments.tokens)
        print(
            f"{file.name}: {len(asked)} questions, {without:.3f} tokens per step; with the answers to "
            f"{len(taught)} others {with_answers:.3f} ({with_answers / without - 1:+.1%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
