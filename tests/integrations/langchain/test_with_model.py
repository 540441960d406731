"""The embedded model through LangChain, beside the engine by itself."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from itertools import islice
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate

from groundspeed.integrations.langchain import ChatGroundspeed, create_grounded_chain
from groundspeed.integrations.langchain.messages import turns
from groundspeed.integrations.turns import TurnPrompt
from groundspeed.types import GenerationRequest
from groundspeed.verify.engine import Engine

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]

TEXT = (
    "The lighthouse at Cape Arrow was built in 1871 by Ines Calder, who carried the lens up the cliff in "
    "nine crates. It was dark for two years in the war, and it has been lit by electricity since 1934."
)
SHARED = Path(os.environ.get("GROUNDSPEED_SHARED", Path(__file__).parents[4] / "shared"))
QUESTION = f"{TEXT}\n\nRepeat the text about the lighthouse word for word."


@pytest.fixture
def model(smollm2: Engine) -> ChatGroundspeed:
    return ChatGroundspeed(engine=smollm2, max_tokens=24)


def test_the_answer_is_the_engines(model: ChatGroundspeed, smollm2: Engine) -> None:
    messages = [HumanMessage(QUESTION)]
    request = GenerationRequest(TurnPrompt(smollm2.tokenizer).ids(turns(messages)), max_tokens=24)
    expected = smollm2.generate(request).text
    assert model.invoke(messages).content == expected
    assert "".join(str(chunk.content) for chunk in model.stream(messages)) == expected


async def test_documents_change_no_token_and_save_steps(model: ChatGroundspeed) -> None:
    hint = f"{TEXT[:40]} ... Repeat the text about the lighthouse."
    plain = model.invoke(hint)
    drafted = await model.ainvoke(hint, draft_documents=[Document(str(plain.content), id="said")])
    assert drafted.content == plain.content
    speeds = [message.response_metadata["speculative_decoding"] for message in (plain, drafted)]
    assert speeds[1]["tokens_per_step"] > speeds[0]["tokens_per_step"]
    assert speeds[1]["accepted_by_source"]["passage"] > 0
    assert drafted.response_metadata["grounding"][0]["document_id"] == "said"


@pytest.mark.parametrize("shown", ["left out", "summarised"])
def test_documents_that_the_prompt_leaves_out_or_summarises_save_steps(
    shown: str, model: ChatGroundspeed
) -> None:
    """A few questions of ``benchmarks/langchain_documents.py``; a passage's first sentence is its summary."""
    file = SHARED / "traces" / "northwind.jsonl.gz"
    if not file.exists():
        pytest.skip(f"needs {file}")
    with gzip.open(file, "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, 2)]
    steps = [0, 0]
    for row in rows:
        prompt = row["question"]
        if shown == "summarised":
            prompt = "\n".join(
                [*(text.split(".")[0] for text in row["passages"]), prompt, "Answer in detail."]
            )
        documents = [Document(text, id=str(number)) for number, text in enumerate(row["passages"])]
        answers = [
            model.invoke(prompt, max_tokens=32),
            model.invoke(prompt, max_tokens=32, draft_documents=documents),
        ]
        assert answers[0].content == answers[1].content
        for way, answer in enumerate(answers):
            steps[way] += answer.response_metadata["speculative_decoding"]["steps"]
    assert steps[1] < steps[0]


async def test_eight_at_once_share_passes(model: ChatGroundspeed) -> None:
    questions = [f"Tell me about the number {number}." for number in range(8)]
    answers = await asyncio.gather(*map(model.ainvoke, questions))
    speeds = [answer.response_metadata["speculative_decoding"] for answer in answers]
    assert sum(speed["shared_steps"] for speed in speeds) > sum(speed["steps"] for speed in speeds) * 0.9
    alone = model.invoke(questions[0]).response_metadata["speculative_decoding"]
    assert alone["steps"] > 0
    assert alone["shared_steps"] == 0


def test_a_seed_gives_the_same_answer_with_and_without_documents(model: ChatGroundspeed) -> None:
    drawn = model.bind(temperature=0.9, seed=7)
    first = drawn.invoke(QUESTION)
    assert drawn.invoke(QUESTION, draft_documents=[Document(TEXT)]).content == first.content
    assert drawn.invoke(QUESTION, speculate=False).content == first.content
    assert first.response_metadata["seed"] == 7
    assert model.invoke(QUESTION, temperature=0.9, seed=8).content != first.content


def test_a_chain_grounds_what_it_answers(model: ChatGroundspeed) -> None:
    prompt = ChatPromptTemplate.from_template(
        "{context}\n\nRepeat the text about the lighthouse word for word."
    )
    chain = create_grounded_chain(model.with_config(run_name="model"), prompt)
    pieces = [piece for piece in chain.stream({"context": [Document(TEXT, id="cape")]}) if piece]
    assert len(pieces) > 1
    assert "".join(pieces) == model.invoke(QUESTION).content


def test_structured_output_and_forced_calls_hold_their_schema(model: ChatGroundspeed) -> None:
    schema = {
        "title": "answer",
        "description": "An answer.",
        "type": "object",
        "properties": {
            "year": {"type": "integer", "minimum": 1800, "maximum": 1999},
            "kind": {"enum": ["house", "ship"]},
        },
        "required": ["year", "kind"],
    }
    answer = model.with_structured_output(schema).invoke(f"{TEXT}\n\nWhen was it built?")
    assert isinstance(answer, dict)
    assert 1800 <= answer["year"] <= 1999
    assert answer["kind"] in ("house", "ship")
    called = model.bind_tools([schema], tool_choice="any", max_tokens=64).invoke(
        f"{TEXT}\n\nWhen was it built?"
    )
    assert isinstance(called.tool_calls[0]["args"]["year"], int)
