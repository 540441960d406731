"""The HTTP server: OpenAI's API over an engine, with stores that are kept over HTTP as well."""
