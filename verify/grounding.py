"""Grounding: which stretches of an answer stand verbatim in its passages.

Computed from the finished texts alone, so the spans are complete and the same with and without speculation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate

from groundspeed.errors import InputError
from groundspeed.types import GroundedSpan, Passage

__all__ = ["ground", "stretches"]


def ground(text: str, passages: Sequence[Passage], min_chars: int = 24) -> tuple[GroundedSpan, ...]:
    """Find the spans of ``text`` that stand verbatim in ``passages`` and what is known to follow them.

    Candidates are the copies that no passage extends on either side. Where they overlap, the longest wins
    (then the passage that comes first, then the earlier place); what is left of the others stays a candidate
    while it has ``min_chars`` characters.

    Args:
        text: The answer.
        passages: Best first.
        min_chars: Shortest span to report.

    Returns:
        Spans in answer order, disjoint. A span that runs across passages which overlap or touch in their
        document names the best one that holds its beginning, else the best one that it follows.

    Raises:
        InputError: ``min_chars`` is below 1.
    """
    if min_chars < 1:
        raise InputError(f"min_chars is {min_chars}, but a span has at least 1 character; pass 1 or more.")
    # Joined by a character the answer lacks, one search covers all passages and matches none of the seams.
    present = set(text)
    seam = next(character for character in map(chr, range(len(present) + 1)) if character not in present)
    sources = stretches(passages)
    joined = seam.join(source for _, _, source in sources)
    starts = list(accumulate((len(source) + 1 for _, _, source in sources), initial=0))

    spans = []
    for start, end, place in _disjoint(_maximal_copies(text, joined, min_chars), min_chars):
        index = bisect_right(starts, place) - 1
        best, first, _ = sources[index]
        document_id = passages[best].document_id
        document_start = first + place - starts[index]
        spans.append(
            GroundedSpan(
                start=start,
                end=end,
                document_id=document_id,
                document_start=document_start,
                document_end=document_start + end - start,
                text=text[start:end],
                passage=_holder(passages, document_id, document_start),
            )
        )
    return tuple(spans)


def stretches(passages: Sequence[Passage]) -> list[tuple[int, int, str]]:
    """Join passages, with what follows them, where they overlap or touch in their document.

    Returns:
        (index of the best passage, offset in its document, text) per stretch, in the order of the indices.
    """
    found: list[tuple[int, int, str]] = []
    order = sorted(range(len(passages)), key=lambda i: (passages[i].document_id, passages[i].start, i))
    for index in order:
        passage = passages[index]
        whole = passage.text + passage.following
        if found:
            best, start, text = found[-1]
            at = passage.start - start
            both = min(len(text) - at, len(whole))
            if (
                passages[best].document_id == passage.document_id
                and both >= 0
                and text[at : at + both] == whole[:both]
            ):
                found[-1] = (min(best, index), start, text + whole[both:])
                continue
        found.append((index, passage.start, whole))
    return sorted(found)


def _holder(passages: Sequence[Passage], document_id: str, place: int) -> int:
    """The best passage that holds a place of a document, else the best one that the place follows."""
    known = [
        i
        for i, passage in enumerate(passages)
        if passage.document_id == document_id
        and 0 <= place - passage.start < len(passage.text) + len(passage.following)
    ]
    return min(known, key=lambda i: (place >= passages[i].end, i))


def _maximal_copies(text: str, source: str, min_chars: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, place): ``text[start:end]`` stands first at ``source[place]`` and is maximal.

    A window [start, end) slides over the text: it grows at the end while it is a copy and shrinks at the
    start when it is not. Starts and ends of what is yielded both rise.
    """
    # A copy of min_chars holds a whole block of this many characters, wherever in the source it begins. Most
    # of an answer that was not copied has no block of the source at all and needs no search.
    block = (min_chars + 1) // 2
    blocks = {source[i : i + block] for i in range(0, len(source) - block + 1, block)}
    seeds = [i for i in range(len(text) - block + 1) if text[i : i + block] in blocks]

    start, end = 0, min_chars
    while end <= len(text):
        place = source.find(text[start:end])
        if place >= 0:
            length = end - start
            while end < len(text) and source[place + length : place + length + 1] == text[end]:
                end, length = end + 1, length + 1
            if end == len(text) or source.find(text[start : end + 1], place) < 0:
                yield start, end, place
            end += 1
            continue
        # The longest copy that ends here starts at the first of the starts whose window is a copy.
        start = bisect_left(
            range(len(text)), True, start + 1, end - min_chars + 1, key=lambda i: text[i:end] in source
        )
        if start > end - min_chars:
            seed = bisect_left(seeds, start)
            if seed == len(seeds):
                return
            start = max(start, seeds[seed] + block - min_chars)
            end = start + min_chars


def _disjoint(copies: Iterator[tuple[int, int, int]], min_chars: int) -> list[tuple[int, int, int]]:
    """Resolve overlaps, longest first. Takes and returns (start, end, place), in order of start."""
    waiting = [(start - end, place, start) for start, end, place in copies]
    heapify(waiting)
    taken: list[tuple[int, int, int]] = []
    while waiting:
        negative_length, place, start = heappop(waiting)
        end = start - negative_length
        # What is taken is at least as long, so it can only overlap on the left or on the right.
        at = bisect_left(taken, (start, end, place))
        left = max(start, taken[at - 1][1]) if at else start
        right = min(end, taken[at][0]) if at < len(taken) else end
        if (left, right) == (start, end):
            taken.insert(at, (start, end, place))
        elif right - left >= min_chars:
            heappush(waiting, (left - right, place + left - start, left))
    return taken
