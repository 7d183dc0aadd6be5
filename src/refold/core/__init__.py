"""Facts in, orders out: the scheduler that the simulator and the daemon both drive."""

from refold.core.journal import Entry, Header, Journal, Journals, ListJournal
from refold.core.scheduler import Policy, Scheduler
from refold.core.view import View

__all__ = ["Entry", "Header", "Journal", "Journals", "ListJournal", "Policy", "Scheduler", "View"]
