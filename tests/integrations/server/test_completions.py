"""The older API, by the official client."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from groundspeed.types import GenerationRequest
from groundspeed.verify.engine import Engine


def complete(client: OpenAI, prompt: Any = "once", **more: Any) -> Any:
    return client.completions.create(**{"model": "tiny", "prompt": prompt, "temperature": 0, **more})


def test_a_text_is_continued_by_sixteen_tokens(client: OpenAI, engine: Engine) -> None:
    reply = complete(client)
    assert reply.choices[0].text == engine.generate(GenerationRequest("once", max_tokens=16)).text
    assert (reply.object, reply.choices[0].finish_reason) == ("text_completion", "length")
    assert reply.usage.prompt_tokens == 4


def test_token_ids_are_a_prompt_as_they_are(client: OpenAI, engine: Engine) -> None:
    ids = engine.encode("once")
    assert complete(client, ids).choices[0].text == complete(client).choices[0].text
    assert complete(client, [ids, ids[:2]]).choices[0].text == complete(client).choices[0].text


def test_several_prompts_have_several_answers_each(client: OpenAI) -> None:
    reply = complete(client, ["one", "three"], n=2, seed=4, temperature=1)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage.prompt_tokens == 3 + 5
    alone = [
        complete(client, p, seed=s, temperature=1).choices[0].text for p in ("one", "three") for s in (4, 5)
    ]
    assert [choice.text for choice in reply.choices] == alone


def test_the_prompt_may_be_echoed_with_its_log_probabilities(client: OpenAI, engine: Engine) -> None:
    choice = complete(client, echo=True, logprobs=2, max_tokens=3).choices[0]
    wanted = engine.generate(GenerationRequest("once", max_tokens=3, echo=True, logprobs=2))
    assert choice.text == wanted.text
    told = [
        one.logprob if one else None for one in (*(wanted.prompt_logprobs or ()), *(wanted.logprobs or ()))
    ]
    assert choice.logprobs.token_logprobs == told
    assert choice.logprobs.tokens[:4] == ["o", "n", "c", "e"]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 5, 6]
    assert choice.logprobs.top_logprobs[0] is None


def test_a_stream_makes_up_the_text(client: OpenAI) -> None:
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}, logprobs=1))
    whole = complete(client, logprobs=1)
    texts = "".join(c.choices[0].text for c in chunks if c.choices)
    assert texts == whole.choices[0].text
    streamed = [
        one for c in chunks if c.choices and c.choices[0].logprobs for one in c.choices[0].logprobs.tokens
    ]
    assert streamed == whole.choices[0].logprobs.tokens
    assert chunks[-1].usage.completion_tokens == 16
    assert chunks[-2].choices[0].finish_reason == "length"


def test_documents_are_drafted_from(client: OpenAI) -> None:
    text = complete(client, max_tokens=60).choices[0].text
    reply = complete(client, max_tokens=60, extra_body={"draft_documents": [text]})
    assert reply.choices[0].text == text
    assert reply.choices[0].groundspeed["grounding"][0]["text"] == text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"best_of": 3}, "give n alone"),
        ({"suffix": "x"}, "suffix: this parameter is unknown"),
        ({"prompt": ""}, "no tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [999999]}, "999999"),
        ({"n": 5}, "4 are the most"),
        ({"stream": True, "echo": True, "logprobs": 1}, "cannot be streamed"),
        ({"extra_body": {"draft_documents": ["x"] * 5}}, "4 are the most"),
    ],
)
def test_what_cannot_be_done_is_an_error(client: OpenAI, more: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        complete(client, **more)


def test_an_echoed_prompt_is_no_copy_and_a_prediction_no_source(client: OpenAI, engine: Engine) -> None:
    prompt = "a prompt that is long enough for a copied span"
    said = engine.generate(GenerationRequest(prompt, max_tokens=40)).text
    for documents in ([], [prompt], [said]):
        reply = complete(
            client,
            prompt,
            echo=True,
            max_tokens=40,
            extra_body={
                "draft_documents": documents,
                "prediction": {"type": "content", "content": f"{prompt}{said}"},
            },
        )
        choice = reply.choices[0]
        assert choice.text == prompt + said
        assert choice.groundspeed["accepted_by_source"]["passage"] > 0
        spans = choice.groundspeed["grounding"]
        assert [span["text"] for span in spans] == [said for one in documents if one == said]
        assert [choice.text[span["start"] : span["end"]] for span in spans] == [s["text"] for s in spans]
