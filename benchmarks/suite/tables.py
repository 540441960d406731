"""Tables of Markdown from results, one function a block; each gets the results of all parts by name."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from suite.figures import spread
from suite.part import DATA_SETS, Json

__all__ = ["BLOCKS", "TASKS", "Found", "Missing", "data_of", "mean_of"]

Found = Mapping[str, Json]
"""What was measured, by part."""

TASKS = {
    "rag": "recorded RAG questions",
    "summarization": "summarization (Spec-Bench)",
    "extractive": "passages, quoted",
    "abstractive": "passages, in own words",
    "no-answer": "passages without the answer",
    "chat": "chat",
    "code": "code",
    "nothing-to-copy": "writing, translation, reasoning",
}
METHODS = {
    "generate": "transformers `generate`",
    "prompt-lookup": "`generate` with prompt lookup, 10 tokens",
    "groundspeed-plain": "groundspeed without drafts",
    "groundspeed": "**groundspeed**",
}
STORES = ("datastore-10m", "datastore-20m", "datastore-200m")


class Missing(Exception):  # noqa: N818
    """A part that a block needs has no results; the message says which, or why it was left out."""


def data_of(found: Found, name: str) -> Json:
    """What a part measured."""
    result = found.get(name)
    if result is None:
        raise Missing(f"Part `{name}` has not been measured.")
    if "data" not in result:
        raise Missing(f"Part `{name}` was left out: {result['left_out']}.")
    data: Json = result["data"]
    return data


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def within(figures: Json, digits: int = 2) -> str:
    """Median with the lowest and the highest, as "2.16 (2.10-2.20)"."""
    low, high = (f"{figures[side]:,.{digits}f}" for side in ("low", "high"))
    return f"{figures['median']:,.{digits}f}" + (f" ({low}-{high})" if low != high else "")


def machine(found: Found, *names: str) -> str:
    """The machine that parts were measured on, and of which code."""
    where = next((found[name]["provenance"] for name in names if "data" in found.get(name, {})), None)
    if where is None:
        raise Missing(f"Part `{names[0]}` has not been measured.")
    facts = where["machine"]
    commit = (where["commit"] or "no commit")[:7] + (", changed" if where["dirty"] else "")
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']:.0f} GiB, {where['threads']} "
        "threads; "
        f"torch {where['versions']['torch']}, transformers {where['versions']['transformers']}; "
        f"commit {commit}, {where['date'][:10]}"
    )


def summary(found: Found) -> str:
    """What a reader of the README is told."""
    rag = data_of(found, "speed-rag")
    rows = []
    for method, shown in METHODS.items():
        figures = rag["methods"][method]
        cells = [shown, within(spread(figures["seconds"]), 1), f"{figures['tokens']:,}"]
        if method == "groundspeed":
            rows.append([*cells, ""])
        else:
            rows.append([*cells, f"{within(_against(rag, method))} times as fast"])
    each = rag["prompt_tokens"] / rag["prompts"]
    text = (
        f"{rag['prompts']} recorded RAG questions with their passages, {each:,.0f} tokens each on average, "
        f"answers of at most {rag['max_tokens']} tokens, one at a time, the reading of the prompt included; "
        f"{rag['model']} in {rag['dtype']}; {rag['rounds']} rounds in turn, medians with the lowest "
        "and the highest. "
        f"{machine(found, 'speed-rag')}.\n\n"
        + table(["", "seconds", "tokens", "groundspeed, per token"], rows)
        + "\n\nBy kind of task, how many times as fast groundspeed is as each, per token:\n\n"
        + tasks(found)
    )
    return text + "\n\n" + losses_in_short(found)


def _against(data: Json, peer: str) -> Json:
    return next(one for one in data["comparisons"] if one["peer"] == peer)


def tasks(found: Found) -> str:
    rows = []
    for task, shown in TASKS.items():
        if "data" in found.get(f"speed-{task}", {}):
            data = data_of(found, f"speed-{task}")
            against = [within(_against(data, peer)) for peer in METHODS if peer != "groundspeed"]
            rows.append([shown, *against, f"{data['tokens_per_step']:.2f}"])
    return table(["", "`generate`", "its prompt lookup", "without drafts", "tokens per step"], rows)


def speed(found: Found) -> str:
    """Everything about whole answers."""
    rows = []
    for task, shown in TASKS.items():
        if "data" not in found.get(f"speed-{task}", {}):
            continue
        data = data_of(found, f"speed-{task}")
        for method, figures in data["methods"].items():
            rows.append(
                [
                    shown if method == "generate" else "",
                    METHODS[method],
                    within(spread(figures["seconds"]), 1),
                    f"{figures['tokens']:,}",
                    f"{figures['identical_to_generate']} of {data['prompts']}",
                ]
            )
    return tasks(found) + "\n\n" + table(["task", "method", "seconds", "tokens", "as `generate`"], rows)


def acceptance(found: Found) -> str:
    """Steps by the tokens that they committed."""
    data = {t: data_of(found, f"speed-{t}") for t in TASKS if "data" in found.get(f"speed-{t}", {})}
    if not data:
        raise Missing("Part `speed-rag` has not been measured.")
    rows = []
    for task, one in data.items():
        steps = {int(tokens): count for tokens, count in one["steps_by_tokens"].items()}
        whole = sum(steps.values()) or 1
        bins = [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, max(17, *steps, 17))]
        shares = [sum(n for t, n in steps.items() if low <= t <= high) / whole for low, high in bins]
        rows.append([TASKS[task], *(f"{share:.0%}" for share in shares), f"{max(steps, default=0)}"])
    head = ["tokens in a step", "1", "2", "3-4", "5-8", "9-16", "17 and more", "most"]
    return table(head, rows)


def replay(found: Found, part: str = "replay") -> str:
    """Tokens per step of all drafters, averaged over the sets, by budget."""
    data = data_of(found, part)
    names = list(dict.fromkeys(row["drafter"] for row in data["rows"]))
    budgets = sorted({row["budget"] for row in data["rows"]})
    rows = [[f"`{name}`", *(f"{mean_of(data, name, budget):.2f}" for budget in budgets)] for name in names]
    absent = "".join(
        f"\n\n`{name}` is not there: {package} was not installed." for name, package in data["absent"].items()
    )
    return table(["tokens per step, by budget", *map(str, budgets)], rows) + absent


def mean_of(data: Json, drafter: str, budget: int) -> float:
    found = [r["tokens_per_step"] for r in data["rows"] if (r["drafter"], r["budget"]) == (drafter, budget)]
    return statistics.fmean(found)


def replay_history(found: Found) -> str:
    return replay(found, "replay-history")


def replay_sets(found: Found) -> str:
    """By data set, at the middle budget."""
    data = data_of(found, "replay")
    names = list(dict.fromkeys(row["drafter"] for row in data["rows"]))
    figures = {(r["dataset"], r["drafter"]): r for r in data["rows"] if r["budget"] == 32}
    sets = [name for name in DATA_SETS if (name, "blend") in figures]
    rows = [
        ["rows", *(f"{figures[s, 'blend']['rows']}" for s in sets)],
        *([f"`{n}`", *(f"{figures[s, n]['tokens_per_step']:.2f}" for s in sets)] for n in names),
    ]
    return table(["tokens per step, budget 32", *(f"`{s}`" for s in sets)], rows)


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
        "resident after opening, MB": lambda s: f"{s[opened]['added_mb']:.0f} more",
        "context to 64 draft nodes, warm, us: p50 / p95": lambda s: two(s[query]),
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
            figures = [f"{row['us_p50']:,.1f} / {row['us_p95']:,.1f} us", ""]
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


def picture(name: str, shows: str, *parts: str) -> Callable[[Found], str]:
    """The line that shows a picture, where there is one."""

    def block(found: Found) -> str:
        for part in parts:
            data_of(found, part)
        return f"![{shows}](benchmarks/{name}.svg)"

    return block


def throughput(found: Found) -> str:
    data = data_of(found, "throughput")
    rows = [
        [
            f"{row['active']}",
            within(row["plain"], 1),
            within(row["drafts"], 1),
            within(compared),
            f"{row['same']} of {data['requests']}",
        ]
        for row, compared in zip(data["rows"], data["comparisons"], strict=True)
    ]
    head = (
        f"{data['requests']} requests of Spec-Bench, {data['tokens']} tokens of answer each, tokens a second "
        f"of all together with the reading of the prompts; {data['dtype']}, {data['rounds']} rounds "
        "in turn.\n\n"
    )
    return head + table(["at once", "plain", "with drafts", "times as fast", "same answers"], rows)


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


def drafters(found: Found) -> str:
    data = data_of(found, "drafters")
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


def llama_cpp(found: Found) -> str:
    data = data_of(found, "llama-cpp")
    compared = {one["peer"]: within(one) for one in data["comparisons"]}
    rows = [[n, within(rate, 1), compared.get(n, "")] for n, rate in data["tokens_per_second"].items()]
    version = found["llama-cpp"]["provenance"]["versions"]["llama-cpp-python"]
    head = (
        f"{data['prompts']} recorded RAG questions, {data['max_tokens']} tokens each, "
        f"{data['rounds']} rounds in turn, llama-cpp-python {version}; tokens a second with the reading "
        "of the prompts.\n\n"
    )
    return head + table(["", "tokens a second", "groundspeed is times as fast"], rows)


def vllm(found: Found) -> str:
    data = data_of(found, "vllm")
    compared = {one["peer"]: within(one) for one in data["comparisons"]}
    rows = [
        [
            name,
            within(spread(one["seconds"]), 1),
            f"{one['tokens']:,}",
            compared.get(name, ""),
        ]
        for name, one in data["methods"].items()
    ]
    head = ["method", "seconds", "tokens", "ours is times as fast, per token"]
    return (f"{data['setting']}\n\n" if "setting" in data else "") + table(head, rows)


def losses(found: Found) -> str:
    """Every comparison in which a peer was better."""
    rows = [
        [one["what"], one["peer"], one["unit"], within(one), "yes" if one["high"] < 1 else "not in all"]
        for one in _lost(found)
    ]
    if not rows:
        return "In none of the comparisons above."
    return table(["what", "better", "in", "we reach", "in every round"], rows)


def losses_in_short(found: Found) -> str:
    count, lost = sum(len(_compared(r)) for r in found.values()), len(_lost(found))
    return (
        f"Of all {count} comparisons we lose {lost}; each is listed under "
        "[where we lose](docs/benchmarks.md#where-we-lose)."
    )


def _compared(result: Json) -> list[Json]:
    part = result["part"].removeprefix("speed-")
    return [
        {**one, "what": f"{TASKS[part]}: {one['what']}"} if part in TASKS else one
        for one in result.get("data", {}).get("comparisons", ())
    ]


def _lost(found: Found) -> list[Json]:
    return sorted(
        (one for result in found.values() for one in _compared(result) if one["median"] < 1),
        key=lambda one: one["median"],
    )


def runs(found: Found) -> str:
    """Which part was measured when, on what."""
    rows = []
    for name, result in found.items():
        if "data" in result:
            where = result["provenance"]
            commit = (where["commit"] or "none")[:7] + (", changed" if where["dirty"] else "")
            inputs = ", ".join(f"{one['file']} ({one['rows']:,})" for one in where["inputs"])
            rows.append([f"`{name}`", commit, where["date"], f"{where['seconds']:.0f}", inputs])
        else:
            rows.append([f"`{name}`", "", "", "", f"left out: {result['left_out']}"])
    first = next((result["provenance"] for result in found.values() if "data" in result), None)
    if first is None:
        raise Missing("Nothing has been measured.")
    packages = ", ".join(f"{name} {version}" for name, version in first["versions"].items() if version)
    facts = first["machine"]
    head = (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB of memory, "
        f"{facts['system']}, Python {facts['python']}; {packages}.\n\n"
    )
    return head + table(["part", "commit", "began", "seconds", "inputs (rows)"], rows)


BLOCKS: dict[str, Callable[[Found], str]] = {
    "summary": summary,
    "speed": speed,
    "acceptance": acceptance,
    "replay": replay,
    "replay-history": replay_history,
    "replay-sets": replay_sets,
    "datastore": datastore,
    "datastore-peers": datastore_peers,
    "retrieval": retrieval,
    "throughput": throughput,
    "contexts": contexts,
    "drafters": drafters,
    "serving": serving,
    "idle": idle,
    "llama-cpp": llama_cpp,
    "vllm": vllm,
    "losses": losses,
    "runs": runs,
    "picture-speed": picture("speed", "How many times as fast groundspeed is, by task", "speed-rag"),
    "picture-acceptance": picture("acceptance", "Steps by the tokens that they committed", "speed-rag"),
    "picture-replay": picture("replay", "Tokens per step by budget", "replay", "replay-history"),
    "picture-throughput": picture("throughput", "Tokens a second by requests at once", "throughput"),
    "picture-contexts": picture("contexts", "Tokens a second by tokens of context", "contexts"),
}
"""By the name in the pages' markers."""
