"""A sealed segment: one file that is mapped, never read whole and never changed.

Layout of the file::

    header     magic, CRC-32 and JSON, spaces up to 4,096 bytes
    text       the tokens, 2 or 4 bytes each, with separators
    rows       their order by context, 4 bytes each
    keys       the top table, 8 bytes for every 32nd row and again for every 2,048th
    starts     where each document starts, 4 bytes each
    order      the documents by id (its bytes in the record), 4 bytes each
    offsets    where each record starts, 8 bytes each
    records    id and metadata of each document (JSON)
    checksums  CRC-32 of every 64 KiB of the file before, from the end of the header on

Sections start at multiples of 64. The header is written last: a file without one was never finished.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.parts import Part, Records, encoded
from groundspeed.errors import StoreError
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from groundspeed.datastores.merging import Merge

__all__ = ["check_segment", "open_segment", "write_segment"]

VERSION = 3
_MAGIC = b"GSSEG\r\n\x1a"
_FIXED = struct.Struct("<8sI")  # magic, CRC-32 of the rest of the header
_HEADER_BYTES = 4096
_BLOCK = 1 << 16
_ALIGNMENT = 64
_READ_BYTES = 1 << 22  # of blocks whose checksums one thread takes at a time
_SYNC_BYTES = 1 << 22  # written at once; while more goes to the disk, a durable append waits for it


class MappedDocuments:
    """The document table of a mapped segment."""

    def __init__(self, path: Path, records: Records) -> None:
        self._path = path
        self._records = records

    def __len__(self) -> int:
        return len(self._records.order)

    def id(self, number: int) -> str:
        """The id of a document."""
        return self._decoded(number)[0]

    def metadata(self, number: int) -> Mapping[str, Any]:
        """The metadata of a document."""
        return self._decoded(number)[1]

    def find(self, document_id: str) -> list[int]:
        """The documents with an id."""
        wanted = encoded(document_id)  # ends with a quote, so no other id begins like it

        def start(at: int) -> bytes:
            record = self._record(int(self._records.order[at]))
            return record[record[:1] == b"[" :][: len(wanted)]

        low = bisect_left(range(len(self)), wanted, key=start)
        high = bisect_right(range(len(self)), wanted, lo=low, key=start)
        return [int(number) for number in self._records.order[low:high]]

    def records(self) -> Records:
        """All of them, as they are in the file; nothing leads out of the arrays."""
        offsets, order = self._records.offsets, self._records.order
        rising = offsets[0] == 0 and offsets[-1] == len(self._records.data) and np.all(np.diff(offsets) > 0)
        if not rising or np.any(order >= len(order)):
            raise damaged(self._path, 0, "the table of documents does not fit the records")
        return self._records

    def _record(self, number: int) -> bytes:
        offsets = self._records.offsets
        return self._records.data[offsets[number] : offsets[number + 1]].tobytes()

    def _decoded(self, number: int) -> tuple[str, Mapping[str, Any]]:
        try:
            record = json.loads(self._record(number))
            document_id, metadata = (record, {}) if isinstance(record, str) else record
            return str(document_id), dict(metadata)
        except (ValueError, TypeError, IndexError) as error:
            raise damaged(
                self._path, 0, f"the record of document {number} cannot be read ({error})"
            ) from error


def write_segment(path: Path, merge: Merge, on_progress: ProgressCallback | None = None) -> None:
    """Write the live documents of some pieces as one segment; memory stays bounded.

    Args:
        path: The new file; a crash leaves one that ``open_segment`` refuses and no manifest names.
        merge: What to write.
        on_progress: Is told the rows done, as the stage ``merge``.
    """
    from groundspeed.datastores.search import top_keys

    dtype = merge.pieces[0].part.text.dtype
    with path.open("w+b") as handle, ThreadPoolExecutor(1) as pool:
        sections: dict[str, tuple[int, int]] = {}
        handle.seek(_HEADER_BYTES)
        syncing: Future[None] = pool.submit(lambda: None)  # the disk writes while more is made ready

        def section(name: str, chunks: Iterable[NDArray[Any]]) -> None:
            nonlocal syncing
            handle.seek(-handle.tell() % _ALIGNMENT, io.SEEK_CUR)
            start = synced = handle.tell()
            for chunk in chunks:
                handle.write(np.ascontiguousarray(chunk).data)
                if handle.tell() - synced >= _SYNC_BYTES:
                    syncing.result()
                    syncing = pool.submit(os.fsync, handle.fileno())
                    synced = handle.tell()
            sections[name] = (start, handle.tell() - start)

        def rows() -> Iterator[NDArray[np.uint32]]:
            done = 0
            for batch in merge.rows():
                yield batch
                done += len(batch)
                if on_progress is not None:
                    on_progress("merge", done, merge.symbols)

        section("text", merge.text())
        section("rows", rows())
        handle.flush()
        text = _mapped(handle.fileno(), dtype, sections["text"])
        sorted_rows = _mapped(handle.fileno(), np.dtype(np.uint32), sections["rows"])
        section("keys", [top_keys(text, sorted_rows) if merge.keys is None else merge.keys])
        section("starts", [merge.starts])
        section("order", [merge.order()])
        section("offsets", [merge.offsets()])
        section("records", merge.records())
        handle.seek(-handle.tell() % _ALIGNMENT, io.SEEK_CUR)
        end = handle.tell()
        handle.truncate(end)
        handle.flush()
        checksums = np.array(list(_block_checksums(handle.fileno(), end)), "<u4")
        sections["checksums"] = (end, checksums.nbytes)
        handle.write(checksums.data)
        syncing.result()
        header = json.dumps(
            {
                "format": "groundspeed segment",
                "version": VERSION,
                "token_bytes": dtype.itemsize,
                "symbols": merge.symbols,
                "documents": len(merge.starts) - 1,
                "sections": sections,
                "checksums_crc": crc32(checksums.data),
            }
        ).encode()
        header = header.ljust(_HEADER_BYTES - _FIXED.size)
        handle.seek(0)
        handle.write(_FIXED.pack(_MAGIC, crc32(header)) + header)
        handle.flush()
        os.fsync(handle.fileno())


def open_segment(path: Path, *, large_pages: bool = False) -> Part:
    """Map a segment; takes the same time and memory whatever its size.

    Args:
        path: The file.
        large_pages: Whether Linux shall read it in pages of 2 MB, where the file system can: questions then
            wait less often for the translation of an address, and the first ones read more than they need.

    Raises:
        FileNotFoundError: It is not there; the caller knows whether it should be.
        StoreError: It is cut short, or its header is damaged or of a newer version.
    """
    with path.open("rb") as handle:
        header = _read_header(path, handle.fileno())
        sections = {name: (start, size) for name, (start, size) in header["sections"].items()}
        size, wanted = os.fstat(handle.fileno()).st_size, sum(sections["checksums"])
        if size != wanted:
            raise damaged(path, min(size, wanted), f"it has {size:,} bytes instead of {wanted:,}")
        text_type = np.dtype(np.uint16 if header["token_bytes"] == 2 else np.uint32)

        def array(name: str, dtype: Any) -> NDArray[Any]:
            return _mapped(handle.fileno(), np.dtype(dtype), sections[name], large_pages)

        records = Records(array("records", np.uint8), array("offsets", np.int64), array("order", np.uint32))
        return Part(
            text=array("text", text_type),
            rows=array("rows", np.uint32),
            keys=array("keys", np.uint64),
            starts=array("starts", np.uint32),
            documents=MappedDocuments(path, records),
            name=path.name,
        )


def check_segment(path: Path, on_progress: ProgressCallback | None = None) -> None:
    """Compare every checksum of a segment.

    Raises:
        StoreError: Naming the file and the offset of the first damage.
    """
    try:
        open_segment(path)
    except FileNotFoundError as error:
        raise damaged(path, 0, "the file is missing") from error
    with path.open("rb") as handle:
        header = _read_header(path, handle.fileno())
        start, size = header["sections"]["checksums"]
        data = os.pread(handle.fileno(), size, start)
        if crc32(data) != header["checksums_crc"]:
            raise damaged(path, start, "the table of checksums does not fit its own")
        wanted = np.frombuffer(data, "<u4").tolist()
        if len(wanted) != -(-(start - _HEADER_BYTES) // _BLOCK):
            raise damaged(path, start, "the table of checksums has another length than the blocks ask for")
        for block, found in enumerate(_block_checksums(handle.fileno(), start)):
            if found != wanted[block]:
                offset = _HEADER_BYTES + block * _BLOCK
                raise damaged(path, offset, f"the checksum of the {_BLOCK:,} bytes there does not fit")
            if on_progress is not None:
                on_progress("verify", (block + 1) * _BLOCK, start)


def damaged(path: Path, offset: int, what: str) -> StoreError:
    """The error for a damaged file of a store."""
    return StoreError(
        f"{path} is damaged at byte {offset:,}: {what}. Run `groundspeed datastore verify --set-aside "
        f"--store {path.parent}` to go on without it, and add its documents again."
    )


def _read_header(path: Path, descriptor: int) -> dict[str, Any]:
    head = os.pread(descriptor, _HEADER_BYTES, 0)
    if len(head) < _HEADER_BYTES:
        raise damaged(path, len(head), "it ends within its header")
    magic, checksum = _FIXED.unpack_from(head)
    data = head[_FIXED.size :]
    if magic != _MAGIC or crc32(data) != checksum:
        raise damaged(path, 0, "the header does not fit its checksum")
    header: dict[str, Any] = json.loads(data)
    if header["version"] != VERSION:
        remedy = "upgrade groundspeed" if header["version"] > VERSION else "build the store again"
        raise StoreError(
            f"{path} has format version {header['version']}, this groundspeed reads version {VERSION}; "
            f"{remedy}."
        )
    return header


def _mapped(
    descriptor: int, dtype: np.dtype[Any], section: tuple[int, int], large_pages: bool = False
) -> NDArray[Any]:
    start, size = section
    if size == 0:
        empty = np.empty(0, dtype)
        empty.flags.writeable = False
        return empty
    page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    data = mmap.mmap(descriptor, start + size - page, access=mmap.ACCESS_READ, offset=page)
    if large_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            data.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(data, dtype, size // dtype.itemsize, start - page)


def _block_checksums(descriptor: int, end: int) -> Iterator[int]:
    """Checksums of the blocks of a file; all cores take part."""

    def stretch(begin: int) -> list[int]:
        size = min(_READ_BYTES, end - begin)
        data = memoryview(os.pread(descriptor, size, begin))
        return [crc32(data[at : at + _BLOCK]) for at in range(0, size, _BLOCK)]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for checksums in pool.map(stretch, range(_HEADER_BYTES, end, _READ_BYTES)):
            yield from checksums
