from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest

from groundspeed.errors import InputError
from groundspeed.retrieval.loaders import LoadLog, load_documents

HTML = b"""<!doctype html><html><head><title>The
 title</title><style>p {color: red}</style></head><body><script>alert(1)</script>
<h1>Head</h1><p>One <b>bold</b> word,
on two lines.</p><ul><li>first</li><li>second</li></ul><pre>def f():
    return 1</pre><table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table></body></html>"""


def pdf(text: str) -> bytes:
    """A PDF of one page with one line of text, written by hand."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, io.SEEK_END)
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % at for at in offsets))
    out.write(b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def put(folder: Path, **files: bytes | str) -> Path:
    for name, data in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def test_a_folder_gives_its_known_files_by_relative_path_in_order(tmp_path: Path) -> None:
    put(tmp_path, b_txt="bee", a_md="# A", sub__c_rst="cee", sub__page_html="<p>dee", sub__e_pdf=pdf("eee"))
    documents = list(load_documents([tmp_path]))
    assert [document.id for document in documents] == [
        "a.md",
        "b.txt",
        "sub/c.rst",
        "sub/e.pdf",
        "sub/page.html",
    ]
    assert [document.text for document in documents] == ["# A", "bee", "cee", "eee", "dee"]


def test_hidden_files_are_silent_and_unknown_types_are_counted(tmp_path: Path) -> None:
    put(
        tmp_path,
        a_txt="a",
        x_png=b"\x89PNG",
        y_PNG=b"\x89",
        Makefile="all:",
        _hidden_txt="h",
        _git__b_txt="h",
    )
    log = LoadLog()
    assert [document.id for document in load_documents([tmp_path], log=log)] == ["a.txt"]
    assert log.passed_over == {".png": 2, "without suffix": 1}


def test_a_single_file_goes_by_its_name(tmp_path: Path) -> None:
    put(tmp_path, sub__a_txt="a")
    assert [document.id for document in load_documents([tmp_path / "sub" / "a.txt"])] == ["a.txt"]


def test_line_ends_and_byte_order_marks_are_made_uniform(tmp_path: Path) -> None:
    put(tmp_path, a_txt=b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert next(load_documents([tmp_path])).text == "one\ntwo\nthree\n"


def test_html_gives_what_a_reader_sees(tmp_path: Path) -> None:
    put(tmp_path, a_html=HTML)
    document = next(load_documents([tmp_path]))
    assert document.metadata == {"title": "The title"}
    assert document.text == (
        "Head\n\nOne bold word, on two lines.\n\nfirst\nsecond\n\ndef f():\n    return 1\n\na b\nc"
    )


def test_html_of_another_declared_encoding_is_read(tmp_path: Path) -> None:
    put(tmp_path, a_html='<meta charset="iso-8859-1"><p>caf\u00e9'.encode("latin-1"))
    assert next(load_documents([tmp_path])).text == "caf\u00e9"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_jsonl_rows_bring_id_text_and_metadata(tmp_path: Path, name: str) -> None:
    rows = [{"id": "a", "text": "one\r\n", "year": 1999, "tags": ["x"]}, {"id": 7, "text": "two"}]
    data = "\n\n".join(map(json.dumps, rows)).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    first, second = load_documents([tmp_path / name])
    assert (first.id, first.text, first.metadata) == ("a", "one\r\n", {"year": 1999, "tags": ["x"]})
    assert (second.id, second.text, second.metadata) == ("7", "two", {})


FAULTS: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.txt", b"", "holds no text"),
    "white space": ("a.md", b" \n\t", "holds no text"),
    "NUL byte": ("a.txt", b"abc\0def", "NUL byte at offset 3"),
    "UTF-8": ("a.rst", b"abc\n\xff\xfe", "byte 0xff at offset 4 is not valid UTF-8"),
    "UTF-8 behind a byte order mark": ("a.txt", b"\xef\xbb\xbfab\xff", "offset 5"),
    "HTML": ("a.html", b"<p>\xff", "byte 0xff at offset 3"),
    "HTML of an unknown encoding": ("a.html", b'<meta charset="klingon">\xff', "unusable encoding klingon"),
    "PDF": ("a.pdf", b"%PDF-1.4 rubbish", "pypdf cannot read it"),
    "PDF without text": ("a.pdf", pdf(""), "only images"),
    "too large": ("a.txt", b"x" * 2001, r"it has 0\.0 MB.*--max-document-mb"),
    "JSON": ("a.jsonl", b"{", "line 1 is not JSON"),
    "JSON array": ("a.jsonl", b"\n[]", "line 2 is not an object"),
    "row without an id": ("a.jsonl", b'{"text": "x"}', "line 1 has no string under 'id'"),
    "row without a text": ("a.jsonl", b'{"id": "x", "text": null}', "line 1 has no string under 'text'"),
    "row without words": ("a.jsonl", b'{"id": "x", "text": ""}', "document 'x' holds no text"),
    "half a surrogate pair": (
        "a.jsonl",
        b'{"id": "x", "text": "ab\\ud800"}',
        "surrogate pair at character 2",
    ),
    "half a surrogate pair in metadata": (
        "a.jsonl",
        b'{"id": "x", "text": "ab", "author": "\\ud800"}',
        "metadata of the document 'x' holds half a surrogate pair",
    ),
    "JSON nested too deep": ("a.jsonl", b'{"id":' + b"[" * 1990, "line 1 is not JSON"),
    "row too large": ("a.jsonl", b'{"id": "x", "text": "%s"}' % (b"y" * 2000), "line 1 is longer"),
    "gzip": ("a.jsonl.gz", b"no gzip", "gzip data is damaged"),
    "gzip cut short": (
        "a.jsonl.gz",
        gzip.compress(b'{"id": "x", "text": "x"}\n')[:-9],
        "gzip data is damaged",
    ),
}


@pytest.mark.parametrize(("name", "data", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_file_is_an_error_that_names_file_reason_and_remedy(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(
        InputError, match=rf"{re.escape(str(tmp_path / name))}: .*{message}.*--skip-unreadable"
    ):
        list(load_documents([tmp_path], max_document_bytes=2000))


@pytest.mark.parametrize(("name", "data", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_file_can_be_skipped_and_is_then_reported(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "z.txt").write_text("good")
    log = LoadLog()
    documents = load_documents([tmp_path], max_document_bytes=2000, skip_unreadable=True, log=log)
    assert "good" in {document.text for document in documents}
    [reported] = log.skipped
    assert re.search(message.split(".*")[0], reported)


def test_good_rows_around_a_bad_one_are_kept(tmp_path: Path) -> None:
    rows = [
        '{"id": "a", "text": "one"}',
        "{",
        '{"id": "b", "text": "%s"}' % ("y" * 3000),
        '{"id": "c", "text": "x"}',
    ]
    put(tmp_path, a_jsonl="\n".join(rows))
    documents = load_documents([tmp_path], max_document_bytes=1000, skip_unreadable=True)
    assert [document.id for document in documents] == ["a", "c"]


def test_a_document_of_50_mb_is_refused_by_default(tmp_path: Path) -> None:
    with (tmp_path / "big.txt").open("wb") as handle:
        handle.truncate(50_000_000)
    with pytest.raises(InputError, match=r"50\.0 MB, the limit is 32; raise --max-document-mb"):
        list(load_documents([tmp_path]))


def test_an_id_that_occurs_twice_is_an_error_that_names_both_files(tmp_path: Path) -> None:
    put(tmp_path, one__a_txt="a", two__a_txt="b")
    with pytest.raises(InputError, match=r"Two documents have the id 'a\.txt'.*one.a\.txt.*two.a\.txt"):
        list(load_documents([tmp_path / "one", tmp_path / "two"]))


def test_paths_that_overlap_are_refused(tmp_path: Path) -> None:
    put(tmp_path, sub__a_txt="a")
    with pytest.raises(InputError, match="overlap"):
        list(load_documents([tmp_path, tmp_path / "sub" / "a.txt"]))


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist; give"):
        list(load_documents([tmp_path / "nowhere"]))


def test_a_named_file_of_unknown_type_is_an_error_that_lists_the_known(tmp_path: Path) -> None:
    put(tmp_path, a_docx=b"PK")
    with pytest.raises(InputError, match=r"a\.docx is of an unknown type.*\.md.*\.jsonl\.gz"):
        list(load_documents([tmp_path / "a.docx"]))


@pytest.mark.parametrize("files", [{}, {"x_png": b"\x89"}])
def test_a_corpus_without_documents_is_an_error(tmp_path: Path, files: dict[str, bytes]) -> None:
    put(tmp_path, **files)
    with pytest.raises(InputError, match=rf"no document in .*\({len(files)} files of unknown type\)"):
        list(load_documents([tmp_path]))


def test_a_store_inside_the_folder_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    inside = tmp_path / "store" / "generation-000001"
    inside.mkdir(parents=True)
    (inside.parent / "header.json").write_text("{}")
    (inside / "documents.jsonl").write_text('{"id": "a.txt", "text": "words"}')
    assert [document.id for document in load_documents([tmp_path])] == ["a.txt"]


def test_markup_that_the_parser_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<![n <p>x")
    with pytest.raises(InputError, match=r"a\.html.*cannot be parsed"):
        list(load_documents([tmp_path]))
