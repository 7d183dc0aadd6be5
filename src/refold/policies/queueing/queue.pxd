from refold.core.view cimport View
from refold.policies.common.queue_by_demand cimport QueueByDemand
from refold.policies.common.reasons cimport Reasons

cdef class Queue:
    cdef object _placer, _defragment, _blocked
    cdef QueueByDemand _waiting
    cdef bint _strict
    cdef Reasons _reasons

    cpdef object decide(self, View view)
    cdef list _start_planned(self, View view)
    cdef list _start_in_order(self, View view)
    cdef list _start_one_by_one(self, View view)
    cdef list _start_windows(self, View view)
    cdef bint _leave_waiting(self, View view, object job) except *
