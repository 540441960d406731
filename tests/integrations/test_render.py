"""What is printed of an answer as it comes is the answer."""

from __future__ import annotations

from io import StringIO

import pytest
from helpers.drafters import RightAnswer
from helpers.engines import FREE
from helpers.families import TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer
from rich.console import Console

from groundspeed.integrations.cli.console import printable
from groundspeed.integrations.cli.render import AnswerPrinter, source_style
from groundspeed.types import GenerationRequest, Source, StepEvent
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget


def printed(engine, request, tokenizer):
    """What stands on the terminal after each step, and at the end."""
    file = StringIO()
    printer = AnswerPrinter(Console(file=file, width=10_000), tokenizer)
    shown = []
    for event in engine.stream(request):
        if isinstance(event, StepEvent):
            printer.step(event)
            shown.append(file.getvalue())
    return shown, file.getvalue(), event


@pytest.mark.parametrize("coloured", [True, False])
def test_no_stop_string_is_printed(coloured):
    config = TREE_FAMILIES["llama"]()
    config.vocab_size = 257
    tokenizer = byte_tokenizer()
    target = TransformersTarget(tiny_model(config))
    engine = Engine(target, tokenizer, drafter=lambda: RightAnswer(answer.token_ids), cost=FREE)
    answer = engine.generate(GenerationRequest("once more, ", max_tokens=60, speculate=False))
    for start in range(3, 30, 5):
        stop = answer.text[start : start + 4]
        request = GenerationRequest("once more, ", max_tokens=60, stop=(stop,))
        shown, whole, result = printed(engine, request, tokenizer if coloured else None)
        assert result.stop == stop
        assert whole == printable(result.text)
        assert all(whole.startswith(text) for text in shown)


def test_every_source_has_a_style():
    assert all(
        isinstance(source_style(source, 0 if source is Source.PASSAGE else None), str) for source in Source
    )
