"""Inside vLLM: a proposer that drafts from a request's documents, prompt and answer, and from a datastore."""
