"""The command line: ``groundspeed index | ask | generate | bench | train | doctor``."""

from groundspeed.integrations.cli.app import main

__all__ = ["main"]
