"""Tables of stores, retrieval, the engine and the server, one function a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suite.pages.cells import Found, data_of, table, within
from suite.part import Json

STORES = ("datastore-10m", "datastore-20m", "datastore-200m")


def datastore(found: Found) -> str:
    """Our store by size."""
    data = [data_of(found, name) for name in STORES]
    stores = [{row["what"]: row for row in one["rows"] if row["system"] == "groundspeed"} for one in data]
    sizes = [f"{one['rows'][0]['tokens'] / 1e6:g}M" for one in data]
    build, opened = "build, in a process of its own", "open, in a process of its own"
    query, append = "context to 64 nodes", "append 1,000 tokens until a snapshot has them"

    def two(row: Json, by: float = 1, digits: int = 1) -> str:
        return " / ".join(f"{row[name] / by:,.{digits}f}" for name in ("us_p50", "us_p95"))

    lines: dict[str, Callable[[dict[str, Any]], str]] = {
        "build, s (loading libraries and kernels not counted)": lambda s: f"{s[build]['seconds']:.1f}",
        "bytes a token": lambda s: f"{s[build]['bytes_per_token']:.2f}",
        "open, ms": lambda s: f"{s[opened]['seconds'] * 1e3:.1f}",
        "resident after opening, MB": lambda s: f"{s[opened]['resident_mb']:.0f}",
        "context to 64 draft nodes, warm, us: p50 / p95": lambda s: two(s[query]),
        "tokens of the draft that really followed": lambda s: f"{s[query]['accepted']:.1f}",
        "the same, pages dropped, us: p50 / p95": lambda s: two(s[query + ", cold"], digits=0),
        "append 1,000 tokens until a snapshot has them, ms: p50 / p95": lambda s: two(s[append], 1e3),
        "the same, durable": lambda s: two(s[append + ", durable"], 1e3),
    }
    return table(["tokens", *sizes], [[what, *map(show, stores)] for what, show in lines.items()])


def datastore_peers(found: Found) -> str:
    """Beside its peers, one size, same run."""
    data = data_of(found, "datastore-20m")
    rows = []
    for row in data["rows"]:
        if "us_p50" in row and ("cold" in row["what"] or "append" in row["what"]):
            continue
        if row["what"].startswith("open"):
            continue
        if "seconds" in row:
            figures = [f"{row['seconds']:.1f} s", f"{row['bytes_per_token']:.2f} bytes a token"]
        else:
            right = f"{row['accepted']:.1f} tokens right" if "accepted" in row else ""
            figures = [f"{row['us_p50']:,.1f} / {row['us_p95']:,.1f} us", right]
        rows.append([row["system"], row["what"], *figures])
    absent = "".join(f"\n\n{name} is not there: it was not installed." for name in data["absent"])
    return table(["", "call", "p50 / p95, or whole", ""], rows) + absent


def retrieval(found: Found) -> str:
    data = data_of(found, "retrieval")
    names = {"dense": "dense (MiniLM)", "sparse": "sparse (BM25)", "hybrid": "hybrid"}
    rows = [
        [names[mode], f"{one['hit']:.1%}", f"{one['share_of_gold']:.1%}"]
        for mode, one in data["modes"].items()
    ]
    head = f"{data['questions']} questions over {data['documents']} chapters in {data['chunks']} chunks.\n\n"
    return head + table(["", "hit", "share of gold found"], rows)


def throughput(found: Found) -> str:
    data = data_of(found, "throughput")
    compared = iter(data["comparisons"])
    rows = [
        [
            f"{row['active']}",
            *(
                cell
                for kind in ("whole", "written")
                for cell in (
                    within(row[kind]["plain"], 1),
                    within(row[kind]["drafts"], 1),
                    within(next(compared)),
                    f"{row[kind]['same']} of {data['requests']}",
                )
            ),
        ]
        for row in data["rows"]
    ]
    head = (
        f"{data['requests']} requests of Spec-Bench, {data['tokens']} tokens of answer each, tokens a second "
        "of all together: of whole requests, and of requests whose prompts were read before, so that they "
        f"are only written; {data['dtype']}, {data['rounds']} rounds in turn.\n\n"
    )
    columns = ["plain", "with drafts", "times as fast", "same answers"]
    return head + table(["at once", *columns, *(f"read before: {column}" for column in columns)], rows)


def contexts(found: Found) -> str:
    data = data_of(found, "contexts")
    rows = [
        [
            f"{row['context']:,}" + (" *" if row["beyond_training"] else ""),
            f"{row['read_seconds']:.1f}",
            within(row["plain"], 1),
            within(row["drafts"], 1),
            within(compared),
        ]
        for row, compared in zip(data["rows"], data["comparisons"], strict=True)
    ]
    head = (
        f"{data['tokens']} tokens written behind a text that was read before, tokens a second; "
        f"{data['dtype']}, {data['rounds']} rounds in turn. \\* The model was trained for "
        f"{data['trained']:,} positions: beyond them the times are right and the text is not.\n\n"
    )
    columns = ["tokens of context", "reading them, s", "plain", "with drafts", "times as fast"]
    return head + table(columns, rows)


def drafters(found: Found, part: str = "drafters") -> str:
    data = data_of(found, part)
    sets = data["sets"]
    rows = [
        [
            "plain" if name == "none" else name,
            *(
                cell
                for one in sets.values()
                for cell in (f"{one[name]['tokens_per_step']:.2f}", within(one[name]["times_as_fast"]))
            ),
        ]
        for name in next(iter(sets.values()))
    ]
    head = [cell for name in sets for cell in (f"tokens per step, {name}", "times as fast")]
    return f"{data['tokens']} tokens each, {data['dtype']}, {data['rounds']} rounds in turn.\n\n" + table(
        ["drafter", *head], rows
    )


def drafters_trained(found: Found) -> str:
    return drafters(found, "drafters-trained")


def serving(found: Found) -> str:
    data = data_of(found, "serving")
    first, rates = data["first_seconds"], data["tokens_per_second"]
    rows = [
        [
            "time to the first token, one at a time, ms",
            *(f"{first[way]['median'] * 1e3:.1f}" for way in ("engine", "http")),
        ],
        ["tokens a second, eight at once, streamed", *(within(rates[way], 1) for way in ("engine", "http"))],
    ]
    return table(["", "the engine itself", "through HTTP"], rows)


def idle(found: Found) -> str:
    data = data_of(found, "idle")
    share = data["share"]
    return (
        f"One request with an idle queue takes {share['median']:.3f} of the time that the same passes take "
        f"driven by hand (quartiles {share['low']:.3f} to {share['high']:.3f}, {data['times']} pairs)."
    )
