"""The features of the blend's predictor: small buckets, and which weight each of them picks."""
# mypy: allow-untyped-defs

from __future__ import annotations

from groundspeed.jit import kernel

# Sizes of the buckets below.
LENGTHS = 12
SMALL_LENGTHS = 5
COUNTS = 7
SHARES = 7
DISTANCES = 11
ROW = 8  # recycled tokens looked at
_RANKS = 3

# Features of a candidate: offsets into the weights.
RANK = 0  # length of the context x share of its occurrences x context's rank x how many candidates it adds
# No context has length 0, so the entries of that bucket are free for candidates that no context offers:
RESUMED = RANK + 1  # by a broken copy only
ORDER_0 = RANK + 2  # by order 0 only: place among the frequent tokens
STORED_ONLY = ORDER_0 + COUNTS  # by stored text only: length of the longest own context
RECYCLED_ONLY = STORED_ONLY + LENGTHS  # by recycled logits only: likewise
SEEN = RANK + LENGTHS * SHARES * _RANKS * COUNTS  # times seen after the context x length
RESUMES = (
    SEEN + COUNTS * LENGTHS
)  # agrees with the copy: tokens skipped x tokens astray x run, x small length
NEAR = RESUMES + (8 + 3 * 5 * COUNTS) * SMALL_LENGTHS  # distance from the copy x small length
COMMON = NEAR + DISTANCES * SMALL_LENGTHS  # times seen at all x length
WHERE = COMMON + COUNTS * LENGTHS  # where first seen x seen in the output x small length
STORED = WHERE + 6 * 2 * SMALL_LENGTHS  # length of the stored match x share x level x followers it adds
STORED_SEEN = STORED + LENGTHS * SHARES * 2 * COUNTS  # times seen after the stored match x its length
STORED_TOO = STORED_SEEN + COUNTS * LENGTHS  # stored length x share x small own length, 0 for none
FORMS = STORED_TOO + LENGTHS * SHARES * (SMALL_LENGTHS + 1)  # goes on where forms agree x small length x copy
RECYCLED = (
    FORMS + (COUNTS + 1) * SMALL_LENGTHS * 3
)  # tokens it was found by x place in the row x small length
# Features of "none of them".
LONGEST = RECYCLED + 2 * (ROW + 1) * (SMALL_LENGTHS + 1)  # longest context x candidates x occurrences
COPYING = LONGEST + LENGTHS * COUNTS * COUNTS  # run x tokens astray
HEATED = COPYING + COUNTS * COUNTS  # heat
CROWD = HEATED + 10  # candidates in all
STORED_LONGEST = CROWD + COUNTS  # longest stored match x followers x places
BOTH_LONGEST = STORED_LONGEST + LENGTHS * COUNTS * COUNTS  # longest context x longest stored match
ROW_FOUND = BOTH_LONGEST + LENGTHS * LENGTHS  # tokens the recycled row was found by x small longest context
WEIGHTS = ROW_FOUND + 3 * SMALL_LENGTHS
"""Number of weights."""
FEATURES = 11  # of a candidate
NONE_FEATURES = 7  # of "none of them"


@kernel
def rank_weight(length, share, rank, added):
    """Weight of ``RANK``, from buckets but for the rank."""
    return RANK + ((length * SHARES + share) * _RANKS + min(rank, _RANKS - 1)) * COUNTS + added


@kernel
def length_bucket(length):
    """Of 0 to MAX_MATCH tokens, in [0, LENGTHS)."""
    if length <= 4:
        return length
    if length <= 8:
        return 5 if length <= 6 else 6
    if length <= 16:
        return 7 if length <= 12 else 8
    if length <= 24:
        return 9
    return 10 if length <= 40 else 11


@kernel
def small_length_bucket(length):
    """The same, coarser, in [0, SMALL_LENGTHS)."""
    if length <= 2:
        return length
    return 3 if length <= 4 else 4


@kernel
def count_bucket(count):
    """Of a number of times, in [0, COUNTS)."""
    if count <= 2:
        return count
    if count <= 8:
        return 3 if count <= 4 else 4
    return 5 if count <= 16 else 6


@kernel
def share_bucket(count, total):
    """Of ``count`` among ``total``, in [0, SHARES), the largest share first."""
    if count == total:
        return 0
    share = count / total
    if share > 0.25:
        return 1 if share > 0.6 else 2 if share > 0.4 else 3
    return 4 if share > 0.12 else 5 if share > 0.05 else 6


@kernel
def distance_bucket(distance):
    """Of tokens between two places, in [0, DISTANCES - 1)."""
    if distance < 0:
        if distance >= -32:
            return 6 if distance >= -8 else 7
        return 8 if distance >= -256 else 9
    if distance <= 4:
        return 0 if distance == 0 else 1
    if distance <= 64:
        return 2 if distance <= 16 else 3
    return 4 if distance <= 256 else 5
