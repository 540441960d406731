"""The ways in: pipeline and command line."""
