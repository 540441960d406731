"""What is seen of an answer: its record as JSON, and the page that shows it."""

from groundspeed.integrations.view.html import html_page
from groundspeed.integrations.view.record import Record, Recorder, answer_as_json, whole_answer

__all__ = ["Record", "Recorder", "answer_as_json", "html_page", "whole_answer"]
