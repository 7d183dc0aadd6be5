cimport cython
from refold.placement.c_types cimport Need
from refold.placement.kernels cimport FreeArrays, adjust_free, need_at
from refold.placement.rules cimport GreedyRule, place_instances

cdef long long WHOLE, NODE, GPU_MASK

@cython.final
cdef class PlacedTasks:
    cdef readonly tuple arrays
    cdef readonly GreedyRule rule
    cdef long long[:, ::1] demands, placements
    cdef long long[::1] demand_of, first_row
    cdef unsigned char[::1] fits_empty

    cdef Need need(self, long long task) noexcept nogil
    cdef bint place(self, FreeArrays free, long long task) noexcept nogil
    cdef void take(self, FreeArrays free, long long task) noexcept nogil
    cdef void release(self, FreeArrays free, long long task) noexcept nogil
    @cython.locals(mask=cython.longlong)
    cdef void _change(self, FreeArrays free, long long task, long long sign) noexcept nogil
