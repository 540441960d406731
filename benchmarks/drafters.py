"""Drafters beside each other on the same prompts: tokens per step, and the time of whole answers.

    python benchmarks/drafters.py ../shared/prompts/spec_bench.jsonl.gz benchmarks/nothing_to_copy.jsonl
        --heads FOLDER --draft-model SMALLER --draft-model SMALL [--json FILE]
    python benchmarks/drafters.py ... --temperature 0.8 --drafter blend --drafter "draft model"
    python benchmarks/drafters.py ... --passes 4

All drafters take their turn with each prompt, in rounds, behind one engine; the tables, one a file, give the
medians over rounds, as Markdown. Whole answers are timed, the prompt's reading by target and draft model
included; what was read is forgotten before each answer. Each drafter answers once before the first round,
which also teaches it: an engine that has been running is what is measured. The answers are compared with
plain decoding.

How much is drafted follows the clock, and the counts with it. With ``--passes`` a draft model takes so many
for every draft and 32 nodes are verified, whatever that takes: greedy counts are then the same however busy
the machine, and the times tell what drafting costs where nothing holds it back.

The cascade is of the first and the last draft model. The bridged one is the last, as if its tokens were
others than the target's: what the way by text costs, where nothing else differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundspeed.drafting.base import DrafterFactory
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.bridged import BridgedDraftModel
from groundspeed.drafting.budget import CostModel
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.lookahead import LookaheadDrafter
from groundspeed.drafting.medusa import Medusa
from groundspeed.drafting.none import NoDrafter
from groundspeed.drafting.prompt_lookup import PromptLookupDrafter
from groundspeed.drafting.worth import Trust, Worth
from groundspeed.integrations.bench.prompts import read_prompts
from groundspeed.integrations.bench.traces import data_set_name
from groundspeed.types import GenerationRequest, GenerationResult
from groundspeed.verify.draft_lm import bridge_between, load_draft_lm
from groundspeed.verify.early_exit import FirstLayers
from groundspeed.verify.engine import Engine
from groundspeed.verify.loading import load_model
from groundspeed.verify.medusa_heads import MedusaHeads
from groundspeed.verify.target import TransformersTarget

LENGTHS = range(1, 1_201)


class FreeNodes(CostModel):
    """A pass takes as long with 32 draft nodes as with none, whatever the clock says."""

    def __init__(self) -> None:
        super().__init__([0, 32], [1.0, 1.0])

    def observe(self, nodes: int, context: int, seconds: float) -> None:
        """Learn nothing."""


class Tireless(Worth):
    """Goes on drafting, whatever it takes."""

    def judge(self, gained: float, spent: float) -> None:
        """Hold nothing against it."""


class FullTrust(Trust):
    """Lets no drafter be switched off."""

    def worth(self) -> Worth:
        """For a new text."""
        return Tireless()


def drafters(
    engine: Engine,
    names: list[str],
    dtype: str,
    temperature: float,
    heads: Path | None,
    text: list[int] | None,
    *,
    passes: int | None = None,
) -> dict[str, DrafterFactory]:
    """By name, those that can run; first layers only where there is a text to choose how many by."""
    how: dict[str, Any] = {} if passes is None else {"depth": passes, "adapts": False}
    found: dict[str, DrafterFactory] = {
        "none": NoDrafter,
        "prompt lookup": PromptLookupDrafter,
        "blend": Blend(),
        "lookahead": LookaheadDrafter,
    }
    if text and isinstance(engine.target, TransformersTarget):
        own = FirstLayers.chosen(engine.target, text)
        exits = ", ".join(f"{one.layers}: {one.agreement:.0%} at {one.cost:.2f}" for one in own.exits)
        print(f"first layers, how often they agree with all and what they cost: {exits}")
        found[f"first {own.layers} layers"] = DraftModel(own, **how)
    if heads is not None:
        found["Medusa heads"] = Medusa(MedusaHeads.load(heads))
    lms = [load_draft_lm(name, engine.tokenizer, dtype=dtype) for name in names]
    for lm, name in zip(lms, names, strict=True):
        which = f" ({Path(name).name})" if len(lms) > 1 else ""
        found[f"draft model, chain{which}"] = DraftModel(lm, width=1, **how)
        found[f"draft model, tree{which}"] = DraftModel(lm, **how)
        if temperature:
            found[f"draft model, drawn chain{which}"] = DraftModel(lm, width=1, draws=1, **how)
            found[f"draft model, drawn tree (SpecInfer){which}"] = DraftModel(lm, draws=3, **how)
        found[f"blend + draft model (RASD){which}"] = DraftModel(lm, first=Blend(), **how)
    if lms:
        found["draft model, bridged"] = BridgedDraftModel(
            lms[-1], bridge_between(engine.tokenizer, engine.tokenizer), **how
        )
    if len(lms) > 1:
        found["draft models, cascade"] = DraftModel(
            lms[-1], first=DraftModel(lms[0], **how), **{**how, "depth": 2}
        )
    return found


def measure(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    factories: Mapping[str, DrafterFactory],
    rounds: int,
    trust: type[Trust] = Trust,
) -> dict[str, dict[str, Any]]:
    """Let every drafter, "none" among them, answer every request, in turns.

    Returns:
        By drafter ``seconds``, a number a round; ``tokens_per_step``; ``accepted``, the share of the drafted;
        and ``same``, how many answers are those of plain decoding.
    """
    trusts = {name: trust() for name in factories}
    seconds: dict[str, list[float]] = {name: [] for name in factories}
    answers: dict[str, list[GenerationResult]] = {}
    for number in range(rounds + 1):
        answers = {name: [] for name in factories}
        took = dict.fromkeys(factories, 0.0)
        for request in requests:
            for name, factory in factories.items():
                engine.drafter = factory
                engine.trust = trusts[name]
                engine.forget_prefixes()
                start = time.perf_counter()
                answers[name].append(engine.generate(request))
                took[name] += time.perf_counter() - start
        if number:
            for name in factories:
                seconds[name].append(took[name])
    measured = {}
    for name, found in answers.items():
        stats = [result.stats for result in found]
        steps, accepted = sum(s.steps for s in stats), sum(s.accepted for s in stats)
        pairs = zip(found, answers["none"], strict=True)
        measured[name] = {
            "seconds": seconds[name],
            "tokens_per_step": (accepted + steps) / steps,
            "accepted": accepted / max(sum(s.drafted for s in stats), 1),
            "same": sum(a.token_ids == b.token_ids for a, b in pairs),
        }
    return measured


def show(measured: Mapping[str, dict[str, Any]]) -> None:
    print("| drafter | tokens per step | accepted of drafted | seconds | times as fast | same answers |")
    print("|---|---|---|---|---|---|")
    plain = statistics.median(measured["none"]["seconds"])
    for name, found in measured.items():
        median = statistics.median(found["seconds"])
        print(
            f"| {name} | {found['tokens_per_step']:.2f} | {found['accepted']:.0%} "
            f"| {median:.2f} | {plain / median:.2f} | {found['same']} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", help="the target; by default the embedded model")
    parser.add_argument("--draft-model", action="append", default=[], help="smallest first")
    parser.add_argument("--heads", type=Path, help="folder of Medusa heads for the target")
    parser.add_argument("--drafter", action="append", help="those whose names begin so; by default all")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=3, help="of each file")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--passes", type=int, help="of a draft model for every draft, whatever they take")
    parser.add_argument("--json", type=Path, help="file for the rows of the tables")
    arguments = parser.parse_args()

    fixed = arguments.passes is not None
    loaded = load_model(arguments.model, dtype=arguments.dtype)
    engine = Engine(
        TransformersTarget.packed(loaded.model),
        loaded.tokenizer,
        cost=FreeNodes() if fixed else None,
        model_name=loaded.name,
    )
    sets = {
        data_set_name(file): read_prompts([file], engine.tokenizer, arguments.requests, LENGTHS)
        for file in arguments.files
    }
    asks_itself = any(name.startswith("first") for name in arguments.drafter or ["first"])
    text = list(next(iter(sets.values()))[0].token_ids) if asks_itself else None
    factories = drafters(
        engine,
        arguments.draft_model,
        arguments.dtype,
        arguments.temperature,
        arguments.heads,
        text,
        passes=arguments.passes,
    )
    wanted = ("none", *(arguments.drafter or factories))
    factories = {name: factory for name, factory in factories.items() if name.startswith(wanted)}
    rows = []
    for name, prompts in sets.items():
        requests = [
            GenerationRequest(
                prompt.token_ids, prompt.passages, max_tokens=arguments.tokens, ignore_eos=True, seed=1,
                temperature=arguments.temperature,
            )
            for prompt in prompts
        ]  # fmt: skip
        measured = measure(engine, requests, factories, arguments.rounds, FullTrust if fixed else Trust)
        print(f"{name}: {len(requests)} prompts, {arguments.tokens} tokens each")
        show(measured)
        plain = measured["none"]["seconds"]
        for drafter, found in measured.items():
            ratios = [ours / theirs for ours, theirs in zip(plain, found["seconds"], strict=True)]
            rows.append({"set": name, "drafter": drafter, "speed": statistics.median(ratios), **found})
    if arguments.json:
        setting = {
            "model": engine.model_name,
            "dtype": engine.dtype,
            "temperature": arguments.temperature,
            "passes": arguments.passes,
            "requests": arguments.requests,
            "tokens": arguments.tokens,
            "rounds": arguments.rounds,
        }
        arguments.json.write_text(json.dumps({**setting, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
