cimport cython
from libc.math cimport exp, floor, log
from refold.predict.contexts cimport ContextTables, JobContexts, find_or_claim_row, find_row, magnitude
from refold.predict.survival cimport bin_of, bin_position, service_per_completion, sum_masses, whole_part

cdef long long ALL, FULL, HINTS, KIND, LIMIT_HINT, MODEL_HINT, NAME, OWNER, RECENT_HINT, TENANT, TIME_CONTEXTS
cdef long long COARSER, FINE, INPUT_ROWS, RATIO_PRIOR, TOTAL, LIMITED, MODELLED
cdef long long BINS, CALIBRATION_BINS, EXPERIENCE_BUCKETS, LEVELS, RATES, RATIO_ONE_BIN, TABLE_ROWS
cdef long long AVERAGE_BIN, CONTEXTS, LAST_BIN, LAST_END, PREVIOUS_BIN, STATIC_CONTEXTS
cdef float BACKOFF_EXAMPLES, NAME_WEIGHT
cdef double CALIBRATION_MEMORY, MAX_LOG_ODDS, MIXING_RATE, inf
cdef double[::1] MIN_LEARNING_RATES
cdef long long[::1] BACKOFF

cdef class MixingWeights:
    cdef readonly tuple arrays
    cdef float[:, :, ::1] by_node
    cdef float[:, :, :, ::1] by_level
    cdef double[::1] calibration
    cdef object input_array
    cdef float[:, ::1] inputs
    cdef float[::1] shares
    cdef double[::1] masses, shifted, below

cpdef long long variant_of(JobContexts contexts) noexcept nogil
cdef long long hint_count(JobContexts contexts) noexcept nogil
cdef long long input_count(JobContexts contexts) noexcept nogil
cdef long long experience_with(JobContexts contexts, ContextTables tables) noexcept nogil
cpdef object log_odds_tree(object masses)
cdef void write_log_odds(double[::1] tree, float[:, ::1] log_odds, long long row) noexcept nogil
cdef void predict_row(
    MixingWeights weights, ContextTables tables, long long row, long long rate, long long coarser, long long output
) noexcept nogil
cdef void predict_both_rates(
    MixingWeights weights, ContextTables tables, long long row, long long coarser, long long step, long long output
) noexcept nogil
cdef void write_shares(MixingWeights weights, ContextTables tables, long long row) noexcept nogil
cdef void blend_row(
    MixingWeights weights, ContextTables tables, long long row, long long rate, long long coarser, long long output
) noexcept nogil
cdef double sigmoid(double log_odds) noexcept nogil
cdef void write_masses(MixingWeights weights, long long row, double factor) noexcept nogil
cdef void times_from_ratios(MixingWeights weights, double hint_seconds, long long output) noexcept nogil
@cython.locals(change=cython.float)
cdef void borrow(
    MixingWeights weights, ContextTables tables, JobContexts contexts, long long at, long long rate
) noexcept nogil
cdef void write_inputs(MixingWeights weights, ContextTables tables, JobContexts contexts) noexcept nogil
cdef void copy_row(MixingWeights weights, long long row, long long output) noexcept nogil
cdef void clear_row(MixingWeights weights, long long output) noexcept nogil
@cython.locals(total=cython.float)
cdef void mix(MixingWeights weights, JobContexts contexts, long long experience, double[::1] survival) noexcept nogil
cpdef void calibrate(MixingWeights weights, double[::1] survival) noexcept nogil
cdef void write_prediction(
    MixingWeights weights, ContextTables tables, JobContexts contexts, double[::1] survival
) noexcept nogil
cdef void update_prediction(MixingWeights weights, ContextTables tables, JobContexts contexts) noexcept nogil
cpdef object predict_survival(MixingWeights weights, ContextTables tables, JobContexts contexts)
cpdef tuple predict_inputs(MixingWeights weights, ContextTables tables, JobContexts contexts)
@cython.locals(service=cython.double[::1], contexts=JobContexts)
cpdef object service_of(
    MixingWeights weights, ContextTables tables, list jobs, const double[::1] elapsed, const double[::1] limits,
    double min_service,
)
@cython.locals(first=cython.double, second=cython.double)
cpdef void update_weights(
    MixingWeights weights, float[:, ::1] inputs, long long variant, long long experience, double predicted_survival,
    double seconds,
) noexcept nogil
cpdef void update_contexts(
    JobContexts contexts, double seconds, double now, ContextTables tables, long long tick
) noexcept nogil
cdef void update_row(ContextTables tables, long long row, long long leaf) noexcept nogil
