from refold.core.state cimport State

cpdef dict check_and_allocate(State state, object decision, str policy, object preallocated=*)
cdef void _check(State state, object decision, set allocated_ids, str policy) except *
cdef bint _is_move(State state, object reshape) except *
cdef void _check_wake(State state, object decision, str policy) except *
cdef void _check_start(State state, object start, set seen_jobs, str policy) except *
cdef void _check_limit(State state, object job, object allocation, str policy) except *
cdef bint _matches_demand(object allocation, object demand) except *
cdef void _check_nodes(State state, object job, object allocation, str policy, object stays_on=*) except *
cdef void _check_shares(State state, str job_id, object allocation, str policy) except *
cdef void _check_running(State state, str job_id, set seen_jobs, str policy, bint ending=*) except *
cdef str _state_text(State state, str job_id, set seen_jobs)
cdef void _allocate_starts(State state, object decision, set allocated_ids, list allocated, str policy) except *
cdef dict _allocate_reshapes(State state, object decision, list allocated, str policy)
