"""transformers' own progress bars, turned into calls of a ``ProgressCallback``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from groundspeed.types import ProgressCallback

__all__ = ["transformers_progress"]


@contextmanager
def transformers_progress(labels: Mapping[str, str], on_progress: ProgressCallback | None) -> Iterator[None]:
    """Report the bars that transformers would draw on stderr, and keep every bar of its quiet.

    Args:
        labels: By the start of a bar's own description, what to call that work. Other bars go unreported.
        on_progress: Told after each item of the labelled bars.
    """
    from transformers import modeling_gguf_pytorch_utils as gguf_reader
    from transformers.utils import logging

    def watch(_: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        description = kwargs.get("desc") or ""
        label = next((label for start, label in labels.items() if description.startswith(start)), None)
        return _reported(args[0], label, on_progress)

    # The GGUF reader draws its bar without asking the hook.
    gguf_bar = gguf_reader.tqdm
    gguf_reader.tqdm = lambda *args, **kwargs: watch(gguf_bar, args, kwargs)
    previous = logging.set_tqdm_hook(watch)
    try:
        yield
    finally:
        logging.set_tqdm_hook(previous)
        gguf_reader.tqdm = gguf_bar


def _reported(items: Iterable[Any], label: str | None, on_progress: ProgressCallback | None) -> Iterator[Any]:
    items = list(items)
    for done, item in enumerate(items, start=1):
        yield item
        if label and on_progress:
            on_progress(label, done, len(items))
