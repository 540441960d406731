"""Talk about a store: ``python examples/langchain/conversation.py my-store "Why?" "And how?"``."""

from __future__ import annotations

import sys

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedRetriever, create_grounded_chain

PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from this text only:\n{context}"),
        MessagesPlaceholder("history"),
        ("human", "{input}"),
    ]
)


def main(store: str, *questions: str) -> None:
    """Ask the questions one after the other; earlier turns are read from the cache."""
    retriever = GroundspeedRetriever(store=store, k=1)
    chain = create_grounded_chain(ChatGroundspeed(max_tokens=60), PROMPT)
    history: list[BaseMessage] = []
    for question in questions:
        answer = chain.invoke({"context": retriever.invoke(question), "history": history, "input": question})
        print(f"> {question}\n{answer}\n")
        history += [HumanMessage(question), AIMessage(answer)]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
