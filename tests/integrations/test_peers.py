"""Peers against their rules, done by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.prompt_lookup import PromptLookupDrafter
from groundspeed.integrations.bench.peers.draft_retriever import DraftRetriever, tree_of_paths
from groundspeed.integrations.bench.peers.rest import Rest
from groundspeed.integrations.bench.peers.suffix_decoding import BEST, VLLM, Setting, SuffixDecoding

VOCABULARY = 60_000


def ids(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def path_of(tree: DraftTree, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node >= 0:
        path.append(int(tree.token_ids[node]))
        node = int(tree.parents[node])
    return tuple(path[::-1])


def rest_by_the_rule(store: list[int], context: list[int], budget: int) -> list[tuple[int, ...]]:
    """The most frequent prefixes of what follows the longest of the context's ends, 16 to 2 tokens."""
    for length in range(min(16, len(context)), 1, -1):
        places = [i for i in range(len(store) - length + 1) if store[i : i + length] == context[-length:]]
        places = sorted(places, key=lambda place: store[place:])[:5000]
        if places:
            rows = [store[place + length :][:10] for place in places]
            counts = Counter(tuple(row[:n]) for row in rows for n in range(1, len(row) + 1))
            return sorted(counts, key=lambda prefix: (-counts[prefix], len(prefix), prefix))[:budget]
    return []


@st.composite
def texts(draw: st.DrawFn) -> list[list[int]]:
    token = st.integers(0, draw(st.sampled_from([0, 2, 300, 49_999])))
    drawn = [draw(st.lists(token, max_size=40)) for _ in range(4)]
    return [text * draw(st.sampled_from([1, 1, 3])) for text in drawn]


@settings(deadline=None)  # the first example compiles the kernels
@given(texts(), st.integers(0, 70))
def test_rest_drafts_the_most_frequent_prefixes(drawn: list[list[int]], budget: int) -> None:
    prompt, output, *history = drawn
    drafter = Rest.factory([ids(text) for text in history])()
    drafter.begin(DraftRequest(ids(prompt), (), VOCABULARY))
    drafter.extend(ids(output))
    tree = drafter.propose(budget)
    tree.validate(VOCABULARY)
    drafted = [path_of(tree, node) for node in range(len(tree))]
    assert drafted == rest_by_the_rule([*history[0], *history[1]], prompt[-16:] + output, budget)


def test_rest_reads_the_first_rows_only() -> None:
    history = ids([1, 2, 3] * 5000 + [1, 2, 4] * 5000)
    drafter = Rest.factory([history])()
    drafter.begin(DraftRequest(ids([9, 1, 2]), (), VOCABULARY))
    tree = drafter.propose(64)
    assert {path_of(tree, node)[0] for node in range(len(tree))} == {3}


def test_rest_has_nothing_but_its_datastore() -> None:
    drafter = Rest.factory([])()
    drafter.begin(DraftRequest(ids([1, 2, 3, 1, 2]), (ids([1, 2, 3]),), VOCABULARY))
    assert not len(drafter.propose(64))


@pytest.mark.parametrize(
    ("tokens", "shortest", "longest", "budget", "drafted"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, 2, 3, [4, 1, 2]),
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 1, 2, [6, 2]),
        ([1, 2, 3, 4, 1, 2, 3], 4, 4, 2, []),
        ([2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4], 3, 4, 2, [1, 2]),
        ([3, 4, 5, 2, 3, 4, 1, 2, 3, 4], 2, 4, 2, [1, 2]),
        ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, 3, 2, [100, 1]),
    ],
)
def test_prompt_lookup_with_a_shortest_ngram_drafts_what_vllm_drafts(
    tokens: list[int], shortest: int, longest: int, budget: int, drafted: list[int]
) -> None:
    drafter = PromptLookupDrafter(max_ngram=longest, min_ngram=shortest)
    drafter.begin(DraftRequest(ids(tokens), (), VOCABULARY))
    assert drafter.propose(budget).token_ids.tolist() == drafted


def test_padded_paths_become_a_trie_cut_level_by_level() -> None:
    paths = [[5, 6, -2], [5, 7, 8], [4, -2, -2]]
    tree = tree_of_paths(paths, 64)
    tree.validate(VOCABULARY)
    assert {path_of(tree, node) for node in range(len(tree))} == {(4,), (5,), (5, 6), (5, 7), (5, 7, 8)}
    assert [path_of(tree, node) for node in range(len(tree_of_paths(paths, 3)))] == [(4,), (5,), (5, 6)]
    assert not len(tree_of_paths([], 64))


@pytest.mark.parametrize("setting", [BEST, VLLM])
@pytest.mark.parametrize("answers", [[], [[9, 1, 2, 5, 6, 7]]])
def test_suffix_decoding_drafts_from_prompt_and_earlier_answers(
    setting: Setting, answers: list[list[int]]
) -> None:
    pytest.importorskip("arctic_inference", reason="benchmarks/peers.md says how to install arctic-inference")
    make = SuffixDecoding.factory(setting, [ids(answer) for answer in answers])
    for _ in range(2):  # the second request finds nothing of the first one's output
        drafter = make()
        drafter.begin(DraftRequest(ids([3, 4, 3]), (), VOCABULARY))
        tree = drafter.propose(16)
        tree.validate(VOCABULARY)
        assert tree.token_ids[0] == 4
        drafter.extend(ids([30, 9, 1, 2]))
        tree = drafter.propose(16)
        tree.validate(VOCABULARY)
        assert tree.token_ids.tolist()[:3] == [5, 6, 7][: 3 * len(answers)]
        drafter.extend(ids([40, 41, 42]))
        drafter.end()
        other = make()
        other.begin(DraftRequest(ids([8, 40]), (), VOCABULARY))
        assert not len(other.propose(16))
        other.end()


def test_draftretriever_drafts_from_earlier_answers_and_is_not_asked_what_it_aborts_on() -> None:
    pytest.importorskip("draftretriever", reason="benchmarks/peers.md says how to install draftretriever")
    make = DraftRetriever.factory([ids([1, 2, 3, 4, 5])] * 3)
    drafter = make()
    drafter.begin(DraftRequest(ids([2]), (), VOCABULARY))
    assert not len(drafter.propose(16))
    drafter.extend(ids([3]))
    for budget in (1, 2, 16, 200):
        tree = drafter.propose(budget)
        tree.validate(VOCABULARY)
        assert path_of(tree, 0) == (4,)
        assert len(tree) <= budget
    drafter.end()
