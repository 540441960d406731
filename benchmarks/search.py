"""Recall of dense, sparse and hybrid retrieval, and the time to index a corpus, by stage.

    python benchmarks/search.py recall [--size 1000 --overlap 120]
    python benchmarks/search.py index [--documents 703]

Reads the project's shared data (the folder ``GROUNDSPEED_SHARED``, or ``../shared`` beside the checkout).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from groundspeed.datastores.documents import Chunking
from groundspeed.retrieval import IndexReport, Retriever, index_corpus
from groundspeed.retrieval.chunking import DEFAULT_CHUNKING
from groundspeed.retrieval.retriever import Mode

SHARED = Path(os.environ.get("GROUNDSPEED_SHARED", Path(__file__).resolve().parents[2] / "shared"))
K = 5


def recall(retriever: Retriever, questions: list[dict[str, Any]], mode: Mode) -> tuple[float, float]:
    """Search for every question and compare the first five distinct documents with the gold ones.

    Returns:
        The share of questions with any gold document among the five, and the mean share of gold documents
        found.
    """
    hits = found = 0.0
    for question in questions:
        passages = retriever.search(question["question"], k=10 * K, mode=mode)
        top = list(dict.fromkeys(passage.document_id for passage in passages))[:K]
        share = len(set(question["gold"]) & set(top)) / len(question["gold"])
        hits += share > 0
        found += share
    return hits / len(questions), found / len(questions)


def recall_by_mode(
    questions: list[dict[str, Any]], corpus: Path, chunking: Chunking, embedder: str | None
) -> dict[str, Any]:
    """Index a corpus and search it in every mode."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        report = index_corpus([corpus], store, chunking=chunking, embedder=embedder)
        retriever = Retriever.open(store)
        found = {mode: recall(retriever, questions, mode) for mode in get_args(Mode)}
    return {
        "documents": report.added,
        "chunks": report.chunks,
        "questions": len(questions),
        "modes": {mode: {"hit": hit, "share_of_gold": share} for mode, (hit, share) in found.items()},
    }


def measure_recall(chunking: Chunking, embedder: str | None) -> None:
    questions = list(read_rows(SHARED / "prompts" / "claude_docs_questions.jsonl.gz"))
    corpus = SHARED / "corpora" / "claude_docs.jsonl.gz"
    found = recall_by_mode(questions, corpus, chunking, embedder)
    print("claude_docs: {documents} documents, {chunks} chunks, {questions} questions".format(**found))
    print(f"{'':8}{'any gold in the first 5':>25}{'share of gold found':>25}")
    for mode, figures in found["modes"].items():
        print(f"{mode:8}{figures['hit']:>25.1%}{figures['share_of_gold']:>25.1%}")


def measure_index(documents: int) -> None:
    """Index PEPs spread evenly over the corpus, then once more with nothing changed, then search."""
    with tempfile.TemporaryDirectory() as folder:
        rows = list(read_rows(SHARED / "corpora" / "peps.jsonl.gz"))
        sample = [rows[i * len(rows) // documents] for i in range(documents)]
        corpus, store = Path(folder) / "peps.jsonl", Path(folder) / "store"
        corpus.write_text("".join(json.dumps(row) + "\n" for row in sample))
        print(
            f"{documents} of {len(rows)} PEPs, {sum(len(row['text']) for row in sample) / 1e6:.1f} M "
            "characters"
        )
        _print_report("first", index_corpus([corpus], store))
        _print_report("again", index_corpus([corpus], store))
        begin = time.perf_counter()
        retriever = Retriever.open(store)
        print(f"open {time.perf_counter() - begin:.2f} s")
        for mode in get_args(Mode):
            retriever.search("warm up", mode=mode)
            begin = time.perf_counter()
            best = retriever.search("How are type parameters of a generic class declared?", mode=mode)[0]
            print(f"search {mode} {1000 * (time.perf_counter() - begin):.0f} ms, best {best.document_id}")


def _print_report(label: str, report: IndexReport) -> None:
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items())
    print(f"{label}: {report.chunks} chunks, {report.embedded} embedded, seconds: {stages}", flush=True)


def read_rows(path: Path) -> Iterable[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for_recall = commands.add_parser("recall")
    for_recall.add_argument("--size", type=int, default=DEFAULT_CHUNKING.size)
    for_recall.add_argument("--overlap", type=int, default=DEFAULT_CHUNKING.overlap)
    for_recall.add_argument("--embedder")
    for_index = commands.add_parser("index")
    for_index.add_argument("--documents", type=int, default=703)
    arguments = parser.parse_args()
    if arguments.command == "recall":
        measure_recall(Chunking(arguments.size, arguments.overlap), arguments.embedder)
    else:
        measure_index(arguments.documents)


if __name__ == "__main__":
    main()
