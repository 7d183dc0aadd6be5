cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport pow
from refold.placement.c_types cimport view

cdef unsigned long long LOW_BITS
cdef double nan, RESET_PROBABILITY, CLEAR_PROBABILITY, MEAN_RESIZED_JOBS

cdef struct Bits:  # the beginning of NumPy's bitgen_t
    void *state
    unsigned long long (*next_uint64)(void *) noexcept nogil
    unsigned int (*next_uint32)(void *) noexcept nogil
    double (*next_double)(void *) noexcept nogil

cdef inline Bits *bits_of(object generator) except NULL:
    return <Bits *>PyCapsule_GetPointer(generator.bit_generator.capsule, "BitGenerator")

cdef inline double next_double(Bits *bits) noexcept nogil:
    return bits.next_double(bits.state)

cdef inline unsigned long long next_uint32(Bits *bits) noexcept nogil:
    return bits.next_uint32(bits.state)

@cython.final
cdef class RandomNumbers:
    cdef object generator
    cdef Bits *bits
    cpdef double uniform(self) noexcept nogil
    @cython.locals(product=cython.ulonglong)
    cpdef long long below(self, unsigned long long bound) noexcept nogil

cdef class ProblemArrays:
    cdef long long[::1] kind, max_gpus, choices, type_of, spans, distributed_jobs, preference
    cdef long long[:, ::1] capacity, need, free, sizes, size_below, current, used
    cdef unsigned char[::1] distributed, is_running
    cdef double[:, :, :, ::1] speed
    cdef double[::1] fair_speed, restart_factor
    cdef double min_speedup, power

@cython.locals(
    arrays=ProblemArrays, population=cython.longlong[:, :, ::1], scores=cython.double[::1], rows=cython.longlong[::1],
    chosen=cython.longlong[::1], favoured=cython.uchar[::1], is_chosen=cython.uchar[::1]
)
cpdef object evolve(object problem, long long size, long long generations, object rng)
cdef long long _select_parent(double[::1] scores, long long size, RandomNumbers random) noexcept nogil
cdef void _choose_survivors(double[::1] scores, long long[::1] chosen, unsigned char[::1] is_chosen) noexcept nogil
cdef long long _best_below(double[::1] scores, unsigned char[::1] is_chosen, double bound) noexcept nogil
cdef void crossover(
    long long[:, :, ::1] population, long long first_parent, long long second_parent, long long child,
    RandomNumbers random
) noexcept nogil
cdef void mutate(
    ProblemArrays problem, long long[:, ::1] matrix, unsigned char[::1] favoured, RandomNumbers random
) noexcept nogil
@cython.locals(by_free_gpus=cython.bint, is_open=cython.bint, fits_type=cython.bint, gpus_left=cython.longlong)
cdef void _resize(
    ProblemArrays problem, long long[:, ::1] matrix, long long job, RandomNumbers random
) noexcept nogil
cpdef void repair(
    ProblemArrays problem, long long[:, ::1] matrix, unsigned char[::1] favoured, RandomNumbers random
) noexcept nogil
cdef void _restrict_to_one_type(ProblemArrays problem, long long[:, ::1] matrix) noexcept nogil
@cython.locals(keeper_stays=cython.bint)
cdef void _separate_distributed_jobs(
    ProblemArrays problem, long long[:, ::1] matrix, unsigned char[::1] favoured, RandomNumbers random
) noexcept nogil
@cython.locals(excess=cython.longlong)
cdef void _restrict_to_capacity(
    ProblemArrays problem, long long[:, ::1] matrix, unsigned char[::1] favoured, RandomNumbers random
) noexcept nogil
cdef void _use(ProblemArrays problem, long long job, long long node, long long gpus) noexcept nogil
@cython.locals(short=cython.bint)
cdef long long _excess_gpus(ProblemArrays problem, long long node) noexcept nogil
@cython.locals(ordinary=cython.bint)
cdef long long _victim(
    long long[:, ::1] matrix, long long node, unsigned char[::1] favoured, RandomNumbers random
) noexcept nogil
@cython.locals(total=cython.longlong, excess=cython.longlong)
cdef void _round_down(ProblemArrays problem, long long[:, ::1] matrix) noexcept nogil
@cython.locals(changed=cython.bint, total=cython.longlong, speedup=cython.double)
cpdef double fitness(ProblemArrays problem, long long[:, ::1] matrix) noexcept nogil
