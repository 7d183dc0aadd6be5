from refold.simulator.agenda cimport Agenda

cdef class _SimulatedRun:
    cdef public object number, placement, since, speed, stopped_at, end_event, start_event, report_event, cost_event

cdef class SimulatedBackend:
    cdef dict _jobs, _max_work, _done, _runs, _live_changes, _survivors
    cdef Agenda _agenda
    cdef object _charge, _costs
    cdef readonly object max_time_limit, never_ending, never_ending_reported_by

    cpdef void carry_out(self, object now, object orders) except *
    cpdef list consequences(self, object now, object events)
    cdef void _start(self, object now, object order) except *
    cdef void _schedule_report(self, object now, object job, _SimulatedRun run) except *

cdef bint _has_same_nodes(object placement, object allocation) except *
