"""Training what drafts for a target: heads on it, and smaller models that answer as it does."""
