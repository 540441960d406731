"""Answer several questions side by side: ``python examples/langchain/batch.py my-store "Why?" "How?"``."""

from __future__ import annotations

import sys

from langchain_core.prompts import ChatPromptTemplate

from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedRetriever, create_grounded_chain

PROMPT = ChatPromptTemplate.from_template(
    "Text:\n{context}\n\nQuestion: {input}\nAnswer with a sentence from the text."
)


def main(store: str, *questions: str) -> None:
    """Answer all the questions; each one's documents serve its own answer."""
    retriever = GroundspeedRetriever(store=store, k=2)
    chain = create_grounded_chain(ChatGroundspeed(max_tokens=60), PROMPT)
    inputs = [{"input": question, "context": retriever.invoke(question)} for question in questions]
    for question, answer in zip(questions, chain.batch(inputs), strict=True):
        print(f"> {question}\n{answer}\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
