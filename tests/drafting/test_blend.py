"""The blend: valid, calibrated in form, and it finds what there is to find."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.snapshot import Snapshot
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.drafting.base import DraftRequest, DraftTree, RunnerUps
from groundspeed.drafting.blend import Blend, BlendDrafter
from groundspeed.drafting.calibration import Calibration
from groundspeed.drafting.features import WEIGHTS
from groundspeed.drafting.recycled import RecycledTokens
from groundspeed.drafting.tree import leading_chain
from groundspeed.errors import DraftError
from groundspeed.types import Source

VOCABULARY = 50_000


def ids(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


PAIRS = (np.arange(VOCABULARY) // 2).astype(np.int32)
"""Forms: every even token is like the odd one behind it."""


@dataclass(frozen=True)
class Case:
    """What is known of a request, and what its answer has been so far."""

    prompt: list[int]
    passages: list[list[int]] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    stored: list[list[int]] = field(default_factory=list)
    forms: bool = False

    def begin(self) -> BlendDrafter:
        drafter = BlendDrafter(Snapshot.of([ids(document) for document in self.stored], VOCABULARY))
        passages = tuple(ids(passage) for passage in self.passages)
        drafter.begin(DraftRequest(ids(self.prompt), passages, VOCABULARY, PAIRS if self.forms else None))
        return drafter

    def extended(self) -> BlendDrafter:
        drafter = self.begin()
        drafter.extend(ids(self.output))
        return drafter


def begun(prompt: list[int], *passages: list[int]) -> BlendDrafter:
    return Case(prompt, list(passages)).begin()


def leading_tokens(tree: DraftTree) -> list[int]:
    """Tokens of the chain that the nodes begin with."""
    return leading_chain(tree).token_ids.tolist()


def same(left: DraftTree, right: DraftTree) -> bool:
    columns = ("token_ids", "parents", "probs", "source", "origin")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in columns)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Texts over 1, 2 or 50,000 tokens, often copied from one another."""
    token = st.integers(0, draw(st.sampled_from([0, 1, VOCABULARY - 1])))
    texts = st.lists(st.lists(token, max_size=30), max_size=3)
    passages, stored = draw(texts), draw(texts)
    pieces = st.one_of(st.lists(token, max_size=10), st.sampled_from([*passages, *stored, []]))
    prompt = [token for piece in draw(st.lists(pieces, max_size=4)) for token in piece]
    output = [token for piece in draw(st.lists(pieces, max_size=4)) for token in piece]
    return Case(prompt, passages, output, stored, draw(st.booleans()))


@given(cases(), st.integers(0, 70))
def test_every_tree_keeps_the_contract(case: Case, budget: int) -> None:
    drafter = case.begin()
    for token in [None, *case.output]:
        if token is not None:
            drafter.extend(ids([token]))
        tree = drafter.propose(budget)
        tree.validate(VOCABULARY)
        assert len(tree) <= budget


@given(cases(), st.integers(1, 40))
def test_every_node_says_where_it_stands(case: Case, budget: int) -> None:
    tree = case.extended().propose(budget)
    laid_out = Snapshot.of([ids(document) for document in case.stored], VOCABULARY)
    for token, source, origin in zip(
        tree.token_ids.tolist(), tree.source.tolist(), tree.origin.tolist(), strict=True
    ):
        if source == Source.PASSAGE:
            assert case.passages[origin >> 32][origin & 0xFFFFFFFF] == token
        elif source == Source.DATASTORE:
            assert laid_out.pieces[origin >> 40].part.text[origin & ((1 << 40) - 1)] == token
        else:
            assert (case.prompt + case.output)[origin] == token
            assert (source == Source.PROMPT) == (origin < len(case.prompt))


@given(cases(), st.integers(1, 40), st.integers(0, 20))
def test_extending_token_by_token_drafts_the_same_as_all_at_once(case: Case, budget: int, cut: int) -> None:
    stepwise = case.begin()
    stepwise.extend(ids(case.output[:cut]))
    stepwise.propose(budget)
    for token in case.output[cut:]:
        stepwise.extend(ids([token]))
    assert same(stepwise.propose(budget), case.extended().propose(budget))


@given(cases(), st.integers(1, 20), st.integers(0, 40))
def test_a_smaller_budget_keeps_the_most_probable_nodes(case: Case, budget: int, more: int) -> None:
    drafter = case.extended()
    small, large = drafter.propose(budget), drafter.propose(budget + more)
    best = np.sort(large.probs)[::-1][: len(small)]
    assert np.array_equal(np.sort(small.probs)[::-1], best)


@given(cases(), st.integers(1, 40), st.floats(0.0, 0.9))
def test_what_is_less_probable_than_wanted_is_left_out(case: Case, budget: int, least: float) -> None:
    drafter = case.extended()
    every = drafter.propose(budget)
    drafter.least = least
    tree = drafter.propose(budget)
    assert all(tree.probs > least - 1e-6)
    sure = least / 0.97 + 1e-6  # behind a node that is hardly probable enough nothing is looked for
    assert tree.token_ids[tree.probs > sure].tolist() == every.token_ids[every.probs > sure].tolist()


@given(cases(), st.integers(1, 40))
def test_nodes_come_depth_first_and_the_most_probable_child_first(case: Case, budget: int) -> None:
    tree = case.extended().propose(budget)
    path: list[int] = []
    last_child: dict[int, float] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        while path and path[-1] != parent:
            path.pop()
        assert parent == (path[-1] if path else -1)
        assert tree.probs[node] <= last_child.get(parent, 1.0)
        last_child[parent] = float(tree.probs[node])
        path.append(node)


@given(cases())
def test_offers_are_distinct_and_hold_every_token_drafted_next(case: Case) -> None:
    drafter = case.extended()
    candidates, features, none_features = drafter.offers()
    assert len(set(candidates.tolist())) == len(candidates) == len(features)
    tree = drafter.propose(64)
    assert set(tree.token_ids[tree.parents == -1].tolist()) <= set(candidates.tolist())
    assert all(((column >= 0) & (column < WEIGHTS)).all() for column in (features, none_features))


def test_a_copy_is_drafted_on_from_its_passage() -> None:
    passage = list(range(100, 140))
    drafter = begun([1, 2, 3, *passage, 4, 5], passage)
    drafter.extend(ids(passage[:6]))
    tree = drafter.propose(16)
    assert leading_tokens(tree)[:8] == passage[6:14]
    assert set(tree.source[:8].tolist()) == {Source.PASSAGE}
    assert tree.origin[:8].tolist() == list(range(6, 14))


def test_a_passage_outside_the_prompt_is_drafted_from() -> None:
    passage = list(range(100, 140))
    drafter = begun([1, 2, 3], [7, 8, 9], passage)
    drafter.extend(ids(passage[:6]))
    tree = drafter.propose(16)
    assert leading_tokens(tree)[:4] == passage[6:10]
    assert tree.origin[0] == 1 << 32 | 6


@pytest.mark.parametrize(
    ("told", "resumes"),
    [
        ([100, 101, 102, 103, 104, 999], 106),  # 105 substituted
        ([100, 101, 102, 103, 104, 999], 105),  # 999 inserted
        ([100, 101, 102, 103, 104, 106], 107),  # 105 left out
    ],
)
def test_a_copy_resumes_after_one_changed_token(told: list[int], resumes: int) -> None:
    drafter = begun([1, 2, 3, *range(100, 140), 4, 5])
    drafter.extend(ids(told))
    tree = drafter.propose(32)
    assert resumes in tree.token_ids[tree.parents == -1]


def test_nothing_is_drafted_across_the_end_of_a_passage() -> None:
    often_said = list(range(200, 230)) * 2  # fills order 0, which may offer anything that was said
    drafter = begun(often_said, [10, 11, 12, 13], [20, 21, 22])
    drafter.extend(ids([10, 11, 12]))
    assert 13 in drafter.propose(64).token_ids
    drafter.extend(ids([13]))
    assert not {20, 21, 22} & set(drafter.propose(64).token_ids.tolist())


def test_ids_outside_the_vocabulary_are_never_drafted() -> None:
    tree = begun([1, 2, 3, 60_000, 4, 1, 2, 3, 60_000, 4, 1, 2, 3]).propose(32)
    tree.validate(VOCABULARY)
    assert len(tree) > 0


def test_no_budget_means_an_empty_tree() -> None:
    assert len(begun([1, 2, 1]).propose(0)) == 0


def test_a_drafter_that_ended_holds_nothing_of_the_request() -> None:
    drafter = begun([1, 2, 3, 1, 2, 3, 1])
    assert len(drafter.propose(8)) > 0
    drafter.end()
    assert len(drafter.propose(8)) == 0


def test_a_stored_answer_is_drafted_from_and_named() -> None:
    answer = list(range(300, 330))
    drafter = Case([1, 2, 3], stored=[[7, 8, 9], answer]).begin()
    drafter.extend(ids(answer[:6]))
    tree = drafter.propose(16)
    assert leading_tokens(tree)[:4] == answer[6:10]
    assert tree.source[0] == Source.DATASTORE


def test_a_stored_text_leads_back_into_a_passage() -> None:
    passage = list(range(100, 130))
    drafter = Case([1, 2, 3], [passage], stored=[[40, 41, 42, 43, *passage[:4]]]).begin()
    drafter.extend(ids([40, 41, 42, 43]))
    tree = drafter.propose(32)
    assert leading_tokens(tree)[:6] == passage[:6]
    assert Source.PASSAGE in tree.source.tolist()


def test_nothing_stored_is_drafted_across_the_end_of_a_document() -> None:
    drafter = Case([1, 2, 3], stored=[[10, 11, 12], [20, 21, 22]]).begin()
    drafter.extend(ids([10, 11, 12]))
    assert not {20, 21, 22} & set(drafter.propose(64).token_ids.tolist())


def test_a_quote_in_other_case_is_taken_up_where_forms_are_known() -> None:
    # Each token is quoted in the other case, and the first stands everywhere.
    passage = [*(token for other in range(400, 480, 2) for token in (2, other)), 2, 4, 6, 8, 100, 102, 104]
    quoted = [3, 5, 7, 9]
    probs = {}
    for forms in (True, False):
        drafter = Case([1000, *passage, 2000], [passage], quoted, forms=forms).extended()
        tree = drafter.propose(32)
        here = (tree.parents == -1) & (tree.token_ids == 100)
        probs[forms] = float(tree.probs[here].sum())
        assert (tree.token_ids[0] == 100) == forms
    assert probs[True] > 4 * probs[False]


def test_what_the_target_showed_is_drafted_when_its_token_comes_again() -> None:
    drafter = begun([1, 2, 3])
    drafter.recycle(RunnerUps(ids([50]), ids([-1]), ids([60, 61])[None]))
    drafter.extend(ids([60, 50]))
    tree = drafter.propose(32)
    shown = dict(zip(tree.token_ids.tolist(), tree.source.tolist(), strict=True))
    assert shown[60] in (Source.OUTPUT, Source.RECYCLED)
    assert shown[61] == Source.RECYCLED


def test_requests_share_what_the_target_showed_only_when_told_to() -> None:
    table = RecycledTokens()
    for factory, wanted in ((Blend(recycled=table), True), (Blend(), False)):
        first, second = factory(), factory()
        for drafter in (first, second):
            drafter.begin(DraftRequest(ids([1, 2, 50]), (), VOCABULARY))
        first.recycle(RunnerUps(ids([50]), ids([-1]), ids([60, 61])[None]))
        assert (61 in second.propose(32).token_ids) == wanted


def test_committed_tokens_move_the_probabilities_towards_them() -> None:
    calibration = Calibration()
    before = calibration.weights.copy()
    texts = [[10, 11, 12, 13], [10, 11, 12, 14]]

    def probability() -> float:
        drafter = BlendDrafter(None, calibration)
        drafter.begin(DraftRequest(ids([*texts[0], 1, *texts[1], 2, 10, 11, 12]), (), VOCABULARY))
        tree = drafter.propose(8)
        return float(tree.probs[(tree.parents == -1) & (tree.token_ids == 13)].sum())

    first = probability()
    for _ in range(30):
        drafter = BlendDrafter(None, calibration)
        drafter.begin(DraftRequest(ids([*texts[0], 1, *texts[1], 2, 10, 11, 12]), (), VOCABULARY))
        drafter.extend(ids([13]))
    assert probability() > first
    assert not np.array_equal(calibration.weights, before)


def test_a_calibration_that_does_not_learn_stays_as_it_is() -> None:
    calibration = Calibration(learn=False)
    before = calibration.weights.copy()
    drafter = BlendDrafter(None, calibration)
    drafter.begin(DraftRequest(ids([1, 2, 3, 1]), (), VOCABULARY))
    drafter.extend(ids([2, 3, 9]))
    assert np.array_equal(calibration.weights, before)


def test_weights_of_another_version_are_refused() -> None:
    with pytest.raises(DraftError, match=rf"\({WEIGHTS},\)"):
        Calibration(np.zeros(3))


def test_an_answer_that_ended_is_drafted_from_by_the_next_request(tmp_path: Path) -> None:
    tokenizer = TokenizerFingerprint("numbers", VOCABULARY, "numbers")
    answer = list(range(300, 330))
    with TokenDatastoreWriter.open(tmp_path / "store", tokenizer, background=False) as writer:
        factory = Blend(writer, learn=lambda ids: writer.learn("answers", ids, max_tokens=100))
        request = DraftRequest(ids([1, 2, 3]), (), VOCABULARY)
        first = factory()
        first.begin(request)
        first.extend(ids(answer[:6]))
        assert answer[6] not in first.propose(32).token_ids
        first.extend(ids(answer[6:]))
        first.end()
        second, other = factory(), Blend(writer, namespaces=["corpus"])()
        for drafter, drafted in ((second, True), (other, False)):
            drafter.begin(request)
            drafter.extend(ids(answer[:6]))
            assert (answer[6] in drafter.propose(32).token_ids) == drafted


def test_a_request_that_could_not_begin_teaches_nothing() -> None:
    taught: list[NDArray[np.int32]] = []
    drafter = BlendDrafter(learn=taught.append)
    with pytest.raises(ValueError, match="negative"):
        drafter.begin(DraftRequest(ids([-1, 2]), (ids([4, 5]),), VOCABULARY))
    drafter.end()
    drafter.extend(ids([1]))
    drafter.end()
    assert taught == []


def test_a_recycled_row_that_holds_a_token_twice_drafts_it_once() -> None:
    drafter = begun([1, 2, 3])
    drafter.recycle(RunnerUps(ids([3]), ids([-1]), ids([7, 7, 8, 8, 8])[None]))
    tree = drafter.propose(64)
    tree.validate(VOCABULARY)
    assert {7, 8} <= set(tree.token_ids.tolist())


def test_forms_may_be_known_of_the_first_ids_only() -> None:
    drafter = BlendDrafter()
    drafter.begin(DraftRequest(ids([1, 2, 50]), (ids([4, 60]),), 100, np.arange(10, dtype=np.int32)))
    drafter.extend(ids([50, 4]))
    tree = drafter.propose(16)
    tree.validate(100)
    assert len(tree) > 0


def test_a_budget_beyond_all_reason_takes_no_memory() -> None:
    assert 0 < len(begun([1, 2, 3, 1]).propose(10**12)) <= 4096


@settings(deadline=None)  # the first example compiles
@given(cases())
def test_a_chain_follows_the_most_probable_child_of_each_node(case: Case) -> None:
    case = replace(case, stored=[])  # which a tree is asked for at other nodes
    tree = case.extended().propose(2_000)
    drafter = BlendDrafter(chain=True)
    passages = tuple(ids(passage) for passage in case.passages)
    drafter.begin(DraftRequest(ids(case.prompt), passages, VOCABULARY, PAIRS if case.forms else None))
    drafter.extend(ids(case.output))
    drafted = drafter.propose(8)
    drafted.validate(VOCABULARY)
    assert drafted.parents.tolist() == list(range(-1, len(drafted) - 1))
    node = -1
    for place in range(8):
        children = np.flatnonzero(tree.parents == node)
        if place == len(drafted) or not len(children):
            assert place == len(drafted) == 8 or (not len(children) and len(drafted) <= place + 1)
            break
        best = children[tree.probs[children] == tree.probs[children].max()]
        assert drafted.probs[place] == tree.probs[best[0]]
        if len(best) > 1:  # either may be followed
            break
        node = int(best[0])
        assert (drafted.token_ids[place], drafted.source[place], drafted.origin[place]) == (
            tree.token_ids[node], tree.source[node], tree.origin[node],
        )  # fmt: skip


def test_a_chain_is_continued_by_stored_text() -> None:
    stored = Snapshot.of([np.arange(100, 120)], VOCABULARY)
    drafter = BlendDrafter(stored, chain=True)
    drafter.begin(DraftRequest(ids([1, 2, 100, 101, 102]), (), VOCABULARY))
    assert drafter.propose(6).token_ids.tolist()[:3] == [103, 104, 105]
