"""What a replay of one's own log says, as a page."""

from groundspeed.integrations.bench.report.page import report_page

__all__ = ["report_page"]
