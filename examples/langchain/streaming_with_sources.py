"""Stream with sources: ``python examples/langchain/streaming_with_sources.py my-store "Why?"``."""

from __future__ import annotations

import sys

from langchain_core.messages import AIMessageChunk

from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedRetriever


def main(store: str, question: str) -> None:
    """Answer ``question`` from the ``store`` with citations."""
    documents = GroundspeedRetriever(store=store, k=2).invoke(question)
    text = "\n\n".join(document.page_content for document in documents)
    prompt = f"Text:\n{text}\n\nQuestion: {question}\nAnswer with a sentence from the text."
    model = ChatGroundspeed(max_tokens=80, output_version="v1")
    answer: AIMessageChunk | None = None
    for chunk in model.stream(prompt, draft_documents=documents):
        print(chunk.text, end="", flush=True)
        answer = chunk if answer is None else answer + chunk
    print()
    for block in answer.content_blocks if answer else []:
        for citation in block.get("annotations", []):
            place = citation["extras"]
            print(
                f"  {place['document_id']}, {place['document_start']} to {place['document_end']}: "
                f"{citation['cited_text']!r}"
            )
    speed = answer.response_metadata["speculative_decoding"] if answer else {}
    print(f"{speed['tokens_per_step']:.2f} tokens per step, from {speed['accepted_by_source']}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
