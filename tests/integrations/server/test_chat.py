"""The official client asks for chats, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from groundspeed.integrations.turns import TurnPrompt
from groundspeed.types import GenerationRequest, Passage
from groundspeed.verify.engine import Engine

HELLO: Any = [{"role": "user", "content": "hello"}]


def ask(client: OpenAI, messages: Any = HELLO, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": messages, "max_tokens": 12, **more})


def straight(engine: Engine, messages: Any = HELLO, **more: Any) -> Any:
    """What the engine itself answers."""
    prompt = TurnPrompt(engine.tokenizer).ids(messages)
    return engine.generate(GenerationRequest(prompt, **{"max_tokens": 12, **more}))


def test_a_greedy_answer_is_the_engines(client: OpenAI, engine: Engine) -> None:
    reply = ask(client, temperature=0)
    wanted = straight(engine)
    assert reply.choices[0].message.content == wanted.text
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert (reply.object, reply.model) == ("chat.completion", "tiny")
    assert reply.id.startswith("chatcmpl-")


def test_a_seed_gives_the_engines_answer_for_it(client: OpenAI, engine: Engine) -> None:
    reply = ask(client, seed=7)
    assert reply.choices[0].message.content == straight(engine, seed=7, temperature=1.0).text
    assert reply.choices[0].groundspeed["seed"] == 7


def test_without_a_temperature_answers_are_drawn_at_one(client: OpenAI) -> None:
    assert ask(client, seed=3).choices[0].message.content == (
        ask(client, seed=3, temperature=1).choices[0].message.content
    )
    assert ask(client, temperature=0).choices[0].groundspeed["seed"] is None


def test_a_negative_seed_is_a_seed(client: OpenAI) -> None:
    first, second = (ask(client, seed=-5).choices[0].message.content for _ in range(2))
    assert first == second


def test_usage_counts_tokens_and_draft_tokens(client: OpenAI, engine: Engine) -> None:
    reply = ask(client, temperature=0, max_tokens=40)
    stats = straight(engine, max_tokens=40).stats
    usage, facts = reply.usage, reply.choices[0].groundspeed
    assert (usage.prompt_tokens, usage.completion_tokens) == (stats.prompt_tokens, 40)
    assert usage.total_tokens == stats.prompt_tokens + 40
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == facts["accepted"]
    assert details.rejected_prediction_tokens == facts["drafted"] - facts["accepted"]
    assert facts["steps"] + facts["accepted"] == 39  # the first token comes with the prompt
    assert sum(facts["accepted_by_source"].values()) == facts["accepted"]
    assert facts["tokens_per_step"] == pytest.approx((facts["accepted"] + facts["steps"]) / facts["steps"])


def test_several_answers_have_seeds_in_a_row(client: OpenAI) -> None:
    choices = ask(client, n=3, seed=10).choices
    assert [choice.index for choice in choices] == [0, 1, 2]
    alone = [ask(client, seed=seed).choices[0].message.content for seed in (10, 11, 12)]
    assert [choice.message.content for choice in choices] == alone


def test_the_prompt_of_several_answers_counts_once(client: OpenAI) -> None:
    one, three = ask(client).usage, ask(client, n=3).usage
    assert three.prompt_tokens == one.prompt_tokens
    assert three.completion_tokens == 36


def test_max_completion_tokens_goes_before_max_tokens(client: OpenAI) -> None:
    assert ask(client, max_completion_tokens=5).usage.completion_tokens == 5
    assert ask(client, max_completion_tokens=5, max_tokens=None).usage.completion_tokens == 5


def test_an_answer_ends_before_a_stop_string(client: OpenAI, engine: Engine) -> None:
    whole = straight(engine).text
    reply = ask(client, temperature=0, stop=whole[4:6])
    assert reply.choices[0].message.content == whole[: whole.find(whole[4:6])]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].groundspeed["stop"] == whole[4:6]


def test_several_stop_strings_may_be_given(client: OpenAI, engine: Engine) -> None:
    whole = straight(engine).text
    reply = ask(client, temperature=0, stop=["never there", whole[3]])
    assert reply.choices[0].message.content == whole[: whole.find(whole[3])]


def test_a_bias_decides_the_token(client: OpenAI, engine: Engine) -> None:
    wanted = engine.encode("q")[0]
    reply = ask(client, temperature=0, logit_bias={str(wanted): 100})
    assert reply.choices[0].message.content == "q" * 12


def test_penalties_reach_the_engine(client: OpenAI, engine: Engine) -> None:
    reply = ask(client, temperature=0, presence_penalty=2, frequency_penalty=2, max_tokens=30)
    wanted = straight(engine, presence_penalty=2.0, frequency_penalty=2.0, max_tokens=30)
    assert reply.choices[0].message.content == wanted.text


def test_top_p_of_nothing_leaves_the_best_token(client: OpenAI) -> None:
    greedy = ask(client, temperature=0).choices[0].message.content
    assert ask(client, top_p=0).choices[0].message.content == greedy


def test_settings_of_our_own_come_in_the_extra_body(client: OpenAI) -> None:
    greedy = ask(client, temperature=0).choices[0].message.content
    assert ask(client, extra_body={"top_k": 1}).choices[0].message.content == greedy
    plain = ask(client, temperature=0, extra_body={"speculate": False}).choices[0]
    assert plain.message.content == greedy
    assert plain.groundspeed["decoding_reason"] == "speculation is off"
    assert plain.groundspeed["drafted"] == 0


def test_log_probabilities_are_those_of_the_engine(client: OpenAI, engine: Engine) -> None:
    choice = ask(client, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    wanted = straight(engine, logprobs=3)
    assert [one.logprob for one in choice.logprobs.content] == [one.logprob for one in wanted.logprobs]
    assert all(len(one.top_logprobs) == 3 for one in choice.logprobs.content)
    assert all(one.top_logprobs[0].logprob == one.logprob for one in choice.logprobs.content)


def test_the_bytes_of_tokens_make_up_the_text(client: OpenAI) -> None:
    choice = ask(client, seed=1, logprobs=True, max_tokens=60).choices[0]
    data = b"".join(bytes(one.bytes) for one in choice.logprobs.content)
    assert data.decode(errors="replace") == choice.message.content
    assert max(data) > 127, "no token of this answer is half a character"


def test_log_probabilities_without_top_ones(client: OpenAI) -> None:
    assert ask(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert ask(client).choices[0].logprobs is None


def test_messages_of_every_role_make_the_prompt(client: OpenAI, engine: Engine) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    messages: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    reply = ask(client, messages, temperature=0)
    text = '[system] be brief|[user] one two|[assistant]  CALL look {"at": "x"}|[tool] found|[assistant] '
    assert reply.usage.prompt_tokens == len(text)
    prompt = tuple(engine.encode(text))
    assert reply.choices[0].message.content == engine.generate(GenerationRequest(prompt, max_tokens=12)).text


def test_documents_are_drafted_from_and_never_change_the_answer(client: OpenAI, engine: Engine) -> None:
    answer = straight(engine, max_tokens=60).text
    document = {"id": "doc", "text": f"before {answer} after", "start": 100}
    plain = ask(client, temperature=0, max_tokens=60)
    drafted = ask(client, temperature=0, max_tokens=60, extra_body={"draft_documents": [document]})
    assert drafted.choices[0].message.content == plain.choices[0].message.content == answer
    facts = drafted.choices[0].groundspeed
    assert facts["accepted_by_source"]["passage"] > 0
    (span,) = facts["grounding"]
    assert (span["document_id"], span["document_start"], span["text"]) == ("doc", 107, answer)


def test_documents_may_be_plain_texts(client: OpenAI, engine: Engine) -> None:
    answer = straight(engine, max_tokens=60).text
    reply = ask(client, temperature=0, max_tokens=60, extra_body={"draft_documents": ["x", answer]})
    assert reply.choices[0].groundspeed["grounding"][0]["document_id"] == "document-1"


def test_a_prediction_is_drafted_from_and_is_no_source(client: OpenAI, engine: Engine) -> None:
    answer = straight(engine, max_tokens=60).text
    reply = ask(
        client,
        temperature=0,
        max_tokens=60,
        prediction={"type": "content", "content": answer},
        extra_body={"draft_documents": [{"id": "doc", "text": answer[:40]}]},
    )
    assert reply.usage.completion_tokens_details.accepted_prediction_tokens > 15
    grounding = reply.choices[0].groundspeed["grounding"]
    assert [span["document_id"] for span in grounding] == ["doc"]
    wanted = engine.generate(
        GenerationRequest(
            TurnPrompt(engine.tokenizer).ids(HELLO), (Passage("doc", answer[:40]),), max_tokens=60
        )
    )
    assert [span["text"] for span in grounding] == [span.text for span in wanted.grounding]


def test_what_asks_for_nothing_here_is_ignored(client: OpenAI) -> None:
    reply = ask(
        client,
        user="somebody",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        extra_body={"safety_identifier": "x", "prompt_cache_key": "y"},
    )
    assert reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "name", ["audio", "modalities", "functions", "web_search_options", "reasoning_effort", "xyz"]
)
def test_an_unknown_parameter_is_refused_by_its_name(client: OpenAI, name: str) -> None:
    with pytest.raises(BadRequestError, match=f"{name}: this parameter is unknown here") as caught:
        ask(client, extra_body={name: "x"})
    assert caught.value.param == name


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="this server has 'tiny'") as caught:
        ask(client, model="gpt-5")
    assert caught.value.code == "model_not_found"


def test_the_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "groundspeed"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": [""]}, None),
        ({"logit_bias": {"99999": 1}}, None),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_it(
    client: OpenAI, more: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, **more)
    assert caught.value.type == "invalid_request_error"
    assert param is None or caught.value.param == param


def test_a_prompt_beyond_the_context_says_so_by_its_code(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="holds 4096") as caught:
        ask(client, [{"role": "user", "content": "x" * 5000}])
    assert caught.value.code == "context_length_exceeded"


def test_a_stream_makes_up_the_whole_answer(client: OpenAI) -> None:
    chunks = list(ask(client, seed=4, stream=True, max_tokens=40))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == ask(client, seed=4, max_tokens=40).choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].groundspeed["seed"] == 4


def test_usage_comes_last_where_it_is_wanted(client: OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_answers_of_one_stream_are_told_apart(client: OpenAI) -> None:
    texts = {0: "", 1: ""}
    for chunk in ask(client, seed=20, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    whole = ask(client, seed=20, n=2).choices
    assert [texts[0], texts[1]] == [choice.message.content for choice in whole]


def test_log_probabilities_stream_with_their_tokens(client: OpenAI) -> None:
    chunks = ask(client, seed=1, logprobs=True, top_logprobs=1, stream=True, max_tokens=40)
    streamed = [one for c in chunks if c.choices[0].logprobs for one in c.choices[0].logprobs.content]
    whole = ask(client, seed=1, logprobs=True, top_logprobs=1, max_tokens=40).choices[0].logprobs.content
    assert [one.token for one in streamed] == [one.token for one in whole]
    # Not to the bit: in float32 a row rounds by how many others its pass carries.
    assert [one.logprob for one in streamed] == pytest.approx([one.logprob for one in whole], abs=1e-4)


def test_the_clients_own_stream_helper_reads_it(client: OpenAI, engine: Engine) -> None:
    stop = straight(engine).text[8]  # the helper takes an answer that was cut for an error
    with client.chat.completions.stream(model="tiny", messages=HELLO, temperature=0, stop=stop) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


async def test_the_asynchronous_client_gets_the_same(address: str, client: OpenAI) -> None:
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as asking:
        create: Any = asking.chat.completions.create
        some = [create(model="tiny", messages=HELLO, max_tokens=12, seed=seed) for seed in range(6)]
        replies = await asyncio.gather(*some)
        stream = await create(model="tiny", messages=HELLO, max_tokens=12, seed=2, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    alone = [ask(client, seed=seed).choices[0].message.content for seed in range(6)]
    assert [reply.choices[0].message.content for reply in replies] == alone
    assert text == alone[2]


def test_every_reply_has_an_id_for_the_log(client: OpenAI) -> None:
    first, second = ask(client)._request_id, ask(client)._request_id
    assert first.startswith("req_")
    assert first != second
