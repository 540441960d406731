"""Whether drafting brings more than it takes, judged by what it brought and took."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Pace", "Price", "Trust", "Worth"]

_LEAST = 8  # steps that a judgement rests on
_MEMORY = 24  # steps by which what is known fades
_PAUSE, _LONGEST_PAUSE = 16, 256  # steps without drafts; twice as many each time
_TEXTS = 4  # after so many for which it did not pay, the next one begins without
_SPREAD = 64  # steps over which the time is spread that it takes to catch up on a text


class Price(NamedTuple):
    """What drafting is measured by.

    Attributes:
        token: Seconds that a token of the text takes where nothing is drafted.
        node: Seconds that a draft node adds to the pass that verifies it.
    """

    token: float
    node: float


class Worth:
    """Switches drafting off while it costs more time than it saves, and tries it again now and then.

    One rule for whatever drafts. A step gains the seconds that its accepted nodes would have taken without a
    draft, less those that the draft took, proposed and verified. Once the last steps together have lost,
    nothing is asked for 16 steps, and twice as many after each trial that loses again. The first step, and
    the first one after a pause, catches up on the text: what it takes is spread over the 64 steps after it.
    A pause ends early once half as many texts share a pass, as each token takes so much longer then.

    Attributes:
        verdict: Of the last judgement, whether drafting pays; None before the first one.
    """

    def __init__(self, *, trusted: bool = True) -> None:
        """Begin a text.

        Args:
            trusted: Draft from the start; otherwise begin with a pause.
        """
        self._steps = self._net = self._owed = 0.0
        self._pause = _PAUSE
        self._left = 0 if trusted else _PAUSE
        self._texts = 0  # that shared the last pass that was drafted for
        self._catching_up = True
        self.verdict: bool | None = None

    def wanted(self, texts: int = 1) -> bool:
        """Whether to draft for the next step; to be asked once a step.

        Args:
            texts: That share its pass.
        """
        if self._left and 2 * texts > self._texts:
            self._left -= 1
            return False
        self._left, self._texts = 0, texts
        return True

    def judge(self, gained: float, spent: float) -> None:
        """Take in a step that was drafted for.

        Args:
            gained: Seconds that the accepted nodes would have taken without the draft.
            spent: Seconds that it took to draft, and to verify beyond a pass without nodes.
        """
        if self._catching_up:
            self._catching_up = False
            self._owed = max(spent - gained, 0.0) / _SPREAD
            return
        fade = 1 - 1 / _MEMORY
        self._steps = self._steps * fade + 1
        self._net = self._net * fade + gained - spent - self._owed
        if self._steps < _ENOUGH:
            return
        self.verdict = self._net >= 0
        if self.verdict:
            self._pause = _PAUSE
            return
        self._left, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._steps = self._net = 0.0
        self._catching_up = True


_ENOUGH = sum((1 - 1 / _MEMORY) ** i for i in range(_LEAST)) - 1e-9


class Trust:
    """What the texts before say about the next one. In any thread."""

    def __init__(self) -> None:
        """Begin with trust."""
        self._verdicts: deque[bool] = deque(maxlen=_TEXTS)

    def worth(self) -> Worth:
        """For a new text."""
        verdicts = [*self._verdicts]
        return Worth(trusted=len(verdicts) < _TEXTS or any(verdicts))

    def learn(self, worth: Worth) -> None:
        """Take in what was found for a text that is over."""
        if worth.verdict is not None:
            self._verdicts.append(worth.verdict)


class Pace:
    """How fast texts are written, all requests together, drafts and all. In any thread.

    Whoever earns at a rate does best to go on with what is at hand while it brings more per time than the
    rate on average, and no longer (the marginal value theorem, Charnov 1976). So a draft is grown while
    growing it brings more tokens per second than are written anyway.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin without knowing.

        Args:
            clock: Gives seconds.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._total = 0
        self._tokens = self._seconds = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second, 0 while it is not known."""
        with self._lock:
            return self._tokens / self._seconds if self._seconds else 0.0

    def wrote(self, tokens: int) -> None:
        """Some text has so many more tokens."""
        with self._lock:
            self._total += tokens

    def mark(self) -> tuple[float, int]:
        """Begin to watch a step."""
        with self._lock:
            return self._clock(), self._total

    def since(self, mark: tuple[float, int]) -> tuple[float, int]:
        """Learn from the step that began with ``mark`` and is over now; the mark of the next one."""
        with self._lock:
            now = self._clock()
            seconds = now - mark[0]
            if seconds > 0:
                self._tokens += (self._total - mark[1] - self._tokens) / 8
                self._seconds += (seconds - self._seconds) / 8
            return now, self._total
