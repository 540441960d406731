"""Whether drafting brings more than it takes, by what it brought and took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Pace", "Worth"]

_LEAST = 8  # steps that a judgement rests on, of a trial as well
_MEMORY = 24.0  # steps by which what is known fades
_PAUSE, _LONGEST_PAUSE = 16, 256  # steps without, before it is tried again; twice as many each time


class Worth:
    """Switches something off while it costs more time than it saves, and tries it again now and then.

    One rule for whatever drafts: a token is worth the time that it takes without a draft; a step's gain is
    the tokens that its draft brought, at that price, less all the time that the draft took, proposed and
    verified. Once the last steps together lost, nothing is asked for a number of steps, which doubles with
    each trial that loses again. The first step after a pause catches up on the text, and is not judged.
    """

    def __init__(self) -> None:
        self._steps = self._gain = 0.0
        self._pause = _PAUSE
        self._left = 0  # of the pause
        self._catching_up = False
        self._trial = False

    def wanted(self) -> bool:
        """Whether to draft for the next step; to be asked once a step."""
        if not self._left:
            return True
        self._left -= 1
        self._catching_up = not self._left
        return False

    def judge(self, gained: float, spent: float) -> None:
        """Take in a step that was drafted for.

        Args:
            gained: Seconds that the accepted nodes would have taken without the draft.
            spent: Seconds that it took to draft, and to verify beyond a pass without nodes.
        """
        if self._catching_up:
            self._catching_up = False
            return
        fade = 1 - 1 / _MEMORY
        self._steps = self._steps * fade + 1
        self._gain = self._gain * fade + gained - spent
        if self._steps < _settled(_LEAST):
            return
        if self._gain < 0:
            self._left = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._steps = self._gain = 0.0
        else:
            self._pause = _PAUSE


def _settled(steps: int) -> float:
    """What so many steps count for, each fading."""
    return float(sum((1 - 1 / _MEMORY) ** i for i in range(steps))) - 1e-9


class Pace:
    """How fast an engine writes, all requests together, drafts and all. In any thread.

    A renewal process earns most when whatever is done next earns at least as much per time as the whole does
    on average (the marginal value theorem, Charnov 1976). So drafting on is worth it while it brings more
    tokens per second than are written anyway.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start not knowing.

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
        """Some request has so many more tokens."""
        with self._lock:
            self._total += tokens

    def mark(self) -> tuple[float, int]:
        """Begin to watch a step."""
        with self._lock:
            return self._clock(), self._total

    def since(self, mark: tuple[float, int]) -> None:
        """Learn from the step that began with ``mark`` and is over."""
        with self._lock:
            seconds = self._clock() - mark[0]
            if seconds > 0:
                self._tokens += (self._total - mark[1] - self._tokens) / 8
                self._seconds += (seconds - self._seconds) / 8
