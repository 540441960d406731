"""Passes over paged KV caches: one upload each, in shapes that come again and are then replayed."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.verify.base import Segment
from groundspeed.verify.cache import chunks_of
from groundspeed.verify.devices import Driver
from groundspeed.verify.paged_attention import PagedAttention, PassInputs, Shape, pack
from groundspeed.verify.pages import PagedCache, PagePool
from groundspeed.verify.sessions import TreeSession
from groundspeed.verify.top_tokens import fetch_leading

if TYPE_CHECKING:
    from groundspeed.verify.target import TransformersTarget

__all__ = ["PagedPasses", "Replays"]

_LEAST_ROWS, _MOST_ROWS = 4, 64
"""Rows of a text in a pass of fixed shape; longer pieces of a prompt are computed as they come."""

_MOST_TOKENS = 512
"""Rows of such a pass in all: beyond, launching it takes less time than computing it."""

_LEAST_PAGES = 4

_MOST_RECORDED = 64
"""Shapes that are kept recorded, those used last."""

logger = logging.getLogger(__name__)


class Replays:
    """Runs passes of fixed shapes, and replays what it has recorded.

    A shape is recorded when it is run for the first time. Where that fails, no further one is recorded, and
    passes are run anew each time.
    """

    def __init__(self, driver: Driver, run: Callable[[Shape, torch.Tensor], torch.Tensor]) -> None:
        """Nothing is recorded yet.

        Args:
            driver: Of the device.
            run: A pass of a shape, with its inputs int64 [n], to logits [tokens, vocab].
        """
        self._driver = driver
        self._run = run
        self._recorded: OrderedDict[Shape, tuple[torch.Tensor, Callable[[], object]]] = OrderedDict()
        self._logits: torch.Tensor | None = None  # where all recorded passes put them
        self._refused = False

    def __len__(self) -> int:
        """Shapes that are recorded."""
        return len(self._recorded)

    def __call__(self, shape: Shape, inputs: torch.Tensor) -> torch.Tensor:
        """The logits [tokens, vocab] of a pass, good until the next one."""
        if shape not in self._recorded:
            logits = self._run(shape, inputs)
            self._record(shape, inputs, logits)
            return logits
        self._recorded.move_to_end(shape)
        own, replay = self._recorded[shape]
        own.copy_(inputs)
        replay()
        assert self._logits is not None
        return self._logits[: shape.tokens]

    def forget(self) -> None:
        """Drop what is recorded, as after something it reads has moved."""
        self._recorded.clear()

    def _record(self, shape: Shape, inputs: torch.Tensor, logits: torch.Tensor) -> None:
        if self._refused:
            return
        if self._logits is None:
            self._logits = logits.new_empty(_MOST_TOKENS, logits.shape[1])
        out, own = self._logits[: shape.tokens], inputs.clone()
        try:
            replay = self._driver.capture(lambda: out.copy_(self._run(shape, own)))
        except Exception as error:  # whatever a model's own code does that cannot be recorded
            self._refused = True
            self.forget()
            logger.warning("passes are not recorded, each is launched anew: %s", error, exc_info=error)
            return
        self._recorded[shape] = own, replay
        if len(self._recorded) > _MOST_RECORDED:
            self._recorded.popitem(last=False)


class PagedPasses:
    """Takes texts with paged caches through a model.

    Attributes:
        pool: The pages of their caches.
        replays: What is recorded.
    """

    def __init__(self, target: TransformersTarget, driver: Driver) -> None:
        """Get ready.

        Args:
            target: The model, whose layout is complete.
            driver: Of its device.
        """
        self.pool = PagePool(target.layout)
        self.replays = Replays(driver, self._forward)
        self._target = target
        self._driver = driver
        self._moved = self.pool.moved

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Have room for texts of so many tokens in all, and record what a single text meets first."""
        self.pool.reserve(tokens)
        self._mind_moves()
        for pages in (_LEAST_PAGES, 2 * _LEAST_PAGES):
            for rows in (2**i for i in range(_LEAST_ROWS.bit_length() - 1, _MOST_ROWS.bit_length())):
                shape = Shape(1, rows, pages)
                self.replays(shape, self._upload(pack(shape, (), ())))

    def open(self, capacity: int, like: TreeSession | None, length: int) -> TreeSession:
        """Start a text; see ``TargetModel``."""
        before = None if like is None else like.cache
        assert before is None or isinstance(before, PagedCache)
        return TreeSession(PagedCache(self.pool, capacity, before, length))

    @torch.inference_mode()
    def verify(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """See ``TargetModel``; the device is waited for once, in the end."""
        self._mind_moves()
        groups = _groups(segments)
        passes = [self._verify([segments[i] for i in group]) for group in groups]
        fetch_leading(passes, self._driver.fetch)
        for segment in segments:
            _cache_of(segment).advance(len(segment.token_ids))
        logits = {
            i: part
            for group, (_, parts) in zip(groups, passes, strict=True)
            for i, part in zip(group, parts, strict=True)
        }
        return [logits[i] for i in range(len(segments))]

    def _verify(self, segments: Sequence[Segment]) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """One pass: its logits, and those by segment [rows + n, vocab], views of the first rows of it."""
        caches = [_cache_of(segment) for segment in segments]
        shape, fixed = _shape_of(segments)
        moves = np.concatenate([cache.moves for cache in caches], 1)
        counts = [segment.rows + len(segment.tree) if segment.rows else 0 for segment in segments]
        wanted = [
            text * shape.rows + row
            for text, (segment, count) in enumerate(zip(segments, counts, strict=True))
            for row in range(_rows_of(segment) - count, _rows_of(segment))
        ]
        values = np.concatenate((pack(shape, segments, caches), *moves, wanted or [0]), dtype=np.int64)
        inputs, source, target, rows = torch.split(
            self._upload(values), [shape.inputs, moves.shape[1], moves.shape[1], max(len(wanted), 1)]
        )
        if moves.size:
            self.pool.move(source, target)
            for cache in caches:
                cache.moves = cache.moves[:, :0]
        if fixed:
            logits = self.replays(shape, inputs).index_select(0, rows)
        else:
            logits = self._forward(shape, inputs, rows)
        return logits, torch.split(logits[: len(wanted)], counts)

    def _upload(self, values: NDArray[np.int64]) -> torch.Tensor:
        inputs = torch.empty(len(values), dtype=torch.int64, device=self.pool.device)
        self._driver.upload(values, inputs)
        return inputs

    def _mind_moves(self) -> None:
        if self.pool.moved != self._moved:
            self.replays.forget()
            self._moved = self.pool.moved

    def _forward(self, shape: Shape, values: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """A pass of the model: the logits of some of its tokens, by default of all, [n, vocab]."""
        inputs = PassInputs.cut(shape, values)
        pattern = PagedAttention(self.pool, shape, inputs, self._target.layers)
        return self._target.run(inputs.token_ids.reshape(1, -1), pattern, rows)


def _cache_of(segment: Segment) -> PagedCache:
    assert isinstance(segment.session, TreeSession)
    cache = segment.session.cache
    assert isinstance(cache, PagedCache)
    return cache


def _rows_of(segment: Segment) -> int:
    return len(segment.token_ids) + len(segment.tree)


def _groups(segments: Sequence[Segment]) -> list[list[int]]:
    """Which segments go together: short ones do, and longer pieces of prompts go alone."""
    short = [i for i, segment in enumerate(segments) if _rows_of(segment) <= _MOST_ROWS]
    alone = [[i] for i in range(len(segments)) if i not in short]
    return [*([short] if short else []), *alone]


def _shape_of(segments: Sequence[Segment]) -> tuple[Shape, bool]:
    """The shape of a pass, and whether it is one of those that come again."""
    texts = len(segments)
    rows = max(_rows_of(segment) for segment in segments)
    pages = max(chunks_of(segment.session.length + _rows_of(segment)) for segment in segments)
    rounded = Shape(
        _power_of_two(texts),
        _power_of_two(max(rows, _LEAST_ROWS)),
        _power_of_two(max(pages, _LEAST_PAGES)),
    )
    if rows <= _MOST_ROWS and rounded.tokens <= _MOST_TOKENS:
        return rounded, True
    return Shape(texts, rows, pages), False


def _power_of_two(number: int) -> int:
    """The least one that is not below."""
    return 1 << (number - 1).bit_length()
