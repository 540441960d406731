"""What is kept: the document store of a corpus."""
