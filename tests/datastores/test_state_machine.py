from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from helpers.datastores import SMALL, assert_exact, brute_force, contents_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from groundspeed.datastores.merging import Merge
from groundspeed.datastores.parts import Addition, Part, Piece
from groundspeed.datastores.search import LONGEST
from groundspeed.datastores.segment import write_segment
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter

NAMESPACES = st.sampled_from(["corpus", "answers"])
IDS = st.sampled_from("abcdefgh")
TEXTS = st.lists(st.integers(0, 2), max_size=40)
ANSWER_TOKENS = 60


def context_at(text: list[int], position: int) -> list[int]:
    """The tokens up to a position, the last first, as far as they are compared."""
    context: list[int] = []
    while len(context) < LONGEST and context[-1:] != text[:1]:
        context.append(text[position - len(context)])
    return context


class Store(RuleBasedStateMachine):
    """A writer and a reader that was opened first, beside dictionaries of what they must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store"
        self.writer = TokenDatastoreWriter.open(self.path, SMALL, background=False, seal_at=150)
        self.reader = TokenDatastore.open(self.path, SMALL)
        self.model: dict[str, dict[str, tuple[int, ...]]] = {"corpus": {}, "answers": {}}

    @rule(namespace=NAMESPACES, document_id=IDS, text=TEXTS)
    def put(self, namespace: str, document_id: str, text: list[int]) -> None:
        self.writer.append(namespace, document_id, text, replace=True, durable=False)
        self.model[namespace].pop(document_id, None)
        self.model[namespace][document_id] = tuple(text)

    @rule(namespace=NAMESPACES, data=st.data())
    def delete(self, namespace: str, data: st.DataObject) -> None:
        ids = st.sampled_from([*self.model[namespace], "not there"])
        document_ids = data.draw(st.lists(ids, max_size=3))
        there = self.model[namespace].keys() & set(document_ids)
        assert self.writer.delete(namespace, document_ids, durable=False) == len(there)
        for document_id in there:
            del self.model[namespace][document_id]

    @rule(texts=st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=5))
    def learn(self, texts: list[list[int]]) -> None:
        answers = self.model["answers"]
        for text in texts:
            document_id = self.writer.learn("answers", text, max_tokens=ANSWER_TOKENS)
            while answers and sum(map(len, answers.values())) + len(text) > ANSWER_TOKENS:
                del answers[next(iter(answers))]
            answers[document_id] = tuple(text)

    @rule(texts=st.lists(TEXTS, min_size=1, max_size=3))
    def publish(self, texts: list[list[int]]) -> None:
        corpus = self.model["corpus"]
        additions = {f"p{n}": Addition(f"p{n}", np.array(text, np.int64)) for n, text in enumerate(texts)}
        path = self.writer.new_segment_path()
        part = Part.of(list(additions.values()), np.dtype(np.uint16), path.name)
        write_segment(path, Merge([Piece(part)]))
        self.writer.publish("corpus", [path], [name for name in additions if name in corpus])
        for name, addition in additions.items():
            corpus.pop(name, None)
            corpus[name] = tuple(addition.token_ids.tolist())

    @rule()
    def seal(self) -> None:
        self.writer.seal()

    @rule()
    def merge(self) -> None:
        self.writer.merge()

    @rule()
    def write_again(self) -> None:
        self.writer.close()
        self.writer = TokenDatastoreWriter.open(self.path, SMALL, background=False, seal_at=150)

    @rule()
    def read_again(self) -> None:
        self.reader.close()
        self.reader = TokenDatastore.open(self.path, SMALL)

    @rule(context=st.lists(st.integers(0, 3), min_size=1, max_size=30), depth=st.integers(1, 4))
    def ask(self, context: list[int], depth: int) -> None:
        self.check(context, depth, spread=4096)

    @precondition(lambda self: any(len(text) > 3 for text in self.model["corpus"].values()))
    @rule(data=st.data(), depth=st.integers(1, 3))
    def ask_for_what_is_there(self, data: st.DataObject, depth: int) -> None:
        texts = [text for text in self.model["corpus"].values() if len(text) > 3]
        text = data.draw(st.sampled_from(texts))
        end = data.draw(st.integers(1, len(text)))
        self.check(list(text[:end]), depth, spread=4096)

    @rule(context=st.lists(st.integers(0, 2), min_size=1, max_size=4), seed=st.integers(0, 9))
    def a_sample_draws_only_what_is_there(self, context: list[int], seed: int) -> None:
        wanted = brute_force(self.model["corpus"].values(), context)
        found = self.writer.snapshot(["corpus"]).continuations(
            np.array(context), depth=30, spread=2, seed=seed
        )
        assert found.longest == max(wanted, default=0)
        for length, counts in found.by_length.items():
            assert counts.keys() <= wanted[length].keys()

    @invariant()
    def every_piece_is_sorted(self) -> None:
        for piece in self.writer.snapshot().pieces:
            text = piece.part.text.tolist()
            contexts = [context_at(text, row) for row in piece.part.rows.tolist()]
            assert contexts == sorted(contexts)
            assert sorted(piece.part.rows.tolist()) == list(range(len(text)))

    @invariant()
    def holds_what_it_should(self) -> None:
        for store in (self.writer, self.reader):
            stats = store.stats()
            assert {name: contents_of(store, name) for name in self.model} == self.model
            for namespace, documents in self.model.items():
                held = stats.get(namespace)
                assert (held.documents if held else 0) == len(documents)
                assert (held.tokens if held else 0) == sum(map(len, documents.values()))

    def check(self, context: list[int], depth: int, spread: int) -> None:
        for namespaces in (["corpus"], ["answers"], None):
            names = namespaces or list(self.model)
            wanted = brute_force((text for name in names for text in self.model[name].values()), context)
            for store in (self.writer, self.reader):
                snapshot = store.snapshot(namespaces)
                assert_exact(snapshot.continuations(np.array(context), depth=depth, spread=spread), wanted)
                self.check_owners(snapshot, context)

    def check_owners(self, snapshot: object, context: list[int]) -> None:
        matches, _, _ = snapshot.find(np.array(context), spread=8)  # type: ignore[attr-defined]
        for length, token, piece, position in matches.tolist():
            at = snapshot.document_at(piece, position)  # type: ignore[attr-defined]
            text = self.model[at.namespace][at.document_id]
            assert text[at.offset] == token
            assert list(text[at.offset - length : at.offset]) == context[len(context) - length :]

    def teardown(self) -> None:
        self.writer.close()
        self.reader.close()
        self.folder.cleanup()


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_oldest_answer_goes_first_when_a_later_one_was_deleted(tmp_path: Path) -> None:
    with TokenDatastoreWriter.open(tmp_path, SMALL, background=False) as writer:
        for part in ("in memory", "sealed"):
            _, second, third = (writer.learn(part, [n] * 10, max_tokens=30) for n in range(3))
            if part == "sealed":
                writer.seal()
            writer.delete(part, [second])
            latest = writer.learn(part, [4] * 20, max_tokens=30)
            assert contents_of(writer, part).keys() == {third, latest}
