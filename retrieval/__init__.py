"""A question goes in, passages come out."""

from groundspeed.retrieval.base import Embedder
from groundspeed.retrieval.index import IndexReport, index_corpus
from groundspeed.retrieval.loaders import load_documents
from groundspeed.retrieval.retriever import Retriever

__all__ = ["Embedder", "IndexReport", "Retriever", "index_corpus", "load_documents"]
