"""Ask a folder a question, with the sources: ``python examples/ask_a_folder.py docs "Why?"``."""

from __future__ import annotations

import sys
import tempfile

from groundspeed import Engine, RagPipeline, Retriever, index_corpus


def main(folder: str, question: str) -> None:
    """Answer ``question`` from the files in ``folder``."""
    with tempfile.TemporaryDirectory() as store:
        index_corpus([folder], store)
        answer = RagPipeline(Engine.from_pretrained(), Retriever.open(store)).ask(question, k=1)
    print(answer.text)
    for span in answer.result.grounding:
        print(f"  {span.document_id}, {span.document_start} to {span.document_end}: {span.text!r}")
    stats = answer.result.stats
    print(f"{stats.tokens_per_step:.2f} tokens per step, {stats.tokens_per_second:.0f} tokens/s")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
