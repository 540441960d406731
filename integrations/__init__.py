"""The ways in: pipeline, command line and LangChain."""
