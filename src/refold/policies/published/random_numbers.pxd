cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer

cdef struct Bits:  # the beginning of NumPy's bitgen_t
    void *state
    unsigned long long (*next_uint64)(void *) noexcept nogil
    unsigned int (*next_uint32)(void *) noexcept nogil
    double (*next_double)(void *) noexcept nogil

cdef unsigned long long LOW_BITS

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
