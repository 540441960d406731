"""The ways in: pipeline, command line, server and LangChain."""
