"""Tables of answers and of replays, one function a block; each gets the results of all parts by name."""

from __future__ import annotations

import statistics

from suite.figures import spread
from suite.pages.cells import Found, Missing, data_of, machine, table, within
from suite.part import DATA_SETS, Json

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


def llama_cpp(found: Found) -> str:
    data = data_of(found, "llama-cpp")
    compared = {one["peer"]: within(one) for one in data["comparisons"]}
    rows = [[n, within(rate, 1), compared.get(n, "")] for n, rate in data["tokens_per_second"].items()]
    version = found["llama-cpp"]["provenance"]["versions"]["llama-cpp-python"]
    head = (
        f"{data['prompts']} recorded RAG questions, {data['max_tokens']} tokens each, "
        f"{data['rounds']} rounds, groundspeed first, llama-cpp-python {version}; tokens a second with the "
        "reading of the prompts.\n\n"
    )
    return head + table(["", "tokens a second", "groundspeed is times as fast"], rows)


def vllm(found: Found) -> str:
    data = data_of(found, "vllm")
    names = {"none": "vLLM, plain", "ngram": "vLLM, n-gram", "suffix": "vLLM, suffix decoding"}
    settings = data["settings"]
    rows = [
        [
            names.get(name, f"vLLM with {name}"),
            f"{one['tokens_per_step']:.2f}",
            f"{one['tokens_per_second']:.1f}",
            f"{one['same_answers']} of {settings['requests']}",
        ]
        for name, one in data["ways"].items()
    ]
    head = (
        f"vLLM {settings['version']}, {settings['requests']} requests of Spec-Bench, at most "
        f"{settings['batch']} at once, {settings['tokens']} tokens each, at most {settings['drafts']} draft "
        "tokens, float32, one run each.\n\n"
    )
    columns = ["", "tokens per step", "tokens a second while writing", "same answers"]
    return head + table(columns, rows)


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
        f"{facts['system']}, Python {facts['python']}; {first['threads']} threads; {packages}.\n\n"
    )
    return head + table(["part", "commit", "began", "seconds", "inputs (rows)"], rows)
