"""The command line: ``groundspeed index | ask | generate | explain | serve | bench | train | doctor``."""

from groundspeed.integrations.cli.app import main

__all__ = ["main"]
