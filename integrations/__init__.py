"""The ways in: pipeline, command line, server, LangChain, transformers and llm; and the page of an answer."""
