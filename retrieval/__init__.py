"""A question goes in, passages come out."""

from groundspeed.retrieval.base import Embedder, Progress
from groundspeed.retrieval.index import IndexReport, index_corpus
from groundspeed.retrieval.loaders import load_documents
from groundspeed.retrieval.retriever import Retriever

__all__ = ["Embedder", "IndexReport", "Progress", "Retriever", "index_corpus", "load_documents"]
