"""The command line: ``groundspeed index | ask | generate | explain | serve | bench | doctor``."""

from groundspeed.integrations.cli.app import main

__all__ = ["main"]
