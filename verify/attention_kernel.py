"""Attention of steps on the CPU: a few rows each of many texts, in one call per layer.

Keys are looked at in chunks at fixed positions of the text, the chunks of a row are joined by their maxima
and sums (as Flash-Decoding does, Dao et al. 2023), and every sum is taken in order of the positions. A draft
node gathers the keys of its own path in that order, wherever they stand in the cache. So a row comes out the
same to the bit with a draft and without, alone and beside other texts.

From bfloat16, where the processor can, two terms are multiplied at once (see ``entries``); weights are
rounded to it then, as in fused attention. Sums are float32 always.

Chunks are shared out among threads. The last chunk of a text, the one that the pass itself writes to, takes
in the new keys and values before it is looked at. Caches hold what is multiplied, as it is multiplied, except
where bfloat16 has to be widened.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import cache

import numba
import numpy as np

from groundspeed.datastores.views import view
from groundspeed.jit import c_kernel, kernel
from groundspeed.verify.attention_tables import (
    CALL_COLUMNS,
    CAUSAL,
    CHUNK_NUMBER,
    CHUNKS,
    CLAIMS,
    FIRST_ROW,
    GROUP,
    GROUPS,
    HEADS,
    HELD,
    KEY,
    KEY_CACHE,
    KEY_HEAD,
    KEY_ROW,
    KEY_SIZE,
    PARTIALS,
    PATH_STRIDE,
    PATHS,
    POSITIONS,
    PREFIX,
    QUERY,
    QUERY_HEAD,
    QUERY_ROW,
    ROOM,
    ROWS,
    SEGMENT,
    SETTINGS,
    TASK_COLUMNS,
    TASK_TABLE,
    TASKS,
    VALUE,
    VALUE_CACHE,
    VALUE_HEAD,
    VALUE_ROW,
    VALUE_SIZE,
    WINDOW,
    partial_floats,
    place_of,
    segment_of,
)
from groundspeed.verify.cache import CHUNK
from groundspeed.verify.claims import claim, home
from groundspeed.verify.entries import in_place, pack, per_entry, pick, settle, widen_all
from groundspeed.verify.vectors import TILE_LANES, TILE_ROWS, add_tile_row, exp, scale, tile, total

__all__ = ["LONGEST_STEP", "attend"]

LONGEST_STEP = 64
"""Most rows of one text in a pass."""

_SLOTS = 2 * CHUNK  # that the last task of a text looks at: the nodes may run on into another chunk


@cache
def attend(bits: int, *, pairs: bool) -> int:
    """Compile the attention of a layer.

    Args:
        bits: Of what the caches hold, 32 for float32, 16 for bfloat16.
        pairs: Whether bfloat16 lies and is multiplied in pairs, as some processors can; else it is widened.

    Returns:
        Address of a C function of one pointer, to int64 [CALL_COLUMNS]; it takes tasks until none is left.
    """

    def attend_single(pointer):  # pragma: no cover - runs as machine code
        run_tasks(numba.carray(pointer, (CALL_COLUMNS,)), np.empty(0, np.float32), np.empty(0, np.float32))

    def attend_half(pointer):  # pragma: no cover - runs as machine code
        run_tasks(numba.carray(pointer, (CALL_COLUMNS,)), np.empty(0, np.uint16), np.empty(0, np.float32))

    def attend_pairs(pointer):  # pragma: no cover - runs as machine code
        run_tasks(numba.carray(pointer, (CALL_COLUMNS,)), np.empty(0, np.uint16), np.empty(0, np.uint32))

    half = attend_pairs if pairs else attend_half
    return c_kernel(attend_single if bits == 32 else half)


@kernel
def run_tasks(call, like, entry):
    """Take tasks until none is left, see ``attend``.

    Args:
        call: int64 [CALL_COLUMNS].
        like: Array of what the caches hold.
        entry: Array of what is multiplied, see ``entries``.
    """
    far = np.int64(1) << 40
    tasks = view(call[TASK_TABLE], call[TASKS] * TASK_COLUMNS, np.int64)
    query, key, value = view(call[QUERY], far, like), view(call[KEY], far, like), view(call[VALUE], far, like)
    positions = view(call[POSITIONS], far, np.int32)
    paths = view(call[PATHS], far, np.int32)
    settings = view(call[SETTINGS], 2, np.float32)
    scaling, cap = settings[0], settings[1]
    window, stride = call[WINDOW], call[PATH_STRIDE]
    key_size, value_size = call[KEY_SIZE], call[VALUE_SIZE]
    shared = call[HEADS] // call[GROUPS]  # query heads that share a key/value head
    floats = partial_floats(value_size)
    wide = floats - 2
    each = per_entry(entry)
    deep = (key_size + each - 1) // each  # entries of a query
    key_bytes, value_bytes = deep * each * like.itemsize, value_size * like.itemsize  # of a position
    queries = np.empty((shared * LONGEST_STEP + TILE_ROWS, deep), entry.dtype)
    seen = np.empty(shared * LONGEST_STEP, np.int64)  # by query, just past the last position that it sees
    gathered = np.empty(CHUNK, np.float32)
    # Tiles may reach behind the last row, where what they make is of no account.
    own = np.zeros(CHUNK // each * value_size + TILE_LANES, entry.dtype)
    widened_keys = np.empty(0 if in_place(like, entry) else _SLOTS * key_size, np.float32)
    widened_values = np.empty(0 if in_place(like, entry) else _SLOTS * value_size + TILE_LANES, np.float32)
    packed = np.zeros((TILE_ROWS, CHUNK // each), entry.dtype)
    scores = np.empty((TILE_ROWS, _SLOTS), np.float32)
    weights = np.empty(CHUNK, np.float32)
    sums = np.empty((TILE_ROWS, wide), np.float32)
    # Addresses are taken once: every use of an array as such counts a reference.
    at_queries, at_keys, at_values = address(queries), address(widened_keys), address(widened_values)
    at_scores, at_packed, at_sums = address(scores), address(packed), address(sums)
    at_gathered, at_weights, at_own = address(gathered), address(weights), address(own)
    own_tasks = home(call[CLAIMS])
    following = claim(call[CLAIMS], call[TASKS], own_tasks) * TASK_COLUMNS
    while following < len(tasks):
        task, following = following, claim(call[CLAIMS], call[TASKS], own_tasks) * TASK_COLUMNS
        next_keys, next_values = stored_at(
            call, tasks, following if following < len(tasks) else task, key_bytes, value_bytes
        )
        group, chunk = tasks[task + GROUP], tasks[task + CHUNK_NUMBER]
        segment = segment_of(call, tasks[task + SEGMENT])
        first, rows, prefix = segment[FIRST_ROW], segment[ROWS], segment[PREFIX]
        held = segment[HELD]
        start = chunk * CHUNK
        last = prefix < start + CHUNK  # the pass itself writes here
        causal = segment[CAUSAL] or not last
        stored = min(prefix - start, CHUNK)
        slots = stored + held + rows if last else stored
        if last:
            at = segment[KEY_CACHE] + group * segment[ROOM] * CHUNK * key_bytes
            key_cache = view(at, far, like)
            at = segment[VALUE_CACHE] + group * segment[ROOM] * CHUNK * value_bytes
            value_cache = view(at, far, like)
            for row in range(rows):
                place = prefix + held + row
                at = group * call[KEY_HEAD] + (first + row) * call[KEY_ROW]
                to = place // CHUNK * deep * CHUNK + place % CHUNK
                for d in range(deep * each):
                    one = key[at + d] if d < key_size else like.dtype.type(0)
                    key_cache[(to + d // each * CHUNK) * each + d % each] = one
                at = group * call[VALUE_HEAD] + (first + row) * call[VALUE_ROW]
                to = place // each * value_size
                for d in range(value_size):
                    value_cache[(to + d) * each + place % each] = value[at + d]
                if place % each == 0:  # no weight would make up for a second one that is not a number
                    for d in range(value_size):
                        for i in range(1, each):
                            value_cache[(to + d) * each + i] = 0
        stored_keys, stored_values = stored_at(call, tasks, task, key_bytes, value_bytes)
        if in_place(like, entry):
            at_keys, at_values = stored_keys, stored_values
        else:
            for block in range((slots + CHUNK - 1) // CHUNK):
                at = block * key_size * CHUNK
                widen_all(view(stored_keys + 2 * at, key_size * CHUNK, like), at_keys + 4 * at)
            widen_all(view(stored_values, slots * value_size, like), at_values)
        count = shared * rows
        for i in range(count):
            at = (group * shared + i // rows) * call[QUERY_HEAD] + (first + i % rows) * call[QUERY_ROW]
            pack(query[at : at + key_size], at_queries + 4 * i * deep, entry)
            seen[i] = positions[first + i % rows] + 1
        between = segment[CHUNKS] * floats  # from the partial results of a query to those of the next
        results = call[PARTIALS] + 4 * place_of(segment, group * shared, first, chunk, floats)
        for i in range(0, count, TILE_ROWS):
            for lane in range(0, slots, TILE_LANES):
                block = lane // CHUNK * CHUNK * deep + lane % CHUNK
                tile(
                    at_queries + 4 * i * deep, deep, at_keys + 4 * block, CHUNK,
                    deep, at_scores + 4 * lane, _SLOTS, next_keys + 4 * deep * lane, entry,
                )  # fmt: skip
            # By position a path may run on from the last chunk's slots into the next chunk.
            for part in range(2 if last else 1):
                begin = start + part * CHUNK
                # What is not seen has no weight, and adds nothing.
                known = min(slots - part * CHUNK, CHUNK) if causal else max(stored - part * CHUNK, 0)
                known = max(known + each - 1, 0) // each if causal else known // each
                for r in range(min(TILE_ROWS, count - i)):
                    end = min(begin + CHUNK, seen[i + r])
                    if end <= begin:
                        continue
                    ordered = at_scores + 4 * (r * _SLOTS + part * CHUNK)
                    if not causal:
                        ordered = at_gathered
                        path = (first + (i + r) % rows) * stride
                        copy(at_scores + 4 * r * _SLOTS, ordered, CHUNK)
                        for j in range(max(begin, prefix), end):
                            gathered[j - begin] = scores[r, slot_of(paths, path, j, prefix) - start]
                    hidden = max(0, seen[i + r] - window) if window > 0 else 0
                    weigh(
                        ordered, scaling, cap, hidden - begin, end - begin, at_weights, entry,
                        results + 4 * ((i + r) * between + part * floats),
                    )  # fmt: skip
                    pack(view(at_weights, CHUNK, np.float32), at_packed + 4 * r * (CHUNK // each), entry)
                for lane in range(0, wide, TILE_LANES):
                    tile(
                        at_packed, CHUNK // each,
                        at_values + 4 * (part * CHUNK // each * value_size + lane), value_size,
                        known, at_sums + 4 * lane, wide, next_values + 4 * known * lane, entry,
                    )  # fmt: skip
                for r in range(min(TILE_ROWS, count - i)):
                    end = min(begin + CHUNK, seen[i + r])
                    if end <= begin:
                        continue
                    if begin + known * each < end:
                        path = (first + (i + r) % rows) * stride
                        n = 0
                        for j in range(begin + known * each, end, each):
                            one = slot_of(paths, path, j, prefix) - start
                            other = slot_of(paths, path, j + 1, prefix) - start if j + 1 < end else -1
                            pick(
                                view(at_values, far, entry),
                                one,
                                other,
                                view(at_own + 4 * n * value_size, value_size, entry),
                            )
                            n += 1
                        for lane in range(0, wide, TILE_LANES):
                            add_tile_row(
                                at_packed + 4 * (r * (CHUNK // each) + known), 0, at_own + 4 * lane,
                                value_size, n, at_sums + 4 * (r * wide + lane), 0, 0, entry,
                            )  # fmt: skip
                    copy(at_sums + 4 * r * wide, results + 4 * ((i + r) * between + part * floats + 2), wide)
    hold(queries, widened_keys, widened_values, own, packed, weights, sums)


@kernel
def hold(queries, widened_keys, widened_values, own, packed, weights, sums):
    """Use arrays once more: one is freed after its last use, whether or not its address is still in use."""


@kernel
def address(array):
    """Where an array begins, as a number that offsets can be added to."""
    return np.int64(array.ctypes.data)


@kernel
def stored_at(call, tasks, task, key_bytes, value_bytes):
    """Addresses of the keys and values that a task looks at, of so many bytes a position."""
    segment = segment_of(call, tasks[task + SEGMENT])
    place = (tasks[task + GROUP] * segment[ROOM] + tasks[task + CHUNK_NUMBER]) * CHUNK
    return segment[KEY_CACHE] + place * key_bytes, segment[VALUE_CACHE] + place * value_bytes


@kernel
def slot_of(paths, path, position, prefix):
    """Where in the cache a row whose path starts at ``paths[path]`` finds the token at a position."""
    return position if position < prefix else prefix + paths[path + position - prefix]


@kernel
def copy(source, target, size):
    """Copy floats from one address to another."""
    given, copied = view(source, size, np.float32), view(target, size, np.float32)
    for i in range(size):
        copied[i] = given[i]


@kernel
def soft_cap(scores, scaling, cap):
    """``cap * tanh(scaling * scores / cap)``, in place."""
    for i in range(len(scores)):
        x = scaling * scores[i] / cap
        e = exp(np.float32(-2) * abs(x))
        y = cap * (np.float32(1) - e) / (np.float32(1) + e)
        scores[i] = y if x > 0 else -y


@kernel
def weigh(scores, scaling, cap, begin, end, weights, entry, out):
    """The unnormalised softmax of a row's scores from ``begin`` to ``end``.

    Args:
        scores: Address of float32 [CHUNK], overwritten.
        scaling: Of the scores.
        cap: What they are then bent to stay below, 0 leaves them.
        begin: First position seen, negative for 0; where it is not below ``end`` none is seen.
        end: Just past the last one.
        weights: Address of float32 [CHUNK], filled, 0 for what is not seen.
        entry: Array of what the weights will be multiplied as.
        out: Address of float32 [2], filled with the maximum and the sum of the weights.
    """
    scored, weighed, result = (
        view(scores, CHUNK, np.float32),
        view(weights, CHUNK, np.float32),
        view(out, 2, np.float32),
    )
    if cap > 0:
        soft_cap(scored, scaling, cap)
        scaling = np.float32(1)
    if begin > 0 or end < CHUNK:
        for j in range(CHUNK):
            scored[j] = scored[j] * scaling if begin <= j < end else np.float32(-np.inf)
        scaling = np.float32(1)
    best = scale(scored, scaling)
    for j in range(CHUNK):
        weighed[j] = settle(exp(scored[j] - best), entry)
    if begin > 0 or end < CHUNK:
        for j in range(CHUNK):
            weighed[j] = weighed[j] if begin <= j < end else np.float32(0)
    result[0] = best
    result[1] = total(weighed)
