"""A draw that is often one that a stochastic drafter made already."""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.draft_probs import Draws
from groundspeed.jit import kernel
from groundspeed.verify.draws import draw, uniforms

__all__ = ["draw_by_rejection"]


def draw_by_rejection(scores: NDArray[np.float32], drafts: Sequence[Draws], seed: int, position: int) -> int:
    """Draw a token from p = ``softmax(scores)``, trying first what was drawn from other distributions.

    A draft x of q is taken with probability min(1, p(x) / q(x)). Where it is not, p becomes (p - q)+ and q
    loses x, both normalised, for the next draft (Leviathan et al. 2023, appendix A; several drafts: Miao et
    al. 2024, algorithm 2; without replacement: Jeon et al. 2024). What is left last is drawn from.

    Exact: x comes out as the draft with probability min(p(x), q(x)), and with the rest, the mass of (p - q)+,
    by a draw from just that, directly or through the next draft, which is as good: together p(x). The nodes
    of the tree take no part in this. So children that were not drawn, as of a retrieved tree merged in, may
    stand beside drawn ones, and drawn ones may be cut off: they decide only whether the next row is there.

    Args:
        scores: [vocab], finite or -inf for tokens that are excluded; at least one is finite.
        drafts: What was drawn behind the node, in order.
        seed: In [0, 2**64).
        position: Of the drawn token in its text.

    Returns:
        The token id.
    """
    p = np.exp(np.subtract(scores, scores.max(), dtype=np.float64))
    p /= p.sum()
    chances = uniforms(sum(len(draws.drawn) for draws in drafts), seed, position)
    for draws in drafts:
        token = _taken(p, *draws, chances)
        if token >= 0:
            return int(token)
        chances = chances[len(draws.drawn) :]
    with np.errstate(divide="ignore"):
        return draw(np.log(p).astype(np.float32), seed, position)


@kernel
def _taken(p, token_ids, probs, drawn, chances):
    """The draft that is taken, or -1.

    Args:
        p: float64 [vocab], normalised; becomes what is left of it where no draft is taken.
        token_ids: int32 [s], rising.
        probs: float32 [s].
        drawn: int32 [k], of them.
        chances: float64 [at least k], uniform numbers.
    """
    q = probs.astype(np.float64)
    for i in range(len(drawn)):
        q /= q.sum()
        place = np.searchsorted(token_ids, drawn[i])
        if chances[i] * q[place] < p[drawn[i]]:
            return drawn[i]
        rest = p.copy()
        for j in range(len(q)):
            rest[token_ids[j]] = max(p[token_ids[j]] - q[j], 0.0)
        rest[drawn[i]] = 0
        mass = rest.sum()
        if mass > 0:  # or else p is q but for rounding, and stays
            p[:] = rest / mass
        q[place] = 0
    return -1
