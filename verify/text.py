"""Tokens into text as they come, so that nothing shown has ever to be taken back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from groundspeed.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer", "check_text", "decode", "token_bytes", "token_text"]

_UNFINISHED = "\ufffd"


def check_text(text: str) -> str:
    """The text, if it can be tokenized.

    Raises:
        InputError: It holds half a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text holds a lone surrogate, {text[error.start]!r} at {error.start}, half a character; "
            "decode it as what it was written in, or leave it out"
        ) from error
    return text


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """The text of tokens as users see it."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return str(tokenizer.decode(list(token_ids), **options))


class Detokenizer:
    """Incremental decoding of one text.

    Decoding depends on what stands before (a leading space, say), so each piece is the difference between two
    decodings of a short window that starts at an earlier settled token. A piece that ends in an incomplete
    character is held back.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Start a text.

        Args:
            tokenizer: The target model's.
        """
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        self._settled = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Take in tokens; the text that became final with them."""
        self._ids.extend(token_ids)
        before, now = self._decode()
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._start, self._settled = self._settled, len(self._ids)
        return now[len(before) :]

    def finish(self) -> str:
        """The text is over: what was held back, incomplete characters included."""
        before, now = self._decode()
        self._start = self._settled = len(self._ids)
        return now[len(before) :]

    def _decode(self) -> tuple[str, str]:
        window = self._ids[self._start :]
        before = decode(self._tokenizer, window[: self._settled - self._start])
        return before, decode(self._tokenizer, window)


def token_text(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """The text of a token as it stands within a text; half a character shows as a replacement character."""
    return token_bytes(tokenizer, token_id).decode(errors="replace")


def token_bytes(tokenizer: PreTrainedTokenizerBase, token_id: int) -> bytes:
    """The bytes of a token, which need not be whole characters."""
    text = str(tokenizer.decode([token_id]))
    piece = tokenizer.convert_ids_to_tokens(token_id)
    if not isinstance(piece, str):
        return text.encode()
    if piece.startswith("▁"):  # SentencePiece's space, which decoding drops in front
        return piece.replace("▁", " ").encode()
    if "�" not in text:
        return text.encode()
    if byte := re.fullmatch("<0x([0-9A-F]{2})>", piece):
        return bytes.fromhex(byte[1])
    letters = _byte_letters()
    return bytes(map(letters.__getitem__, piece)) if set(piece) <= letters.keys() else text.encode()


@cache
def _byte_letters() -> dict[str, int]:
    """By letter of byte-level vocabularies the byte that it stands for."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}
