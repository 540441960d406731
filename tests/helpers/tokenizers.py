"""Tokenizers made by hand."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<end>"

TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}|{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %} CALL {{ c.function.name }} {{ c.function.arguments | tojson }}"
    "{% endfor %}"
    "|{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
"""A chat template that has a place for tools, and shows all that it was given."""


def byte_tokenizer(*merged: str) -> PreTrainedTokenizerFast:
    """One token per byte, so that most characters are cut across tokens, then one that ends a text.

    Args:
        merged: Longer tokens of ASCII letters, each made of two tokens before it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*alphabet, *merged])}
    merges = [next((m[:k], m[k:]) for k in range(1, len(m)) if {m[:k], m[k:]} <= set(vocab)) for m in merged]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
