"""All that a page can show, by the name in its markers."""

from __future__ import annotations

from collections.abc import Callable

from suite.pages import answers, systems
from suite.pages.cells import Found, data_of

__all__ = ["BLOCKS"]


def picture(name: str, shows: str, *parts: str) -> Callable[[Found], str]:
    """The line that shows a picture, where there is one."""

    def block(found: Found) -> str:
        for part in parts:
            data_of(found, part)
        return f"![{shows}](benchmarks/{name}.svg)"

    return block


BLOCKS: dict[str, Callable[[Found], str]] = {
    "summary": answers.summary,
    "speed": answers.speed,
    "acceptance": answers.acceptance,
    "replay": answers.replay,
    "replay-history": answers.replay_history,
    "replay-sets": answers.replay_sets,
    "datastore": systems.datastore,
    "datastore-peers": systems.datastore_peers,
    "retrieval": systems.retrieval,
    "throughput": systems.throughput,
    "contexts": systems.contexts,
    "drafters": systems.drafters,
    "drafters-trained": systems.drafters_trained,
    "serving": systems.serving,
    "idle": systems.idle,
    "llama-cpp": answers.llama_cpp,
    "vllm": answers.vllm,
    "losses": answers.losses,
    "runs": answers.runs,
    "picture-speed": picture("speed", "How many times as fast groundspeed is, by task", "speed-rag"),
    "picture-acceptance": picture("acceptance", "Steps by the tokens that they committed", "speed-rag"),
    "picture-replay": picture("replay", "Tokens per step by budget", "replay", "replay-history"),
    "picture-throughput": picture("throughput", "Tokens a second by requests at once", "throughput"),
    "picture-contexts": picture("contexts", "Tokens a second by tokens of context", "contexts"),
}
"""By the name in the pages' markers."""
