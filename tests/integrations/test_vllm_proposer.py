"""The proposer, driven as vLLM drives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_vllm import VOCABULARY, Runner, config
from helpers.vllm_answers import Saboteur
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.tree import chain
from groundspeed.errors import InputError, StoreError
from groundspeed.integrations.vllm import versions
from groundspeed.integrations.vllm.cost import StepCost
from groundspeed.integrations.vllm.documents import flat_documents, split_documents
from groundspeed.integrations.vllm.proposer import Proposer
from groundspeed.integrations.vllm.settings import Settings

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, 250, 30).tolist() for _ in range(8)]


class NothingIsDear:
    """Cuts no draft, so that drafts can be compared."""

    def ended(self, texts: Any, *, alone: bool) -> None: ...

    def begins(self, texts: Any, drafted: int, context: int) -> None: ...

    def share(self, chains: list[DraftTree], context: int) -> list[int]:
        return [*map(len, chains)]


def runner(*, bound: bool = True, **how: Any) -> Runner:
    """An engine whose proposer knows it, or does not."""
    proposer = Proposer(config(**how))
    proposer._cost = NothingIsDear()
    made = Runner(proposer)
    if bound:
        proposer.bind(made)
    return made


def alone(name: str, *request: Any, bound: bool = True) -> list[list[int]]:
    """What is drafted for a request in an engine of its own."""
    engine = runner(bound=bound)
    engine.add(name, *request)
    engine.run()
    return engine.drafts[name]


REQUESTS = {
    "copies its document": (TEXTS[0][:10], TEXTS[1], flat_documents([TEXTS[2], TEXTS[1]])),
    "copies its prompt": ([*TEXTS[3], 7], TEXTS[3][3:20], flat_documents([TEXTS[4]])),
    "repeats itself": ([5, 6], [1, 2, 3, 4] * 6, None),
    "copies the document of another": ([9], TEXTS[1][:20], None),
}


@pytest.fixture(scope="module", params=[True, False], ids=["bound", "by content"])
def bound(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def by_themselves(bound: bool) -> dict[str, list[list[int]]]:
    return {name: alone(name, *request, bound=bound) for name, request in REQUESTS.items()}


def test_documents_outside_the_prompt_are_drafted_from() -> None:
    with_it = alone("a", TEXTS[0], TEXTS[1], flat_documents([TEXTS[2], TEXTS[1]]))
    without = alone("a", TEXTS[0], TEXTS[1])
    assert len(with_it) < len(without) / 2


def test_requests_side_by_side_get_the_drafts_they_would_get_alone(
    bound: bool, by_themselves: dict[str, list[list[int]]]
) -> None:
    engine = runner(bound=bound)
    for name, request in REQUESTS.items():
        engine.add(name, *request)
    engine.run()
    assert engine.drafts == by_themselves


def test_nothing_of_a_request_is_left_to_the_next_one_in_its_row(
    bound: bool, by_themselves: dict[str, list[list[int]]]
) -> None:
    engine = runner(bound=bound)
    for name, request in REQUESTS.items():
        engine.add(name, *request)
        engine.run()
    assert engine.drafts == by_themselves


def test_an_id_that_comes_again_is_another_request() -> None:
    engine = runner()
    engine.add("x", *REQUESTS["copies its document"])
    engine.step()
    engine.finish("x")  # aborted, and the id used again before the next step
    engine.drafts["x"].clear()
    engine.add("x", *REQUESTS["copies the document of another"])
    engine.run()
    assert engine.drafts["x"] == alone("x", *REQUESTS["copies the document of another"])


@pytest.mark.parametrize("seed", range(5))
def test_preempted_requests_go_on_where_they_were(
    seed: int, bound: bool, by_themselves: dict[str, list[list[int]]]
) -> None:
    rng = np.random.default_rng(seed)
    engine = runner(bound=bound)
    for name, request in REQUESTS.items():
        engine.add(name, *request)
    while engine.requests:
        for name in [name for name in engine.requests if name not in engine.input_batch.req_ids]:
            if rng.random() < 0.5:
                engine.resume(name, chunks=int(rng.integers(1, 3)))
        for name in list(engine.input_batch.req_ids):
            if rng.random() < 0.3:
                engine.preempt(name)
        engine.step()
    # A draft is lost with each preemption, so there are more steps; each draft is right for where it is.
    for name, request in REQUESTS.items():
        expected = {tuple(draft) for draft in alone_token_by_token(request, bound)}
        assert {tuple(draft) for draft in engine.drafts[name]} <= expected


def alone_token_by_token(request: tuple[Any, ...], bound: bool) -> list[list[int]]:
    """What is drafted at every place of an answer, where no draft is ever accepted."""
    engine = runner(bound=bound)
    engine.add("a", *request)
    while engine.requests:
        engine._next["a"] = []
        engine.step()
    return engine.drafts["a"]


def test_prompts_read_in_pieces_get_no_drafts_before_they_are_read() -> None:
    engine = runner()
    engine.add("a", *REQUESTS["copies its prompt"], 3)
    engine.add("b", *REQUESTS["repeats itself"], 1)
    assert engine.step()[0] == []
    assert engine.step()[0] == []
    engine.run()
    assert engine.drafts["a"] == alone("a", *REQUESTS["copies its prompt"])


def test_requests_that_vllm_excludes_get_no_drafts() -> None:
    engine = runner()
    engine.input_batch.spec_decode_unsupported_reqs = {"a"}
    engine.add("a", *REQUESTS["copies its prompt"])
    engine.add("b", *REQUESTS["copies its prompt"])
    engine.run()
    assert not any(engine.drafts["a"])
    assert any(engine.drafts["b"])


def test_no_draft_is_longer_than_the_answer_or_the_context_may_become() -> None:
    engine = runner(context=60)
    engine.add("context", TEXTS[0][:25], TEXTS[0] + [1, 2, 3], None, 1, 1000)
    engine.add("answer", TEXTS[0], TEXTS[0][:20])
    while engine.requests:
        lengths = {name: len(request.output_token_ids) for name, request in engine.requests.items()}
        engine.step()
        for name, request in engine.requests.items():
            assert len(request.output_token_ids) > lengths[name]
            room = 60 - 25 if name == "context" else 20
            assert len(engine.drafts[name][-1]) < max(room - len(request.output_token_ids), 1)


def test_a_session_that_is_given_more_input_is_read_anew() -> None:
    engine = runner()
    engine.add("a", *REQUESTS["repeats itself"])
    engine.step()
    request = engine.requests["a"]
    engine.preempt("a")
    request.prompt_token_ids = [*TEXTS[3], 7]  # another text altogether
    request.output_token_ids = []
    request.sampling_params.max_tokens = 17
    engine._planned["a"] = TEXTS[3][3:20]
    engine.drafts["a"].clear()
    engine.resume("a")
    engine.run()
    assert engine.drafts["a"] == alone("a", [*TEXTS[3], 7], TEXTS[3][3:20], None)


@pytest.mark.parametrize(
    "documents",
    [
        "text",
        [1.5, 2.5],
        [[1, 2], [3]],
        ["1", "2"],
        [1, VOCABULARY],
        [1, -2],
        [2**70],
        5,
        [True, None],
        {1: 2},
    ],
)
def test_documents_that_cannot_be_used_are_left_out(documents: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = runner()
    caplog.clear()
    prompt, answer, _ = REQUESTS["copies its prompt"]
    engine.add("a", prompt, answer, documents)
    engine.add("b", prompt, answer, documents)
    engine.run()
    assert engine.drafts["a"] == engine.drafts["b"] == alone("a", prompt, answer)
    warnings = [record for record in caplog.records if "groundspeed_documents" in record.getMessage()]
    assert len(warnings) == 1, "it is said, and once"


def test_of_too_many_documents_the_first_are_used(caplog: pytest.LogCaptureFixture) -> None:
    many = flat_documents([TEXTS[1], *([TEXTS[2]] * 20)])
    engine = runner(settings={"max_document_tokens": 31})
    engine.add("a", TEXTS[0], TEXTS[1], many)
    engine.run()
    assert engine.drafts["a"] == alone("a", TEXTS[0], TEXTS[1], many[:31])
    assert "max_document_tokens" in caplog.text


@pytest.mark.parametrize(
    "kind",
    ["raises in begin", "raises in extend", "raises in propose", "too long", "outside the vocabulary",
     "below 0", "no tree"],
)  # fmt: skip
def test_a_drafter_that_fails_costs_its_own_drafts_only(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = runner()
    caplog.clear()
    engine.add("good", *REQUESTS["copies its prompt"])
    engine.step()
    engine.drafter.drafters = lambda: Saboteur(kind)
    engine.add("bad", *REQUESTS["copies its prompt"])
    engine.add("as bad", *REQUESTS["copies its prompt"])
    engine.run()
    assert not any(engine.drafts["bad"] + engine.drafts["as bad"])
    assert engine.drafts["good"] == alone("good", *REQUESTS["copies its prompt"])
    assert len([record for record in caplog.records if "drafter failed" in record.getMessage()]) == 1


def test_whatever_vllm_hands_over_nothing_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    engine = runner()
    ends, tokens = np.array([3], np.int32), np.zeros((1, 9), np.int32)
    assert engine.drafter.propose([[1], [2]], ends, tokens) == [[], []]
    assert engine.drafter.propose([[1]], None, tokens) == [[]]  # type: ignore[arg-type]
    assert engine.drafter.propose([], ends, tokens) == []
    engine.add("a", *REQUESTS["copies its prompt"])
    engine.run()
    assert engine.drafts["a"] == alone("a", *REQUESTS["copies its prompt"])


def test_a_runner_of_another_make_leaves_the_proposer_unbound(caplog: pytest.LogCaptureFixture) -> None:
    engine = runner(bound=False)
    engine.drafter.bind(object())
    assert "documents of requests are not drafted from" in caplog.text
    engine.add("a", *REQUESTS["copies its prompt"])
    engine.run()
    assert any(engine.drafts["a"])


def test_what_is_over_is_let_go() -> None:
    for engine in (runner(), runner(bound=False)):
        for number in range(40):
            engine.add(str(number), TEXTS[number % 8], TEXTS[3][:4])
            engine.run()
        engine.add("last", [1, 2], [3, 4])
        engine.step()
        assert len(engine.drafter._texts._texts) <= 8


def test_the_datastore_of_the_node_is_drafted_from(tokenizer_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    fingerprint = TokenizerFingerprint.of(AutoTokenizer.from_pretrained(tokenizer_folder))
    with TokenDatastoreWriter.open(tmp_path / "store", fingerprint) as writer:
        writer.append("ours", "one", TEXTS[1])
        writer.append("theirs", "two", TEXTS[2])
    settings = {"datastore": str(tmp_path / "store"), "namespaces": ["ours"]}
    engine = runner(tokenizer=str(tokenizer_folder), settings=settings)
    engine.add("a", [7], TEXTS[1])
    engine.add("b", [7], TEXTS[2])
    engine.run()
    assert len(engine.drafts["a"]) < len(TEXTS[1]) / 2
    assert len(engine.drafts["b"]) == len(TEXTS[2])
    engine.drafter.datastore.close()


def test_a_datastore_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        Proposer(config(settings={"datastore": str(tmp_path)}))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"datastor": "x"}, "groundspeed.datastor is 'x'"),
        ({"max_document_tokens": -1}, "groundspeed.max_document_tokens is -1"),
        ({"namespaces": 5}, "groundspeed.namespaces is 5"),
        ("store", "groundspeed is 'store'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: Any, what: str) -> None:
    with pytest.raises(InputError, match="datastore, namespaces, max_document_tokens") as error:
        Settings.of({"groundspeed": settings, "another": 1})
    assert what in str(error.value)


@pytest.mark.parametrize("known", ["0.22.0", "0.32.0", "0.33.1+cpu", "0.29.0rc1", "0.33.0.dev5+g12ab"])
def test_versions_that_are_known_are_taken(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: known)
    versions.check_version()


@pytest.mark.parametrize("other", ["0.21.9", "0.34.0", "0.34.0rc1", "1.0"])
def test_other_versions_are_refused_with_the_known_ones(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: other)
    with pytest.raises(InputError, match=rf"vLLM {other} .*>=0.22"):
        Proposer(config())


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=4))
def test_documents_come_out_as_they_were_sent(documents: list[list[int]]) -> None:
    expected = [] if documents == [[]] else documents
    assert split_documents(flat_documents(documents)) == expected


@pytest.mark.parametrize("document", [["a"], [1.0], [-1], [None]])
def test_documents_are_token_ids(document: list[Any]) -> None:
    with pytest.raises(InputError, match="document 1 holds"):
        flat_documents([[1], document])


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def serve(cost: StepCost, clock: Clock, seconds_per_draft: float, steps: int = 60) -> list[int]:
    """Steps of one text whose chain of 8 tokens has fair chances; how many were kept in each."""
    draft = chain(np.zeros(8, np.int32), (0.7 ** np.arange(1, 9)).astype(np.float32))
    kept = []
    for _ in range(steps):
        (count,) = cost.share([draft], 100)
        kept.append(count)
        cost.begins([1], count, 100)
        clock.now += 0.01 + seconds_per_draft * count
        cost.ended([1], alone=True)
    return kept


def test_drafts_are_as_long_as_steps_are_cheap() -> None:
    clock = Clock()
    assert serve(StepCost(8, clock), clock, 0.0)[-1] == 8
    dear = serve(StepCost(8, clock), clock, 0.02)
    assert np.mean(dear[-30:]) < 1


def test_steps_that_also_read_a_prompt_say_nothing_of_the_cost() -> None:
    clock = Clock()
    cost = StepCost(8, clock)
    before = serve(cost, clock, 0.001)[-1]
    for texts, alone_ in (([1], False), ([1, 2], True), ([], True)):
        cost.begins([1], 8, 100)
        clock.now += 50
        cost.ended(texts, alone=alone_)
    assert serve(cost, clock, 0.001, steps=1) == [before]
