"""API keys: who asks, and which namespaces of the store are theirs."""

from __future__ import annotations

import hmac
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from groundspeed.errors import InputError
from groundspeed.integrations.server.errors import ApiError

__all__ = ["ENVIRONMENT", "EVERYBODY", "Caller", "Keys"]

ENVIRONMENT = "GROUNDSPEED_API_KEYS"
"""Variable with keys that see every namespace, separated by white space or commas."""

_LEAST = 16  # characters of a key; shorter ones can be guessed


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever a key belongs to.

    Attributes:
        name: For the log.
        namespaces: Those that the key sees; None for all.
    """

    name: str
    namespaces: frozenset[str] | None = None

    @property
    def drafts(self) -> tuple[str, ...] | None:
        """The namespaces that may be drafted from, as a request names them."""
        return None if self.namespaces is None else tuple(sorted(self.namespaces))

    def sees(self, namespace: str) -> bool:
        """Whether a namespace is one of the key's own."""
        return self.namespaces is None or namespace in self.namespaces

    def check(self, namespace: str) -> None:
        """Refuse a namespace that is not the key's own, whether or not there is one of that name.

        Raises:
            ApiError: Naming it.
        """
        if not self.sees(namespace):
            raise ApiError(
                403,
                f"the namespace {namespace!r} is not one of this key's; ask the operator for it",
                "namespace_forbidden",
                param="namespace",
            )


EVERYBODY = Caller("everybody")
"""Who asks where no keys are wanted."""


class Keys:
    """Knows callers by their keys, of which it keeps digests only."""

    def __init__(self, callers: Mapping[str, Caller] | None = None) -> None:
        """Take callers by key.

        Raises:
            InputError: A key is too short, or not of printable ASCII, which is all that a header carries.
        """
        self._callers = []
        for key, caller in (callers or {}).items():
            if len(key) < _LEAST or not (key.isascii() and key.isprintable()) or " " in key:
                raise InputError(
                    f"the key of {caller.name!r} has {len(key)} characters; a key must have {_LEAST} or "
                    "more, of ASCII without spaces: make one with `openssl rand -hex 24`"
                )
            self._callers.append((_digest(key), caller))

    def __len__(self) -> int:
        return len(self._callers)

    def find(self, key: str) -> Caller | None:
        """Whose key this is; takes as long for a wrong one as for a right one."""
        digest = _digest(key)
        found = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    @classmethod
    def load(cls, file: Path | None = None) -> Keys:
        """Read the keys of a file and of the environment.

        The file is TOML, a table a caller: ``key = "..."`` and ``namespaces = ["manuals"]``, with ``["*"]``
        for all of them and nothing for none.

        Raises:
            InputError: The file cannot be read or is not of that form.
        """
        callers = {} if file is None else _callers_in(file)
        for number, key in enumerate(os.environ.get(ENVIRONMENT, "").replace(",", " ").split(), start=1):
            callers[key] = Caller(f"{ENVIRONMENT}:{number}")
        return cls(callers)


def _callers_in(file: Path) -> dict[str, Caller]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"the keys {file} cannot be read ({error.strerror}); give a readable file"
        ) from error
    except ValueError:  # its text, which holds keys, must not reach a message
        raise InputError(
            f'the keys {file} are not TOML; write a table a caller: [name], key = "...", namespaces = [...]'
        ) from None
    callers: dict[str, Caller] = {}
    for name, table in tables.items():
        key, namespaces = _entry(file, name, table)
        if key in callers:
            raise InputError(f"{callers[key].name} and {name} have the same key in {file}; give each its own")
        callers[key] = Caller(name, None if "*" in namespaces else frozenset(namespaces))
    if not callers:
        raise InputError(f"the keys {file} hold no caller; without --api-keys no key is asked for")
    return callers


def _entry(file: Path, name: str, table: Any) -> tuple[str, list[str]]:
    match table:
        case {"key": str(key), **rest} if rest.keys() <= {"namespaces"}:
            namespaces = rest.get("namespaces", [])
            if isinstance(namespaces, list) and all(isinstance(one, str) for one in namespaces):
                return key, namespaces
    raise InputError(
        f'the entry {name!r} of the keys {file} has another form than key = "..." and, if it has any, '
        'namespaces = ["...", ...]; mend it'
    )


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
