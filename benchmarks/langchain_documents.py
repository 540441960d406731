"""What documents that the prompt does not show are worth, and what LangChain takes of the time.

    python benchmarks/langchain_documents.py ../shared/traces/northwind.jsonl.gz

A chain and the engine by itself stream the same prompt in turns, and the time to the first text is compared.
Then each question is answered twice, with ``draft_documents`` and without: from a prompt that shows the
beginning of each passage, and from one that shows none.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate

from groundspeed.integrations.langchain import ChatGroundspeed, create_grounded_chain
from groundspeed.integrations.langchain.documents import to_passages
from groundspeed.integrations.langchain.messages import ChatPrompt
from groundspeed.types import GenerationRequest, StepEvent

PROMPT = "Text:\n{context}\n\nQuestion: {input}\nAnswer with sentences from the text."


def read(file: Path, count: int) -> list[dict[str, Any]]:
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        rows = [row for row in map(json.loads, lines) if row.get("passages") and not row.get("history")]
    return rows[:: max(1, len(rows) // count)][:count]


def compare(model: ChatGroundspeed, rows: list[dict[str, Any]], shown: int) -> None:
    steps, tokens, same = [0, 0], [0, 0], 0
    for row in rows:
        texts = "\n\n".join(passage[:shown] for passage in row["passages"])
        prompt = PROMPT.format(context=texts, input=row["question"]) if shown else row["question"]
        documents = [Document(text, id=str(n)) for n, text in enumerate(row["passages"])]
        answers = [model.invoke(prompt), model.invoke(prompt, draft_documents=documents)]
        same += answers[0].content == answers[1].content
        for way, answer in enumerate(answers):
            facts = answer.response_metadata["speculative_decoding"]
            steps[way] += facts["steps"]
            tokens[way] += facts["accepted"] + facts["steps"]
    without, with_them = (tokens[way] / steps[way] for way in (0, 1))
    print(
        f"{len(rows)} questions, {shown} characters of each passage in the prompt: "
        f"{without:.2f} tokens per step without documents, {with_them:.2f} with, {same} answers the same"
    )


def first_text(model: ChatGroundspeed, rows: list[dict[str, Any]], shown: int) -> None:
    chain = create_grounded_chain(model, ChatPromptTemplate.from_template(PROMPT))
    engine = model.engine
    waits: tuple[list[float], list[float]] = ([], [])
    for row in [rows[0], *rows]:
        documents = [Document(text[:shown], id=str(n)) for n, text in enumerate(row["passages"])]
        context = "\n\n".join(document.page_content for document in documents)
        messages = [HumanMessage(PROMPT.format(context=context, input=row["question"]))]
        ids = ChatPrompt(engine.tokenizer).token_ids(messages)
        request = GenerationRequest(ids, to_passages(documents), max_tokens=8)

        engine.forget_prefixes()
        begin = time.perf_counter()
        with engine.stream(request) as events:
            next(event for event in events if isinstance(event, StepEvent) and event.text)
            waits[0].append(time.perf_counter() - begin)

        engine.forget_prefixes()
        begin = time.perf_counter()
        pieces = chain.stream({"context": documents, "input": row["question"]})
        next(piece for piece in pieces if piece)
        waits[1].append(time.perf_counter() - begin)
        pieces.close()  # type: ignore[attr-defined]
    differences = [1000 * (b - a) for a, b in zip(*(wait[1:] for wait in waits), strict=True)]
    print(
        f"first text: engine {1000 * statistics.median(waits[0][1:]):.1f} ms, chain "
        f"{1000 * statistics.median(waits[1][1:]):.1f} ms; the chain is later by "
        f"{statistics.median(differences):.1f} ms (median), {max(differences):.1f} ms at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--shown", type=int, default=300)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    model = ChatGroundspeed(max_tokens=arguments.tokens, dtype=arguments.dtype)
    rows = read(arguments.file, arguments.questions)
    first_text(model, rows, arguments.shown)
    compare(model, rows, arguments.shown)
    compare(model, rows, 0)


if __name__ == "__main__":
    main()
