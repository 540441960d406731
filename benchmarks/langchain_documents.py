"""What LangChain takes of the time, and what documents that the prompt does not show are worth.

    python benchmarks/langchain_documents.py first-text ../shared/traces/northwind.jsonl.gz
    python benchmarks/langchain_documents.py documents ../shared/traces/northwind.jsonl.gz

``first-text``: a chain of retriever, prompt and model, and the engine by itself with the same prompt ready,
stream in turns, several rounds; how much later is the chain's first text? The retriever knows its answers.

``documents``: each question is answered with ``draft_documents`` and without, from a prompt that leaves the
passages out, and from one that has the model's own summary of each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

from groundspeed.integrations.bench.json_lines import json_lines
from groundspeed.integrations.langchain import ChatGroundspeed, create_grounded_chain
from groundspeed.integrations.langchain.documents import to_passages
from groundspeed.integrations.langchain.messages import turns
from groundspeed.integrations.turns import TurnPrompt
from groundspeed.types import GenerationRequest, StepEvent

PROMPT = "Text:\n{context}\n\nQuestion: {input}\nAnswer with sentences from the text."
SUMMARY = "{text}\n\nSummarise this text in one sentence."


class Known(BaseRetriever):
    """Finds what it was given."""

    answers: dict[str, list[Document]]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.answers[query]


def read(file: Path, count: int) -> dict[str, list[Document]]:
    """Questions, each with its passages."""
    rows = [row for _, row in json_lines(file) if row.get("passages") and not row.get("history")]
    asked = {row["question"]: row["passages"] for row in rows}
    chosen = list(asked.items())[:: max(1, len(asked) // count)][:count]
    return {
        question: [Document(text, id=str(n)) for n, text in enumerate(texts)] for question, texts in chosen
    }


def first_text(model: ChatGroundspeed, rows: dict[str, list[Document]], rounds: int) -> None:
    # LangChain reads a chain that is left to its end, so there should not be much of it.
    model = model.model_copy(update={"max_tokens": 4})
    rows = {
        question: [one.model_copy(update={"page_content": one.page_content[:300]}) for one in documents]
        for question, documents in rows.items()
    }
    chain = {"context": Known(answers=rows), "input": RunnablePassthrough()} | create_grounded_chain(
        model, ChatPromptTemplate.from_template(PROMPT)
    )
    engine = model.engine

    def waited(pieces: Iterator[Any]) -> float:
        engine.forget_prefixes()
        begun = time.perf_counter()
        next(piece for piece in pieces if piece)
        seconds = time.perf_counter() - begun
        pieces.close()  # type: ignore[attr-defined]
        return 1000 * seconds

    def alone(request: GenerationRequest) -> Iterator[str]:
        with engine.stream(request) as events:
            yield from (event.text for event in events if isinstance(event, StepEvent))

    bare: list[float] = []
    late: list[float] = []
    for question, documents in [*list(rows.items())[:1], *rows.items()]:
        context = "\n\n".join(document.page_content for document in documents)
        message = HumanMessage(PROMPT.format(context=context, input=question))
        ids = TurnPrompt(engine.tokenizer).ids(turns([message]))
        request = GenerationRequest(ids, to_passages(documents), max_tokens=model.max_tokens or 0)
        pairs = [(waited(alone(request)), waited(chain.stream(question))) for _ in range(rounds)]
        bare.append(statistics.median(one for one, _ in pairs))
        late.append(statistics.median(two - one for one, two in pairs))
    del bare[0], late[0]  # the first question's are of a warm-up
    print(
        f"{len(late)} questions, medians of {rounds} rounds: the engine's first text comes after "
        f"{statistics.median(bare):.1f} ms; the chain's is later by {statistics.median(late):.1f} ms "
        f"(median), {max(late):.1f} ms at most"
    )


def documents(model: ChatGroundspeed, rows: dict[str, list[Document]]) -> None:
    compare(model, "left out of the prompt", {question: question for question in rows}, rows)
    texts = [document.page_content for found in rows.values() for document in found]
    said = model.batch([SUMMARY.format(text=text) for text in texts])
    summary = dict(zip(texts, (str(message.content) for message in said), strict=True))
    prompts = {
        question: PROMPT.format(
            context="\n\n".join(summary[one.page_content] for one in found), input=question
        )
        for question, found in rows.items()
    }
    compare(model, "summarised in the prompt", prompts, rows)


def compare(
    model: ChatGroundspeed, what: str, prompts: dict[str, str], rows: dict[str, list[Document]]
) -> None:
    steps, tokens, same, more = [0, 0], [0, 0], 0, 0
    for number, (question, prompt) in enumerate(prompts.items()):
        calls: list[dict[str, Any]] = [{}, {"draft_documents": rows[question]}]
        # In turn which one comes first, as an engine learns from what it has drafted.
        order = (0, 1) if number % 2 else (1, 0)
        found = {way: model.invoke(prompt, **calls[way]) for way in order}
        answers = [found[0], found[1]]
        same += answers[0].content == answers[1].content
        facts = [answer.response_metadata["speculative_decoding"] for answer in answers]
        more += facts[1]["steps"] < facts[0]["steps"]
        for way, one in enumerate(facts):
            steps[way] += one["steps"]
            tokens[way] += one["accepted"] + one["steps"]
    without, with_them = (tokens[way] / steps[way] for way in (0, 1))
    print(
        f"{len(prompts)} questions, passages {what}: {without:.3f} tokens per step without documents, "
        f"{with_them:.3f} with them; fewer steps in {more}, the same answer in {same}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["first-text", "documents"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    model = ChatGroundspeed(max_tokens=arguments.tokens, dtype=arguments.dtype)
    rows = read(arguments.file, arguments.questions)
    if arguments.what == "first-text":
        first_text(model, rows, arguments.rounds)
    else:
        documents(model, rows)


if __name__ == "__main__":
    main()
