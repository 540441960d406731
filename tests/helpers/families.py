"""Tiny random models of many families, made from configurations."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers import models as families

from helpers.tokenizers import TEMPLATE, byte_tokenizer

VOCABULARY = 97

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.6,
}

TREE_FAMILIES = {
    "llama": lambda: families.llama.LlamaConfig(**_SMALL),
    "qwen2": lambda: families.qwen2.Qwen2Config(**_SMALL),
    "qwen3": lambda: families.qwen3.Qwen3Config(**_SMALL),
    "gemma2": lambda: families.gemma2.Gemma2Config(**_SMALL, sliding_window=7),
    "gemma3": lambda: families.gemma3.Gemma3TextConfig(
        **_SMALL,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=8,
    ),
    "mistral": lambda: families.mistral.MistralConfig(**_SMALL, sliding_window=9),
    "phi3": lambda: families.phi3.Phi3Config(**_SMALL),
    "gpt_neox": lambda: families.gpt_neox.GPTNeoXConfig(
        **{k: v for k, v in _SMALL.items() if k not in ("num_key_value_heads", "head_dim")}
    ),
    "opt": lambda: families.opt.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=32,
        init_std=0.6,
    ),
    "gpt_oss": lambda: families.gpt_oss.GptOssConfig(
        **_SMALL, sliding_window=7, num_local_experts=2, num_experts_per_tok=1
    ),
}

OTHER_FAMILIES = {
    "bloom": (
        "chain",
        lambda: families.bloom.BloomConfig(
            vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.6
        ),
    ),
    "lfm2": (
        "chain",
        lambda: families.lfm2.Lfm2Config(**_SMALL, layer_types=["conv", "full_attention", "conv"]),
    ),
    "llama4": (
        "chain",
        lambda: families.llama4.Llama4TextConfig(
            **_SMALL,
            num_local_experts=2,
            num_experts_per_tok=1,
            intermediate_size_mlp=48,
            attention_chunk_size=16,
        ),
    ),
    "bamba": (
        "plain",
        lambda: families.bamba.BambaConfig(
            **_SMALL, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, attn_layer_indices=[1]
        ),
    ),
    "mamba": (
        "plain",
        lambda: families.mamba.MambaConfig(
            vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2, initializer_range=0.6
        ),
    ),
}


def tiny_model(config: Any, seed: int = 0) -> Any:
    """A random model of ``config`` in float32, spread enough that its choices depend on the whole context."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def tiny_parts(head_dim: int = 8) -> tuple[Any, Any]:
    """A random model whose tokens are bytes and that never ends an answer by itself, and its tokenizer."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    config = families.llama.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=4096,
        initializer_range=0.6,
    )
    return tiny_model(config), tokenizer
