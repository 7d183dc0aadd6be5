cimport cython

cdef double FOREVER
cdef long long MANY, FIRST_FIT, BEST_FIT

cdef long long _scan(long long rule, long long[::1] free, double[::1] squares, long long gpus) noexcept nogil
cdef void _push(double[::1] times, long long[::1] tasks, long long size, double at, long long task) noexcept nogil
cdef long long _pop(double[::1] times, long long[::1] tasks, long long size) noexcept nogil
@cython.locals(
    free=cython.longlong[::1], squares=cython.double[::1], times=cython.double[::1], running=cython.longlong[::1], blocked=cython.bint
)
cdef void _replay(
    long long rule,
    long long[::1] capacity,
    double[::1] submitted,
    double[::1] work,
    long long[::1] gpus_of,
    long long[::1] first_instance,
    long long[::1] nodes_of,
    double[::1] started,
) except *
