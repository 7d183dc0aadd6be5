cimport cython

cdef unsigned long long STEP, MIX_1, MIX_2, WORD

cdef class Random:
    cdef unsigned long long state

@cython.locals(word=cython.ulonglong)
cdef long long next_random(Random rng) noexcept nogil
cdef double random_fraction(Random rng) noexcept nogil
cdef long long select_by_tournament(long long size, double[::1] fitness, Random rng) noexcept nogil
cdef void sort_by_keys(double[::1] keys, long long first, long long[::1] order, long long[::1] scratch) noexcept nogil
