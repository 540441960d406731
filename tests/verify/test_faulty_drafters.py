"""A drafter that misbehaves costs its request the speed-up and the others nothing."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from helpers.drafters import RightAnswer, tree_of
from helpers.many import engine_of, side_by_side, text_of, texts_of, watched

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.draft_probs import DraftProbs
from groundspeed.types import GenerationRequest
from groundspeed.verify import drafts

PROMPTS = [text_of(n, n) for n in (3, 12, 40)]
REQUESTS = [GenerationRequest(prompt, max_tokens=25) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def target():
    return watched("llama")


@pytest.fixture(scope="module")
def alone(target):
    with engine_of(target) as engine:
        return {r.prompt: engine.generate(replace(r, speculate=False)).token_ids for r in REQUESTS}


@pytest.fixture
def free():
    """Set when the test is over, for whatever still waits."""
    event = threading.Event()
    yield event
    event.set()


def changed(**columns):
    return lambda tree: replace(tree, **{name: change(tree) for name, change in columns.items()})


def with_probs(**columns):
    right = {
        "nodes": np.array([-1], np.int32),
        "token_ids": np.array([[1, 2]], np.int32),
        "probs": np.array([[0.5, 0.5]], np.float32),
        "drawn": np.array([[1]], np.int32),
    }
    return lambda tree: replace(tree, draft_probs=DraftProbs(**{**right, **columns}))


TREES = {
    "none": lambda tree: None,
    "a list": lambda tree: [1, 2, 3],
    "a class": lambda tree: DraftTree,
    "cycle": lambda tree: tree_of([1, 2], [1, 0]),
    "own parent": lambda tree: tree_of([1], [0]),
    "parent before the text": lambda tree: tree_of([1], [-2]),
    "beyond the vocabulary": lambda tree: tree_of([97], [-1]),
    "negative token": lambda tree: tree_of([-1], [-1]),
    "twins": lambda tree: tree_of([1, 1], [-1, -1]),
    "too many": lambda tree: tree_of(range(90), [-1] * 90),
    "far too many": lambda tree: tree_of(np.zeros(5_000_000), np.zeros(5_000_000)),
    "nan": lambda tree: tree_of([1], [-1], float("nan")),
    "certain beyond measure": lambda tree: tree_of([1], [-1], float("inf")),
    "impossible": lambda tree: tree_of([1], [-1], 0.0),
    "surer than its parent": changed(probs=lambda t: np.linspace(0.1, 0.9, len(t), dtype=np.float32)),
    "wide tokens": changed(token_ids=lambda t: t.token_ids.astype(np.int64)),
    "lists for arrays": changed(token_ids=lambda t: t.token_ids.tolist()),
    "tokens of the other byte order": changed(token_ids=lambda t: t.token_ids.astype(">i4")),
    "objects": changed(token_ids=lambda t: t.token_ids.astype(object)),
    "columns": changed(token_ids=lambda t: t.token_ids[:, None]),
    "a column too short": changed(parents=lambda t: t.parents[1:]),
    "no probabilities": changed(probs=lambda t: None),
    "source of the target": changed(source=lambda t: np.zeros(len(t), np.uint16)),
    "draws behind no node": with_probs(nodes=np.array([99], np.int32)),
    "draws of nan": with_probs(probs=np.full((1, 2), np.nan, np.float32)),
    "draws of the impossible": with_probs(probs=np.array([[0.0, 1.0]], np.float32)),
    "draws without a shape": with_probs(drawn=np.array(1, np.int32)),
    "draws that are none": lambda tree: replace(tree, draft_probs="q"),
}


def bent(change):
    """A drafter whose right drafts are changed."""

    class Bent(RightAnswer):
        def draft(self, budget):
            return change(super().draft(budget))

        def propose(self, budget):
            return self.draft(budget)

    return Bent


def failing(method, error=RuntimeError):
    def fails(self, *args):
        raise error

    return type("Fails", (RightAnswer,), {"runners_up": 3, "recycle": lambda *_: None, method: fails})


def stuck(method, wait):
    """A drafter that waits for ever in one of its methods."""

    def waits(self, *args):
        wait()
        return getattr(super(Stuck, self), method)(*args)

    class Stuck(RightAnswer):
        runners_up = 3

        def recycle(self, shown):
            pass

    setattr(Stuck, method, waits)
    return Stuck


def answers_beside(target, alone, drafter, faulty=PROMPTS[1]):
    """What all requests are answered when one of them has a faulty drafter and the others good ones."""

    class Chosen:
        runners_up = 3

        def begin(self, request):
            prompt = tuple(request.prompt_ids.tolist())
            self.drafter = (drafter if prompt == faulty else RightAnswer)(alone[prompt])
            self.drafter.begin(request)

        def recycle(self, shown):
            if hasattr(self.drafter, "recycle"):
                self.drafter.recycle(shown)

        def extend(self, token_ids):
            self.drafter.extend(token_ids)

        def propose(self, budget):
            return self.drafter.propose(budget)

        def end(self):
            self.drafter.end()

    with engine_of(target, Chosen) as engine:
        results = side_by_side(engine, REQUESTS)
    assert texts_of(results) == [alone[prompt] for prompt in PROMPTS]
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.stats.accepted >= 20 or prompt == faulty
    return results[PROMPTS.index(faulty)]


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_that_is_none_costs_nothing_but_the_drafts(target, alone, tree, caplog):
    result = answers_beside(target, alone, bent(TREES[tree]))
    assert result.stats.drafted == 0
    assert "the drafter failed in propose; the request goes on without drafts" in caplog.text


@pytest.mark.parametrize("tree", ["read only", "backwards", "every other"])
def test_a_tree_in_unusual_arrays_is_one_nevertheless(target, alone, tree):
    def sparse(column):
        wide = np.zeros(2 * len(column), column.dtype)
        wide[::2] = column
        return wide[::2]

    def locked(column):
        column.flags.writeable = False
        return column

    change = {"read only": locked, "backwards": lambda c: c[::-1].copy()[::-1], "every other": sparse}[tree]
    names = ("token_ids", "parents", "probs", "source", "origin")
    columns = {name: lambda t, name=name: change(getattr(t, name)) for name in names}
    assert answers_beside(target, alone, bent(changed(**columns))).stats.accepted > 20


@pytest.mark.parametrize("method", ["begin", "extend", "propose", "recycle", "end"])
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, SystemExit, KeyboardInterrupt])
def test_a_drafter_that_raises_costs_nothing_but_the_drafts(target, alone, method, error, caplog):
    result = answers_beside(target, alone, failing(method, error))
    assert result.stats.drafted == 0 or method == "end"
    assert f"the drafter failed in {method}" in caplog.text


def test_a_factory_that_raises_costs_nothing_but_the_drafts(target, alone, caplog):
    with engine_of(target, lambda: 1 / 0) as engine:
        assert texts_of(side_by_side(engine, REQUESTS)) == [alone[prompt] for prompt in PROMPTS]
    assert caplog.text.count("the drafter failed in begin") == len(REQUESTS)


@pytest.mark.parametrize("method", ["begin", "extend", "propose", "recycle", "end"])
def test_a_drafter_that_never_returns_is_given_up(target, alone, method, free, monkeypatch, caplog):
    monkeypatch.setattr(drafts, "_PATIENCE", 0.2)
    result = answers_beside(target, alone, stuck(method, free.wait))
    assert result.stats.drafted == 0 or method == "end"
    assert f"the drafter failed in {method}" in caplog.text
    assert "it has not returned after 0.2 s" in caplog.text


def test_a_drafter_in_an_endless_loop_is_broken_off(target, alone, monkeypatch, caplog):
    def loop():
        while True:
            pass

    monkeypatch.setattr(drafts, "_PATIENCE", 0.2)
    answers_beside(target, alone, stuck("propose", loop))
    assert "it has not returned" in caplog.text
    for thread in threading.enumerate():
        if thread.name == "groundspeed drafter":
            thread.join(10)
            assert not thread.is_alive()


def test_a_call_that_is_over_as_it_is_given_up_ends_its_thread_quietly():
    beside = drafts._Beside()
    beside.call(int)
    beside._give_up()
    beside.end()
    beside._thread.join(10)  # an exception that leaves it would fail the test
    assert not beside._thread.is_alive()


def test_a_slow_drafter_is_waited_for(target, alone, caplog):
    result = answers_beside(target, alone, stuck("propose", lambda: time.sleep(0.05)))
    assert result.stats.accepted >= 20
    assert not caplog.records


def test_a_factory_that_never_returns_is_given_up(target, alone, free, monkeypatch, caplog):
    monkeypatch.setattr(drafts, "_PATIENCE", 0.1)
    with engine_of(target, free.wait) as engine:
        assert texts_of(side_by_side(engine, REQUESTS)) == [alone[prompt] for prompt in PROMPTS]
    assert caplog.text.count("it has not returned") == len(REQUESTS)


def test_our_own_drafters_are_asked_in_the_thread_of_the_engine(target, alone):
    threads = set()
    with engine_of(target) as engine:
        target.before = lambda segments: threads.update(thread.name for thread in threading.enumerate())
        assert texts_of(side_by_side(engine, REQUESTS)) == [alone[prompt] for prompt in PROMPTS]
    target.before = lambda segments: None
    assert "groundspeed" in threads
    assert "groundspeed drafter" not in threads


def test_threads_of_drafters_go_with_their_requests(target, alone):
    answers_beside(target, alone, RightAnswer)
    with engine_of(target, lambda: BlendDrafter()) as engine:  # ours, made by somebody else's factory
        side_by_side(engine, REQUESTS)
    for thread in threading.enumerate():
        if thread.name == "groundspeed drafter":
            thread.join(10)
            assert not thread.is_alive()


def test_a_faulty_drafter_is_warned_of_once_a_request(target, alone, caplog):
    with caplog.at_level(logging.WARNING):
        answers_beside(target, alone, failing("propose"))
    assert len(caplog.records) == 1
