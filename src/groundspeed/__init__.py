"""Retrieval-augmented speculative decoding for RAG pipelines: the same answer, sooner."""

__version__ = "0.1.0"
