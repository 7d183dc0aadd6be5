cimport cython

cdef double INFINITE

@cython.final
cdef class TaskHeap:
    cdef double[::1] times
    cdef long long[::1] tasks
    cdef long long size

    cdef TaskHeap copy(self)
    cdef void push(self, double at, long long task) noexcept nogil
    cdef long long pop(self) noexcept nogil
    cdef double first_time(self) noexcept nogil

cpdef void push(double[::1] times, long long[::1] tasks, long long size, double at, long long task) noexcept nogil
cpdef long long pop(double[::1] times, long long[::1] tasks, long long size) noexcept nogil
