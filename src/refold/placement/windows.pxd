cimport cython
from libc.math cimport nextafter
from refold.placement.allowed cimport has_request, room_of_largest, segment_size
from refold.placement.heap cimport pop, push
from refold.placement.intervals cimport (
    FreeIntervals,
    earliest_start_on_node,
    free_duration_on_node,
    has_suitable_gpus,
    instances_in,
    interval_at,
)
from refold.placement.kernels cimport need_at

cdef double inf
cdef long long FIRST_NODE, LAST_NODE, MOST, REQUIRED, SEGMENT_LEVEL, SPAN, HALF

cpdef double earliest_start(
    FreeIntervals intervals, long long[:, ::1] demands, double duration, double after, double before
) noexcept nogil
cdef long long _required_level(FreeIntervals intervals) noexcept nogil
cdef long long _most(FreeIntervals intervals) noexcept nogil
@cython.locals(most=cython.longlong)
cdef long long _fit_together(FreeIntervals intervals, long long fitting) noexcept nogil
@cython.locals(column=cython.longlong)
cdef long long _group(FreeIntervals intervals, long long node, long long segment) noexcept nogil
cdef long long _start_count(FreeIntervals intervals) noexcept nogil
cdef long long _count(FreeIntervals intervals, long long group, long long change, long long segment) noexcept nogil
cdef long long _first_node(FreeIntervals intervals, long long level, long long domain) noexcept nogil
cdef long long _last_node(FreeIntervals intervals, long long level, long long domain) noexcept nogil
cdef bint _is_outside(FreeIntervals intervals, long long node, long long level, long long domain) noexcept nogil
cdef double _earliest_start_of_gang(
    FreeIntervals intervals, double duration, double after, double before, long long level, long long domain
) noexcept nogil
cdef long long _room_at(FreeIntervals intervals, long long node, double start, double duration) noexcept nogil
cdef long long _push_changes(
    FreeIntervals intervals, long long node, double duration, double after, double before, long long group,
    long long changes
) noexcept nogil
cdef double _first_time_with_all(
    FreeIntervals intervals, long long changes, long long fitting, long long segment
) noexcept nogil
cpdef double longest_free_duration(FreeIntervals intervals, long long[:, ::1] demands, double now) noexcept nogil
cdef double _longest_free_duration_of_gang(
    FreeIntervals intervals, double now, long long level, long long domain
) noexcept nogil
cdef double _time_with_all(
    FreeIntervals intervals, long long changes, long long fitting, long long segment
) noexcept nogil
