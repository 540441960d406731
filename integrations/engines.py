"""One engine for many models: loaded when first used, never copied, never pickled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from groundspeed.verify.loading import DEFAULT_MODEL

if TYPE_CHECKING:
    from groundspeed.verify.engine import Engine

__all__ = ["EngineSpec", "SharedEngine", "load", "loaded"]


class EngineSpec(NamedTuple):
    """What an engine is loaded by; see ``Engine.from_pretrained``."""

    model: str = DEFAULT_MODEL
    device: str = "auto"
    dtype: str = "auto"
    datastore: str | None = None
    draft_model: str | None = None
    bridge_tokenizers: bool = False


_loaded: dict[EngineSpec, Engine] = {}
_given: WeakValueDictionary[str, Engine] = WeakValueDictionary()
_loading = threading.Lock()


class SharedEngine:
    """Stands for an engine in models that are copied, pickled and sent around.

    Copies share the engine. What is pickled names it: in the process that has it, the copy finds it again; in
    another one it is loaded by its name.
    """

    def __init__(self, engine: Engine) -> None:
        """Take an engine that somebody made."""
        self._engine: Engine | None = engine
        self._key = uuid4().hex
        _given[self._key] = engine

    def get(self) -> Engine | None:
        """The engine; None in a process that does not have it."""
        if self._engine is None:
            self._engine = _given.get(self._key)
        return self._engine

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedEngine:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_engine": None, "_key": self._key}


def loaded(spec: EngineSpec) -> Engine | None:
    """The engine of a name, if it is there already."""
    return _loaded.get(spec)


def load(spec: EngineSpec) -> Engine:
    """The engine of a name; one a process, loaded the first time.

    Raises:
        GroundspeedError: What ``Engine.from_pretrained`` raises.
    """
    from groundspeed.verify.engine import Engine

    with _loading:
        if spec not in _loaded:
            options = spec._asdict()
            model = options.pop("model")
            _loaded[spec] = Engine.from_pretrained(None if model == DEFAULT_MODEL else model, **options)
        return _loaded[spec]
