from libc.math cimport floor, log2
from refold.predict.survival cimport edge_time, whole_part

cdef long long ALL, CONTEXTS, FULL, GPUS, HINTS, HOUR, OWNER, OWNER_RECENT, STATIC_CONTEXTS, TENANT, TIME_CONTEXTS
cdef long long AVERAGE_BIN, LAST_ARRIVAL, LAST_BIN, LAST_END, PREVIOUS_BIN, RECENT_COLUMNS, RECENT_HINT, UNFINISHED
cdef long long BINS, PROBES, RATES, TABLE_ROWS
cdef unsigned long long FIRST_FACTOR, SECOND_FACTOR, HASH_BITS
cdef double inf
cdef long long[::1] HINT_CONTEXTS

cdef class ContextTables:
    cdef readonly object slots
    cdef readonly tuple rows
    cdef public long long used, learned
    cdef unsigned long long[::1] hashes
    cdef long long[::1] last_used, row_of
    cdef float[:, :, ::1] log_odds
    cdef float[:, ::1] examples
    cdef double[:, ::1] recent

cdef class JobContexts:
    cdef readonly tuple arrays
    cdef unsigned long long[::1] keys
    cdef double[::1] hints, survival
    cdef long long predicted_at

cdef unsigned long long combine_hash(unsigned long long hash_value, long long value) noexcept nogil
cdef long long find_row(ContextTables tables, unsigned long long hash_value) noexcept nogil
cdef long long find_or_claim_row(ContextTables tables, long long tick, unsigned long long hash_value) noexcept nogil
cdef long long magnitude(double number) noexcept nogil
cdef long long bin_group(double at, long long size) noexcept nogil
cpdef JobContexts contexts_of(const unsigned long long[::1] static, double now, object hints, ContextTables tables)
cdef void write_keys(
    JobContexts contexts, const unsigned long long[::1] static, double now, ContextTables tables
) noexcept nogil
cpdef void count_arrival(JobContexts contexts, double now, ContextTables tables, long long tick) noexcept nogil
cpdef void count_departure(JobContexts contexts, ContextTables tables) noexcept nogil
