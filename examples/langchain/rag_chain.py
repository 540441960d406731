"""Answer a question in one chain: ``python examples/langchain/rag_chain.py my-store "Why?"``."""

from __future__ import annotations

import sys

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedRetriever, create_grounded_chain

PROMPT = ChatPromptTemplate.from_template(
    "Text:\n{context}\n\nQuestion: {input}\nAnswer with a sentence from the text."
)


def main(store: str, question: str) -> None:
    """Answer ``question`` from the ``store``."""
    retriever = GroundspeedRetriever(store=store, k=2)
    answering = create_grounded_chain(ChatGroundspeed(max_tokens=80), PROMPT)
    chain = {"context": retriever, "input": RunnablePassthrough()} | answering
    for piece in chain.stream(question):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
