cimport cython
from libc.math cimport exp, log, sqrt

cdef long long BINS
cdef double BIN_WIDTH, FIRST_EDGE, LAST_EDGE, inf, pi
cdef double[::1] EDGES, POSITIONS, WHOLE_BIN_LOGS

cdef long long whole_part(double number) noexcept nogil
cdef double bin_position(double seconds) noexcept nogil
cdef double edge_time(double position) noexcept nogil
cpdef long long bin_of(double seconds) noexcept nogil
cpdef double survival_at(const double[::1] survival, double seconds) noexcept nogil
cdef double survival_at_position(const double[::1] survival, double position) noexcept nogil
cdef double survival_at_edge(const double[::1] survival, long long edge) noexcept nogil
cpdef double time_exceeded_with(const double[::1] survival, double probability) noexcept nogil
@cython.locals(times=cython.double[::1])
cpdef object quantiles(const double[::1] survival, const double[::1] probabilities)
cdef double time_in_bin(const double[::1] survival, long long at, double since, double until) noexcept nogil
cdef double bin_logs(long long at, double since, double until) noexcept nogil
cpdef double mean_between(const double[::1] survival, double floor, double ceiling) noexcept nogil
cpdef double service_per_completion(
    const double[::1] survival, double floor, double ceiling, double min_service
) noexcept nogil
@cython.locals(masses=cython.double[::1])
cpdef object log_normal_bins(double seconds, double width, double uniform)
cpdef object survival_from_masses(object masses)
cdef void sum_masses(double[::1] survival) noexcept nogil
@cython.locals(masses=cython.double[::1])
cpdef object condition_on_progress(const double[::1] survival, double total_seconds, double width)
