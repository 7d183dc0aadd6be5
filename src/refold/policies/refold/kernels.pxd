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
    has_weight=cython.uchar[::1], weights=cython.double[::1], is_running=cython.uchar[::1],
    is_restarted=cython.uchar[::1], overtaken=cython.double[::1], used_in_all=cython.double[::1],
    unweighted=cython.double[::1], weighted=cython.double[::1], is_overdue=cython.uchar[::1],
    overtaking_share=cython.double, restarted_share=cython.double, limit=cython.double,
)
cpdef object weigh_jobs(double now, rules, columns, is_preferred, work)
@cython.locals(
    submitted=cython.double[::1], rank=cython.longlong[::1], order=cython.longlong[::1], is_placed=cython.uchar[::1],
    rows=cython.longlong, last=cython.longlong, at=cython.longlong, row=cython.longlong, to=cython.longlong,
    other=cython.longlong,
)
cpdef object order_by_rank(const long long[::1] before, columns)
@cython.locals(
    submitted=cython.double[::1], rank=cython.longlong[::1], asked_gpus=cython.double[::1],
    is_running=cython.uchar[::1], held_gpus=cython.double[::1], held_type=cython.longlong[::1], held_since=cython.double[::1],
    usable_types=cython.longlong[::1], overtaken=cython.double[::1], used_in_all=cython.double[::1],
    used_behind=cython.double[::1], has_room=cython.uchar[::1], gpus_of=cython.double[::1],
    used_before=cython.double[::1], used_by_ended=cython.double[::1], is_usable=cython.uchar[:, ::1],
    overlaps=cython.uchar[:, ::1], ended_rank=cython.longlong[::1], ended_submitted=cython.double[::1],
    ended_type=cython.longlong[::1], ended_used=cython.double[::1], used=cython.double[::1],
    types=cython.longlong, in_all=cython.double, is_empty=cython.bint, row=cython.longlong, is_held=cython.bint,
    gpu_type=cython.longlong, used_by_all=cython.double, behind=cython.double, following=cython.longlong,
    last=cython.longlong, at=cython.longlong, other=cython.longlong, passed=cython.longlong, before=cython.double,
    run=cython.longlong, is_behind=cython.bint, used_by_those_behind=cython.double, ahead=cython.double,
)
cpdef void count_use(double now, const long long[::1] order, columns, usable, ended) except *
