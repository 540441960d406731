"""An agent that searches a store: ``python examples/langchain/agent.py my-store "Why?" [MODEL]``.

Give it a model that calls tools by itself, such as Qwen2.5-1.5B-Instruct; the embedded one is too small for
that. What the tool returns as its artifact is drafted from, though the agent reads a shortened text.
"""

from __future__ import annotations

import sys

from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.tools import tool

from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedRetriever


def main(store: str, question: str, *models: str) -> None:
    """Let an agent answer ``question`` from the ``store``."""
    retriever = GroundspeedRetriever(store=store, k=2)

    @tool(response_format="content_and_artifact")
    def search(query: str) -> tuple[str, list[Document]]:
        """Search the documents."""
        found = retriever.invoke(query)
        return "\n\n".join(document.page_content[:400] for document in found), found

    model = ChatGroundspeed(max_tokens=120, **({"model": models[0]} if models else {}))
    agent = create_agent(model, [search], system_prompt="Search before you answer.")
    for message in agent.invoke({"messages": [("human", question)]})["messages"]:
        message.pretty_print()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
