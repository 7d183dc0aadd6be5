cdef class DemandHistory:
    cdef readonly tuple arrays
    cdef readonly long long[:, ::1] typical
    cdef readonly double[::1] weights, worth, needs, limited_demand, type_prices
    cdef readonly long long[::1] type_sets

cdef class ScoreCache:
    cdef readonly tuple arrays
    cdef readonly long long[::1] owner
    cdef readonly long long[:, ::1] signatures, masks
    cdef readonly double[:, ::1] scores

    cpdef void clear(self) noexcept

cpdef bint is_update_due(long long total_seen) noexcept nogil
cdef long long row_of(ScoreCache cache, long long demand_id) noexcept nogil
