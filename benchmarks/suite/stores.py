"""The token datastore at three sizes, beside its peers at one; and retrieval."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from suite.figures import comparison
from suite.part import SHARED, Json, Part, Size

__all__ = ["PARTS"]

TEXT = (SHARED / "corpora" / "peps.jsonl.gz", SHARED / "corpora" / "fastapi.jsonl.gz")
CHAPTERS = SHARED / "corpora" / "claude_docs.jsonl.gz"
QUESTIONS = SHARED / "prompts" / "claude_docs_questions.jsonl.gz"
SAME = (
    ("build", "build, in a process of its own", "build", "seconds"),
    ("size on disk", "build, in a process of its own", "build", "bytes_per_token"),
    ("context to 64 nodes", "context to 64 nodes", "context to 64 nodes", "us_p50"),
    ("longest match and continuations",) * 3 + ("us_p50",),
)
"""What is compared, our row, the peer's row, and the figure, the lower the better."""


def measure(size: Size, *, tokens: int, peers: bool) -> Json:
    """Build, open, ask and change a store."""
    import numpy as np

    from groundspeed.integrations.bench.datastore import PEERS, measure_datastore
    from groundspeed.integrations.tokenizing import tokenize
    from groundspeed.retrieval.loaders import load_documents
    from groundspeed.verify.loading import load_tokenizer

    tokenizer = load_tokenizer()
    files = TEXT[1:] if size.quick else TEXT
    base = np.concatenate([a.token_ids for a in tokenize(load_documents(files), tokenizer)])
    with tempfile.TemporaryDirectory() as folder:
        rows = list(
            measure_datastore(
                base,
                len(tokenizer),
                size.of(tokens, 200_000),
                Path(folder) / "store",
                queries=size.of(2_000, 200),
                peers=PEERS if peers else (),
            )
        )
    there = {row["system"] for row in rows}
    return {
        "base_tokens": len(base),
        "rows": rows,
        "absent": [name for name in PEERS if peers and name not in there],
        "comparisons": comparisons(rows),
    }


def comparisons(rows: list[Json]) -> list[Json]:
    """Against the peers that took part."""
    found = {(row["system"], row["what"]): row for row in rows}
    return [
        comparison(
            f"datastore of {rows[0]['tokens']:,} tokens: {what}",
            peer,
            [found[peer, theirs][figure] / found["groundspeed", ours][figure]],
            "size" if figure == "bytes_per_token" else "speed",
        )
        for peer in sorted({system for system, _ in found} - {"groundspeed"})
        for what, ours, theirs, figure in SAME
        if (peer, theirs) in found
    ]


def measure_retrieval(size: Size) -> Json:
    """Recall of dense, sparse and hybrid search."""
    from search import DEFAULT_CHUNKING, read_rows, recall_by_mode

    questions = list(read_rows(QUESTIONS))[: size.of(100, 3)]
    return recall_by_mode(questions, CHAPTERS, DEFAULT_CHUNKING, None)


def _part(millions: int, minutes: float, *, peers: bool = False) -> Part:
    name, tokens = f"datastore-{millions}m", millions * 1_000_000
    return Part(name, minutes, partial(measure, tokens=tokens, peers=peers), TEXT)


PARTS = (
    _part(10, 0.6),
    _part(20, 1.5, peers=True),
    _part(200, 1.7),
    Part("retrieval", 0.7, measure_retrieval, (CHAPTERS, QUESTIONS)),
)
