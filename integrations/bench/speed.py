"""How long whole answers take: ``generate``, its prompt lookup and groundspeed, in turn."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from groundspeed.errors import InputError
from groundspeed.integrations.bench.prompts import BenchPrompt
from groundspeed.types import GenerationRequest, GenerationResult, ProgressCallback, StepEvent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from groundspeed.verify.engine import Engine

__all__ = [
    "GENERATE",
    "GROUNDSPEED",
    "PEERS",
    "PLAIN",
    "PROMPT_LOOKUP",
    "Flip",
    "SpeedReport",
    "check_peers",
    "measure_speed",
]

GENERATE = "generate"
PROMPT_LOOKUP = "prompt-lookup"
PLAIN = "groundspeed-plain"
GROUNDSPEED = "groundspeed"

PEERS = (GENERATE, PROMPT_LOOKUP, PLAIN)

_LOOKUP_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Flip:
    """Where two answers to a prompt part.

    Attributes:
        prompt: Id of the prompt.
        method: Whose answer differs from that of ``generate``.
        position: First token that differs, counted from the start of the answer.
        margin: How far apart the two tokens' logits are in a pass over the whole text by the model alone. In
            low precision, passes of different sizes round differently, and tokens nearer than that flip.
    """

    prompt: str
    method: str
    position: int
    margin: float


@dataclass(slots=True)
class SpeedReport:
    """What was measured.

    Attributes:
        seconds: By method: wall-clock seconds of all answers together, prefill included, one number a round.
        tokens: By method: tokens of all answers together.
        identical: By method: answers that are token for token those of ``generate``.
        flips: The other ones.
        as_plain: Answers of groundspeed that are token for token those of its plain decoding.
        steps: Steps of groundspeed, all rounds.
        accepted: Draft tokens accepted, all rounds.
        drafted: Draft tokens verified, all rounds.
        prefill: Seconds groundspeed spent reading prompts, all rounds.
        profile: Seconds of its steps by part: draft, forward, accept, commit, other.
        lengths: How many of its steps committed so many tokens.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    identical: dict[str, int] = field(default_factory=dict)
    as_plain: int = 0
    flips: list[Flip] = field(default_factory=list)
    steps: int = 0
    accepted: int = 0
    drafted: int = 0
    prefill: float = 0.0
    profile: dict[str, float] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)

    def ratios(self, method: str) -> list[float]:
        """How many times as fast as ``method`` groundspeed was, round by round."""
        pairs = zip(self.seconds[method], self.seconds[GROUNDSPEED], strict=True)
        return [theirs / ours for theirs, ours in pairs]

    def per_token(self, method: str) -> float:
        """The same by the time per token: answers that part may end at different lengths."""
        return statistics.median(self.ratios(method)) * self.tokens[GROUNDSPEED] / self.tokens[method]

    @property
    def beside_forward(self) -> float:
        """Share of a step that is not the forward pass."""
        whole = sum(self.profile.values())
        return 1 - self.profile["forward"] / whole if whole else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "methods": {
                method: {
                    "seconds": rounds,
                    "median_seconds": statistics.median(rounds),
                    "tokens": self.tokens[method],
                    "identical_to_generate": self.identical[method],
                    "groundspeed_is_times_as_fast": statistics.median(self.ratios(method)),
                    "groundspeed_is_times_as_fast_per_token": self.per_token(method),
                }
                for method, rounds in self.seconds.items()
            },
            "groundspeed_identical_to_plain": self.as_plain if PLAIN in self.seconds else None,
            "flips": [
                {"prompt": f.prompt, "method": f.method, "position": f.position, "margin": f.margin}
                for f in self.flips
            ],
            "tokens_per_step": (self.accepted + self.steps) / self.steps if self.steps else 0.0,
            "drafted_per_step": self.drafted / self.steps if self.steps else 0.0,
            "prefill_seconds": self.prefill,
            "step_milliseconds": {
                part: 1e3 * seconds / max(self.steps, 1) for part, seconds in self.profile.items()
            },
            "beside_forward": self.beside_forward,
            "steps_by_tokens": {str(tokens): self.lengths[tokens] for tokens in sorted(self.lengths)},
        }


def check_peers(peers: Sequence[str]) -> None:
    """Refuse what is not one of ``PEERS`` by an InputError."""
    unknown = set(peers) - set(PEERS)
    if unknown:
        raise InputError(f"there is no method {', '.join(sorted(unknown))}; choose from {', '.join(PEERS)}")


def measure_speed(
    engine: Engine,
    reference: PreTrainedModel,
    prompts: Sequence[BenchPrompt],
    max_tokens: int,
    rounds: int,
    peers: Sequence[str] = PEERS,
    on_progress: ProgressCallback | None = None,
) -> SpeedReport:
    """Answer every prompt by every method, one after the other, and again every round.

    Args:
        engine: The engine to measure.
        reference: The same model as transformers loads it.
        prompts: What to answer.
        max_tokens: Longest answer; answers end earlier at the end-of-sequence token.
        rounds: Measured rounds, at least 1; a short answer by each method comes first and is not counted.
        peers: What to compare with.
        on_progress: Told after every prompt.

    Raises:
        InputError: A peer that is not one of ``PEERS``.
    """
    check_peers(peers)
    report = SpeedReport()
    methods: dict[str, Callable[[BenchPrompt, int], Sequence[int]]] = {
        GENERATE: lambda prompt, limit: _generate(reference, prompt, limit),
        PROMPT_LOOKUP: lambda prompt, limit: _generate(
            reference, prompt, limit, prompt_lookup_num_tokens=_LOOKUP_TOKENS
        ),
        PLAIN: lambda prompt, limit: engine.generate(_request(prompt, limit, speculate=False)).token_ids,
        GROUNDSPEED: lambda prompt, limit: _groundspeed(engine, prompt, limit, report),
    }
    # The answers of generate are what all others are held against.
    methods = {name: methods[name] for name in methods if name in (GENERATE, GROUNDSPEED, *peers)}
    for method in methods.values():
        method(prompts[0], min(8, max_tokens))
    report = SpeedReport({m: [] for m in methods}, dict.fromkeys(methods, 0), dict.fromkeys(methods, 0))
    for number in range(rounds):
        totals = dict.fromkeys(methods, 0.0)
        for place, prompt in enumerate(prompts):
            answers: dict[str, Sequence[int]] = {}
            for name, method in methods.items():
                engine.forget_prefixes()
                start = time.perf_counter()
                answers[name] = method(prompt, max_tokens)
                totals[name] += time.perf_counter() - start
            if number == 0:
                _compare(report, reference, prompt, answers)
            if on_progress:
                on_progress("Answering", number * len(prompts) + place + 1, rounds * len(prompts))
        for name, total in totals.items():
            report.seconds[name].append(total)
    return report


def _request(prompt: BenchPrompt, limit: int, *, speculate: bool) -> GenerationRequest:
    return GenerationRequest(prompt.token_ids, prompt.passages, max_tokens=limit, speculate=speculate)


def _generate(model: PreTrainedModel, prompt: BenchPrompt, limit: int, **options: Any) -> list[int]:
    """The answer of transformers itself, without the end-of-sequence token."""
    ids = torch.tensor([prompt.token_ids], device=model.device)
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, **options
    )
    answer: list[int] = output[0, ids.shape[1] :].tolist()
    eos = model.generation_config.eos_token_id
    ends = {eos} if isinstance(eos, int) else set(eos or ())
    return answer[:-1] if answer and answer[-1] in ends else answer


def _groundspeed(engine: Engine, prompt: BenchPrompt, limit: int, report: SpeedReport) -> Sequence[int]:
    """An answer of the engine; where its time went is added to the report."""
    parts = dict.fromkeys(("draft", "forward", "accept", "commit"), 0.0)
    first = True
    for event in engine.stream(_request(prompt, limit, speculate=True)):
        if isinstance(event, StepEvent) and not first:
            for part in parts:
                parts[part] += getattr(event, f"{part}_s")
            report.lengths[len(event.token_ids)] += 1
        first = first and not isinstance(event, StepEvent)
        if isinstance(event, GenerationResult):
            stats = event.stats
            report.prefill += stats.prefill_s
            parts["other"] = stats.decode_s - sum(parts.values())
            for part, seconds in parts.items():
                report.profile[part] = report.profile.get(part, 0.0) + seconds
            report.steps += stats.steps
            report.accepted += stats.accepted
            report.drafted += stats.drafted
            return event.token_ids
    raise AssertionError("a stream ends with its result")


def _compare(
    report: SpeedReport, reference: PreTrainedModel, prompt: BenchPrompt, answers: dict[str, Sequence[int]]
) -> None:
    want = list(answers[GENERATE])
    report.as_plain += list(answers.get(PLAIN, ())) == list(answers[GROUNDSPEED])
    for method, answer in answers.items():
        got = list(answer)
        report.tokens[method] += len(got)
        if got == want:
            report.identical[method] += 1
            continue
        at = next((i for i, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), -1)
        if at < 0:  # one is the beginning of the other: it ended where the other went on
            at = min(len(got), len(want))
        report.flips.append(Flip(prompt.id, method, at, _margin(reference, prompt, want[:at], want, got)))


def _margin(
    reference: PreTrainedModel, prompt: BenchPrompt, common: list[int], want: list[int], got: list[int]
) -> float:
    """Distance of the two tokens' logits after the common beginning."""
    ids = torch.tensor([[*prompt.token_ids, *common]], device=reference.device)
    with torch.inference_mode():
        logits = reference(ids, logits_to_keep=1).logits[0, -1].float()
    eos = reference.generation_config.eos_token_id
    end = eos if isinstance(eos, int) else (eos or [0])[0]
    first, second = ((tokens[len(common) :] or [end])[0] for tokens in (want, got))
    return abs(float(logits[first] - logits[second]))
