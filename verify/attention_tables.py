"""What the attention kernels of a step are handed: the columns of their tables, and how those are read."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.datastores.views import view
from groundspeed.jit import kernel
from groundspeed.verify.vectors import TILE_LANES

# What a call is handed, int64 [CALL_COLUMNS]; strides count entries.
CLAIMS = 0  # address of a table of ``Claims``, for the tasks, and the rows to join once all are done
TASKS = 1  # number of tasks
TASK_TABLE = 2  # address of int64 [TASKS, TASK_COLUMNS]
SEGMENT_TABLE = 3  # address of int64 [s, SEGMENT_COLUMNS]
QUERY, QUERY_HEAD, QUERY_ROW = 4, 5, 6  # address and strides
KEY, KEY_HEAD, KEY_ROW = 7, 8, 9
VALUE, VALUE_HEAD, VALUE_ROW = 10, 11, 12
HEADS, GROUPS, KEY_SIZE, VALUE_SIZE = 13, 14, 15, 16  # query heads, key/value heads, dimensions
POSITIONS = 17  # address of int32 [rows of the pass]
PATHS, PATH_STRIDE = 18, 19  # address of int32 [rows, stride]: slots from the prefix on, the row's own last
PARTIALS = 20  # address of float32, what the chunks come to
SETTINGS = 21  # address of float32: scaling, soft cap or 0
WINDOW = 22  # positions a row sees, 0 for all
PASS_ROWS = 23  # rows of the pass
ROW_SEGMENTS = 24  # address of int64 [rows of the pass], -1 for a row of no text
SINKS = 25  # address of float32 [HEADS], or 0
OUT = 26  # address of [rows of the pass, HEADS, VALUE_SIZE]
CALL_COLUMNS = 27

# A text of the pass.
FIRST_ROW, ROWS, PREFIX, ROOM = 0, 1, 2, 3  # ROOM in chunks
KEY_CACHE = 4  # address of [groups, ROOM, KEY_SIZE / each, CHUNK, each], see ``KeyValueCache``
VALUE_CACHE = 5  # address of [groups, ROOM, CHUNK / each, VALUE_SIZE, each]
FIRST_PARTIAL, CHUNKS = 6, 7  # where its partial results start, and chunks of a row
CAUSAL = 8  # 1 where each row sees all rows before it
HELD = 9  # nodes of earlier passes that stand behind the prefix
SEGMENT_COLUMNS = 10


# A task: one chunk of one text for the query heads of one key/value head.
SEGMENT, GROUP, CHUNK_NUMBER = 0, 1, 2
TASK_COLUMNS = 3


@kernel
def partial_floats(value_size):
    """Floats of a partial result: the maximum, the sum, and the weighted values, padded to whole tiles."""
    return 2 + (value_size + TILE_LANES - 1) // TILE_LANES * TILE_LANES


@kernel
def segment_of(call, number):
    """int64 [SEGMENT_COLUMNS] of a text."""
    return view(call[SEGMENT_TABLE] + 8 * SEGMENT_COLUMNS * number, SEGMENT_COLUMNS, np.int64)


@kernel
def place_of(segment, head, row, chunk, floats):
    """Where the partial result of a chunk stands."""
    row -= segment[FIRST_ROW]
    return segment[FIRST_PARTIAL] + ((head * segment[ROWS] + row) * segment[CHUNKS] + chunk) * floats
