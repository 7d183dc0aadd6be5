from refold.core.scheduler cimport Scheduler
from refold.core.view cimport View
from refold.simulator.agenda cimport Agenda
from refold.simulator.backend cimport SimulatedBackend

cdef class _EndDetector:
    cdef str _policy
    cdef Agenda _agenda
    cdef SimulatedBackend _backend
    cdef object _last_node_change, _last_wake, _futile_since, _give_up_after
    cdef long long _idle_wakes, _futile_steps

    cdef bint may_continue(self, object entry, View view) except *

cdef long long _count_finished(object events) except *
