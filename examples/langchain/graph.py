"""Retrieval and answer as a LangGraph: ``python examples/langchain/graph.py my-store "Why?"``."""

from __future__ import annotations

import sys
from typing import Any, TypedDict

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph

from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedRetriever


class State(TypedDict, total=False):
    """What the steps hand on."""

    question: str
    context: list[Document]
    answer: AIMessage


def main(store: str, question: str) -> None:
    """Answer ``question`` from the ``store``, token by token."""
    retriever = GroundspeedRetriever(store=store, k=2)
    model = ChatGroundspeed(max_tokens=80)

    def retrieve(state: State) -> dict[str, Any]:
        return {"context": retriever.invoke(state["question"])}

    def generate(state: State) -> dict[str, Any]:
        text = "\n\n".join(document.page_content for document in state["context"])
        prompt = f"Text:\n{text}\n\nQuestion: {state['question']}\nAnswer with a sentence from the text."
        return {"answer": model.invoke(prompt, draft_documents=state["context"])}

    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("generate", generate)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "generate")
    graph.add_edge("generate", END)
    for message, _ in graph.compile().stream({"question": question}, stream_mode="messages"):
        print(message.content, end="", flush=True)
    print()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
