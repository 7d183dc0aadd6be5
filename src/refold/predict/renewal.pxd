cimport cython

cdef double MIN_CHANGE, MIN_CHANGE_SECONDS
cdef long long MAX_ENDED_RUNS

@cython.locals(has_changed=cython.bint)
cpdef bint is_outdated(
    double predicted_done, long long predicted_ended, double done, long long ended_runs, bint is_running
) noexcept nogil
