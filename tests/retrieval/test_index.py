from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundspeed.datastores.documents import Chunking, DocumentStore, StoreContents
from groundspeed.errors import InputError, StoreError
from groundspeed.retrieval import index
from groundspeed.retrieval.index import IndexReport, index_corpus
from groundspeed.retrieval.retriever import Retriever

LONG = "A sentence of the long document. " * 100


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("first text")
    (folder / "b.md").write_text("# Second\n\ntext")
    (folder / "sub" / "c.txt").write_text(LONG)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore(tmp_path / "store")


def counts(report: IndexReport) -> tuple[int, int, int, int]:
    return report.added, report.changed, report.removed, report.unchanged


def ids(store: DocumentStore) -> set[str]:
    return {stored.document.id for stored in store.read().documents}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def assert_like_new(store: DocumentStore, paths: list[Path], tmp_path: Path, **options: Any) -> None:
    """The oracle of every incremental change: the store answers like one indexed from scratch."""
    fresh = DocumentStore(tmp_path / "fresh")
    shutil.rmtree(fresh.path, ignore_errors=True)
    index_corpus(paths, fresh, **options)
    one, other = _by_document(store.read()), _by_document(fresh.read())
    assert one.keys() == other.keys()
    for key in one:
        assert one[key][0] == other[key][0]
        np.testing.assert_allclose(one[key][1], other[key][1])
    toy = options["embedder"]
    for question in ("first text", "sentence long", "new words"):
        found, expected = (
            Retriever.open(place, toy).search(question, k=50, mode="sparse") for place in (store, fresh)
        )
        assert sorted((p.document_id, p.start, round(p.score, 4)) for p in found) == sorted(
            (p.document_id, p.start, round(p.score, 4)) for p in expected
        )


def _by_document(contents: StoreContents) -> dict[str, tuple[Any, Any]]:
    return {
        stored.document.id: (
            (stored, contents.chunks[contents.chunks[:, 0] == row][:, 1:].tolist()),
            contents.vectors[contents.chunks[:, 0] == row],
        )
        for row, stored in enumerate(contents.documents)
    }


def test_a_corpus_is_indexed_and_reported(corpus: Path, store: DocumentStore, toy: Any) -> None:
    stages: list[tuple[str, int, int]] = []
    report = index_corpus([corpus], store, embedder=toy, on_progress=lambda *event: stages.append(event))
    assert counts(report) == (3, 0, 0, 0)
    contents = store.read()
    assert report.chunks == report.embedded == len(contents.chunks) == len(toy.embedded) > 4
    assert [
        contents.documents[row].document.text[start:end] for row, start, end in contents.chunks
    ] == toy.embedded
    assert set(report.seconds) == {"load", "chunk", "embed", "sparse", "write"}
    assert stages == [
        ("load", 1, 0), ("load", 2, 0), ("load", 3, 0), ("chunk", 1, 3), ("chunk", 2, 3), ("chunk", 3, 3),
        ("embed", report.chunks, report.chunks),
    ]  # fmt: skip


def test_a_corpus_that_did_not_change_leaves_the_store_untouched(
    corpus: Path, store: DocumentStore, toy: Any
) -> None:
    index_corpus([corpus], store, embedder=toy)
    before = snapshot(store.path)
    toy.embedded.clear()
    assert counts(index_corpus([corpus], store, embedder=toy)) == (0, 0, 0, 3)
    assert snapshot(store.path) == before
    assert toy.embedded == []


def test_only_what_changed_is_embedded_and_what_is_gone_leaves_the_store(
    corpus: Path, store: DocumentStore, toy: Any, tmp_path: Path
) -> None:
    index_corpus([corpus], store, embedder=toy)
    toy.embedded.clear()
    (corpus / "a.txt").write_text("first text, new words")
    (corpus / "b.md").unlink()
    (corpus / "sub" / "d.txt").write_text("new")
    report = index_corpus([corpus], store, embedder=toy)
    assert counts(report) == (1, 1, 1, 1)
    assert report.embedded == 2
    assert toy.embedded == ["first text, new words", "new"]
    assert_like_new(store, [corpus], tmp_path, embedder=toy)


def test_a_deleted_file_leaves_the_store(
    corpus: Path, store: DocumentStore, toy: Any, tmp_path: Path
) -> None:
    index_corpus([corpus], store, embedder=toy)
    (corpus / "sub" / "c.txt").unlink()
    assert counts(index_corpus([corpus], store, embedder=toy)) == (0, 0, 1, 2)
    assert_like_new(store, [corpus], tmp_path, embedder=toy)


def test_a_change_of_metadata_counts(tmp_path: Path, store: DocumentStore, toy: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "text": "x", "year": 1}')
    index_corpus([rows], store, embedder=toy)
    rows.write_text('{"id": "a", "text": "x", "year": 2}')
    assert counts(index_corpus([rows], store, embedder=toy)) == (0, 1, 0, 0)
    assert Retriever.open(store, toy).document("a").metadata == {"year": 2}


def test_another_chunking_cuts_everything_anew(
    corpus: Path, store: DocumentStore, toy: Any, tmp_path: Path
) -> None:
    index_corpus([corpus], store, embedder=toy)
    assert counts(index_corpus([corpus], store, embedder=toy, chunking=Chunking(200, 20))) == (0, 3, 0, 0)
    assert_like_new(store, [corpus], tmp_path, embedder=toy, chunking=Chunking(200, 20))
    assert counts(index_corpus([corpus], store, embedder=toy)) == (0, 0, 0, 3)


def test_documents_of_other_paths_stay(corpus: Path, store: DocumentStore, toy: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.txt").write_text("new words")
    index_corpus([corpus], store, embedder=toy)
    assert counts(index_corpus([other], store, embedder=toy)) == (1, 0, 0, 3)
    (corpus / "a.txt").unlink()
    assert counts(index_corpus([corpus], store, embedder=toy)) == (0, 0, 1, 3)
    assert_like_new(store, [corpus, other], tmp_path, embedder=toy)


def test_a_folder_takes_over_what_was_indexed_from_inside_it(
    corpus: Path, store: DocumentStore, toy: Any
) -> None:
    index_corpus([corpus / "sub"], store, embedder=toy)
    assert ids(store) == {"c.txt"}
    index_corpus([corpus], store, embedder=toy)
    assert ids(store) == {"a.txt", "b.md", "sub/c.txt"}


def test_a_part_of_an_indexed_folder_is_refused(corpus: Path, store: DocumentStore, toy: Any) -> None:
    index_corpus([corpus], store, embedder=toy)
    with pytest.raises(
        InputError, match=r"lies in .*corpus, which the store holds already; index .*corpus again"
    ):
        index_corpus([corpus / "sub"], store, embedder=toy)


def test_an_id_that_the_store_has_from_another_path_is_refused(
    corpus: Path, store: DocumentStore, toy: Any, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("another text")
    index_corpus([corpus], store, embedder=toy)
    with pytest.raises(InputError, match=r"'a\.txt': the store has one from .*corpus, .*other holds another"):
        index_corpus([other], store, embedder=toy)


def test_another_embedding_model_is_refused(corpus: Path, store: DocumentStore, toy: Any) -> None:
    index_corpus([corpus], store, embedder=toy)
    with pytest.raises(StoreError, match="built by the embedding model toy, other was given"):
        index_corpus([corpus], store, embedder="other")


def test_a_damaged_store_is_not_written_over(corpus: Path, store: DocumentStore, toy: Any) -> None:
    index_corpus([corpus], store, embedder=toy)
    (store.path / "header.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        index_corpus([corpus], store, embedder=toy)
    assert (store.path / "header.json").read_text() == "{"


@pytest.mark.parametrize("fault", [b"", b"\xff", b"a\0b"])
def test_a_faulty_file_changes_nothing(corpus: Path, store: DocumentStore, toy: Any, fault: bytes) -> None:
    index_corpus([corpus], store, embedder=toy)
    before = snapshot(store.path)
    (corpus / "a.txt").write_text("changed")
    (corpus / "z.txt").write_bytes(fault)
    with pytest.raises(InputError, match=r"z\.txt"):
        index_corpus([corpus], store, embedder=toy)
    assert snapshot(store.path) == before


def test_a_faulty_first_corpus_leaves_no_folder(tmp_path: Path, store: DocumentStore, toy: Any) -> None:
    (tmp_path / "corpus").mkdir()
    with pytest.raises(InputError, match="no document"):
        index_corpus([tmp_path / "corpus"], store, embedder=toy)
    assert not store.path.exists()


def test_skipped_and_unknown_files_are_reported(corpus: Path, store: DocumentStore, toy: Any) -> None:
    (corpus / "z.txt").write_bytes(b"\xff")
    (corpus / "z.png").write_bytes(b"\x89")
    report = index_corpus([corpus], store, embedder=toy, skip_unreadable=True)
    assert counts(report) == (3, 0, 0, 0)
    assert report.passed_over == {".png": 1}
    assert len(report.skipped) == 1


@pytest.mark.parametrize("stage", ["load_roots", "chunk", "build_postings"])
def test_ctrl_c_in_any_stage_leaves_the_store_as_it_was(
    corpus: Path, store: DocumentStore, toy: Any, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    index_corpus([corpus], store, embedder=toy)
    before = snapshot(store.path)
    (corpus / "a.txt").write_text("changed")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            index_corpus([corpus], store, embedder=toy)
    assert snapshot(store.path) == before
    assert counts(index_corpus([corpus], store, embedder=toy)) == (0, 1, 0, 2)
