"""The drafts of one request."""

from __future__ import annotations

import ctypes
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from groundspeed.drafting.base import (
    Drafter,
    DraftRequest,
    DraftTree,
    RecyclingDrafter,
    RunnerUps,
    ThriftyDrafter,
)
from groundspeed.drafting.worth import Price
from groundspeed.errors import DraftError
from groundspeed.types import GenerationRequest, Passage
from groundspeed.verify.grounding import stretches
from groundspeed.verify.top_tokens import leading

if TYPE_CHECKING:
    import torch

    from groundspeed.verify.base import TargetSession
    from groundspeed.verify.engine import Engine

__all__ = ["Drafts", "draft_texts"]

logger = logging.getLogger(__name__)

_PATIENCE = 1.0
"""Seconds that a call of somebody else's drafter may take, as all requests wait for it."""

_LEAST = 0.1
"""Paths more probable than this are drafted whatever a node seems to cost, or none would be tried again."""


class Drafts:
    """Asks the drafter of a request, which only ever costs time: once it fails, no drafts come any more.

    Our own drafters are called directly. Those of others might never return, so they are called on a thread
    of their own, and given up when a call takes more than a second. One that takes more time than it saves is
    left alone for a while.
    """

    def __init__(self, engine: Engine) -> None:
        """None come before ``begin``.

        Args:
            engine: Whose drafter is used.
        """
        self._engine = engine
        self._drafter: Drafter | None = None
        self._recycling: RecyclingDrafter | None = None  # the same one, if it is of that kind
        self._thrifty: ThriftyDrafter | None = None  # likewise
        self._beside: _Beside | None = None
        self._worth = engine.trust.worth()
        self._spent = 0.0  # seconds since the last judgement
        self._asked = False

    def begin(self, prompt_ids: Sequence[int], asked: GenerationRequest, session: TargetSession) -> None:
        """Show the drafter the request, and hand it the target model."""
        tokenizer = self._engine.tokenizer
        try:
            predicted = (Passage("", asked.prediction),) if asked.prediction else ()
            texts = draft_texts((*asked.passages, *predicted))
            encoded = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
            request = DraftRequest(
                prompt_ids=np.array(prompt_ids, np.int32),
                passages=tuple(np.array(ids, np.int32) for ids in encoded),
                vocab_size=self._engine.target.vocab_size,
                forms=self._engine.forms,
                temperature=asked.temperature,
                namespaces=asked.namespaces,
                target=self._engine.target.view(session),
            )
            self._drafter = self._call(self._engine.drafter)
            self._call(self._drafter.begin, request)
            # Asked once: looking a protocol up takes 50 us.
            self._recycling = self._drafter if isinstance(self._drafter, RecyclingDrafter) else None
            self._thrifty = self._drafter if isinstance(self._drafter, ThriftyDrafter) else None
        except Exception:
            self._drop("begin")

    def extend(self, token_ids: Sequence[int]) -> None:
        """Show it the tokens that joined the answer."""
        if self._drafter is not None:
            try:
                self._call(self._drafter.extend, np.array(token_ids, np.int32))
            except Exception:
                self._drop("extend")

    def recycle(self, token: int, tree: DraftTree, logits: torch.Tensor) -> None:
        """Show it the logits [n + 1, vocab] of a pass behind the last committed token and the n nodes."""
        try:
            if self._recycling is not None and self._recycling.runners_up:
                start = time.perf_counter()
                shown = RunnerUps(
                    np.concatenate([np.array([token], np.int32), tree.token_ids]),
                    np.concatenate([np.array([-1], np.int32), tree.parents + 1]),
                    leading(logits, self._recycling.runners_up),
                )
                self._spent += time.perf_counter() - start
                self._call(self._recycling.recycle, shown)
        except Exception:
            self._drop("recycle")

    def propose(self, budget: int, texts: int) -> DraftTree:
        """What it drafts, of at most ``budget`` nodes, for a pass of ``texts``; none without a drafter."""
        self._asked = self._drafter is not None and self._worth.wanted(texts)
        if self._drafter is None or not self._asked:
            return DraftTree.empty()
        try:
            tree = self._call(self._drafter.propose, budget)
            if not isinstance(tree, DraftTree):
                raise DraftError(f"propose gave {type(tree).__name__}; a drafter must give a DraftTree")
            if len(tree) > budget:
                raise DraftError(f"a budget of {budget} nodes was given and {len(tree)} were drafted")
            tree.validate(self._engine.target.vocab_size)
        except Exception:
            self._drop("propose")
            return DraftTree.empty()
        return tree

    def judge(self, drafted: int, accepted: int, price: Price) -> None:
        """Take in what came of the last proposal.

        Args:
            drafted: Its nodes that were verified.
            accepted: Those that were accepted.
            price: Of the pass.
        """
        if self._asked:
            self._worth.judge(accepted * price.token, self._spent + drafted * price.node)
            self._asked, self._spent = False, 0.0
            if self._thrifty is not None and price.token:
                self._thrifty.least = min(price.node / price.token / 2, _LEAST)

    def end(self) -> None:
        """Let the drafter go."""
        drafter, self._drafter, self._recycling, self._thrifty = self._drafter, None, None, None
        try:
            if drafter is not None:
                self._engine.trust.learn(self._worth)
                self._call(drafter.end)
        except Exception:
            logger.warning("the drafter failed in end", exc_info=True)
        finally:
            if self._beside is not None:
                self._beside.end()
                self._beside = None

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the drafter, or what makes it."""
        start = time.perf_counter()
        try:
            if _is_ours(function):
                return function(*args)
            if self._beside is None:
                self._beside = _Beside()
            return self._beside.call(function, *args)
        finally:
            self._spent += time.perf_counter() - start

    def _drop(self, doing: str) -> None:
        logger.warning("the drafter failed in %s; the request goes on without drafts", doing, exc_info=True)
        if self._beside is not None and self._beside.given_up:
            self._drafter = None  # it is still busy, and cannot be told
        self.end()


class _Beside:
    """Calls functions on a thread of its own, and gives up the thread when one takes too long.

    Attributes:
        given_up: Whether one did; nothing more can be called.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="groundspeed drafter", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function and wait for it.

        Raises:
            DraftError: It takes too long, or wants to end the thread.
        """
        self._calls.put(lambda: function(*args))
        try:
            outcome, error = self._outcomes.get(timeout=_PATIENCE)
        except queue.Empty:
            self._give_up()
            raise DraftError(
                f"it has not returned after {_PATIENCE:g} s, in which all requests waited; a drafter with "
                "more to do must do it on a thread of its own, and propose an empty tree until that is done"
            ) from None
        if error is None:
            return outcome
        if isinstance(error, Exception):
            raise error
        raise DraftError(f"it raised {type(error).__name__}, which is not for drafters to raise") from error

    def end(self) -> None:
        """Let the thread go, once it is free."""
        self._calls.put(None)

    def _serve(self) -> None:
        with suppress(SystemExit):  # what breaks off a call may come when it is just over
            while (call := self._calls.get()) is not None:
                try:
                    self._outcomes.put((call(), None))
                except BaseException as error:
                    self._outcomes.put((None, error))

    def _give_up(self) -> None:
        """Break off what runs in the thread if it is Python; a loop there would slow down everybody."""
        self.given_up = True
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))


def _is_ours(function: Callable[..., Any]) -> bool:
    """Whether a function, a method, or an object that is called, comes from this project."""
    owner = getattr(function, "__self__", function)
    return str(getattr(owner, "__module__", "")).startswith("groundspeed.")


def draft_texts(passages: Sequence[Passage]) -> list[str]:
    """What to draft from by passage: each stretch once, at the best of its passages, empty at the others."""
    texts = [""] * len(passages)
    for best, _, text in stretches(passages):
        texts[best] = text
    # The same text may stand in several documents.
    return [
        "" if any(text in other and (text != other or j < i) for j, other in enumerate(texts)) else text
        for i, text in enumerate(texts)
    ]
