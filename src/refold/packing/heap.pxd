cpdef void push(double[::1] times, long long[::1] tasks, long long size, double at, long long task) noexcept nogil
cpdef long long pop(double[::1] times, long long[::1] tasks, long long size) noexcept nogil
