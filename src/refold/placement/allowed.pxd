cimport cython
from refold.placement.c_types cimport Need

cdef long long FIRST_NODE, LAST_NODE, MOST, NO_SUCH_LEVEL, PREFERRED, REQUIRED, SEGMENT, SEGMENT_LEVEL
cdef unsigned long long ONE
cdef long long PART, UNLIMITED

cdef class AllowedRows:
    cdef readonly object array, request_array
    cdef readonly tuple tables
    cdef readonly long long used
    cdef long long part_first, part_last
    cdef unsigned long long[:, ::1] words
    cdef long long[:, ::1] requests, domain_of, counts
    cdef long long[:, :, ::1] domains
    cdef long long[::1] number

    cpdef long long add(self, object nodes, object request) except -1

cdef object _level_number(object name, object cluster)
cdef bint is_allowed(AllowedRows allowed, long long node, Need need) noexcept nogil
cdef bint has_request(AllowedRows allowed, Need need) noexcept nogil
cdef long long segment_size(AllowedRows allowed, Need need) noexcept nogil
@cython.locals(total=cython.longlong, found=cython.longlong, above=cython.longlong, most=cython.longlong, same=cython.longlong)
cdef long long room_of_largest(AllowedRows allowed, long long level, long long number) noexcept nogil
cdef void allow_part(AllowedRows allowed, long long row, long long level, long long domain) noexcept nogil
