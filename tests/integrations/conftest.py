from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.browser import ARGUMENTS, CHROMIUM, Browser, Watched

from groundspeed.types import (
    Event,
    GenerationRequest,
    GenerationResult,
    GenerationStats,
    GroundedSpan,
    Passage,
    PrefillEvent,
    Source,
    StepEvent,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PASSAGES = (
    Passage("alpha.md", "The cache is compacted in place.", 10, 0.5, {"title": "Alpha"}),
    Passage("beta.md", "A tree holds what may follow.", 0, 0.25),
)


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte, and the special tokens of the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocab = {char: index for index, char in enumerate(bytes_to_unicode().values())}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


class FakeTarget:
    """As much of a target model as the pipeline asks about."""

    context_length: int | None = None


class FakeEngine:
    """Answers with a scripted text: a passage's words, a prompt's word, the model's own."""

    model_name = "fake"
    device = "cpu"
    dtype = "float32"
    script = (
        ("The cache is compacted", Source.PASSAGE, 0 << 32),
        (" indeed", Source.PROMPT, 7),
        (", é\x1b[31m", Source.TARGET, -1),
    )

    def __init__(self) -> None:
        self.tokenizer = byte_tokenizer()
        self.target = FakeTarget()
        self.requests: list[GenerationRequest] = []
        self.closed = False

    def stream(self, request: GenerationRequest) -> Iterator[Event]:
        self.requests.append(request)
        return self._run(request)

    def _run(self, request: GenerationRequest) -> Iterator[Event]:
        try:
            yield PrefillEvent(3, 3)
            all_ids: list[int] = []
            all_sources: list[Source] = []
            for text, source, origin in self.script:
                ids = tuple(self.tokenizer(text).input_ids)
                all_ids += ids
                all_sources += [source] * len(ids)
                yield StepEvent(
                    ids, (source,) * len(ids), (origin,) * len(ids), text, len(ids), len(ids) - 1, 0, 0, 0, 0
                )
            yield self.result(tuple(all_ids), tuple(all_sources), request)
        finally:
            self.closed = True

    def result(
        self, ids: tuple[int, ...], sources: tuple[Source, ...], request: GenerationRequest
    ) -> GenerationResult:
        text = "".join(piece for piece, _, _ in self.script)
        spans: tuple[GroundedSpan, ...] = ()
        if request.passages:
            spans = (GroundedSpan(0, 22, "alpha.md", 10, 32, "The cache is compacted", 0),)
        stats = GenerationStats(
            3, len(ids), 3, len(ids), 20, {"passage": 18, "prompt": 2}, 0, 0.5, 2.0, "tree"
        )
        return GenerationResult(text, ids, sources, "stop", spans, stats, request.seed)


class FakeRetriever:
    """Finds the same passages whatever the question."""

    def __init__(self) -> None:
        self.searches: list[dict[str, Any]] = []

    def search(self, question: str, **how: Any) -> list[Passage]:
        self.searches.append({"question": question, **how})
        return list(PASSAGES)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def retriever() -> FakeRetriever:
    return FakeRetriever()


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A saved tokenizer whose tokens are bytes."""
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS.split())
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """Opens pages that must not complain."""
    opened = Watched(browser)
    yield opened
    opened.close()
    assert opened.complaints == []
