"""Measures over a journal; tables; the report and its pictures."""

from refold.results.guarantees import Guarantees, broken_guarantees
from refold.results.history import History, HistoryJournal
from refold.results.measures import Measures, measure
from refold.results.report import ReportRun, write_report
from refold.results.tables import compare, compare_groups
from refold.results.unfinished import unfinished_text

__all__ = [
    "Guarantees",
    "History",
    "HistoryJournal",
    "Measures",
    "ReportRun",
    "broken_guarantees",
    "compare",
    "compare_groups",
    "measure",
    "unfinished_text",
    "write_report",
]
