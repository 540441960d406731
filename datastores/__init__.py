"""What is kept: the documents of a corpus, and text as tokens to draft from."""
