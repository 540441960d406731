"""Every error groundspeed raises on purpose.

Each message says what was got, what was wanted and what to do about it.
"""

from __future__ import annotations


class GroundspeedError(Exception):
    """Base of all errors of groundspeed."""


class InputError(GroundspeedError):
    """A file, folder, document or parameter that cannot be used as given."""


class StoreError(GroundspeedError):
    """A store on disk that is missing, damaged, locked, or made by something incompatible."""


class ModelError(GroundspeedError):
    """A model or tokenizer that is missing, cannot be loaded or cannot do what was asked."""


class ContextLengthError(InputError):
    """A prompt that does not fit the context of the target model."""


class DraftError(GroundspeedError):
    """A draft tree that breaks its contract (see ``groundspeed.drafting.base.DraftTree``)."""


class GenerationTimeoutError(GroundspeedError, TimeoutError):
    """An answer that was not whole in its time, where whoever asked has no place to be told so otherwise."""


class MissingDependencyError(GroundspeedError):
    """An optional package that is not installed; the message holds the install command."""
