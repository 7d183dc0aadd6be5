cimport cython
from libc.math cimport isnan
from refold.predict.renewal cimport is_outdated

cdef double _done_by(double now, double reported_done, double computing_since) noexcept nogil
@cython.locals(
    is_known=cython.uchar[::1], is_running=cython.uchar[::1], reported_done=cython.double[::1],
    computing_since=cython.double[::1], predicted_done=cython.double[::1], predicted_ended=cython.longlong[::1],
    rows=cython.longlong[:, ::1],
)
cpdef tuple outdated_rows(double now, long long ended_runs, columns)
@cython.locals(
    weight_doubling=cython.double, delay_doubling=cython.double, wide_weight=cython.double,
    submitted=cython.double[::1], is_known=cython.uchar[::1], run_time=cython.double[::1],
    reported_done=cython.double[::1], computing_since=cython.double[::1], may_be_preferred=cython.uchar[::1],
    has_weight=cython.uchar[::1], weights=cython.double[::1],
)
cpdef object delay_weights(double now, rules, columns, is_preferred)
