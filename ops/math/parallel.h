/* parallel.h: OpenMP without allocations. libgomp allocates and frees a team for every region of ONE thread, and anew
 * whenever the number of threads changes; after the first step Remat allocates nothing. So every region asks for the
 * call's full number of threads, or is not opened at all. */
#ifndef RM_PARALLEL_H
#define RM_PARALLEL_H

/* The loop given as the last argument, cut evenly among `threads` where `large` says it is worth waking them:
 *
 *     RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
 *                     for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];)
 */
#define RM_PARALLEL_FOR(threads, large, ...)                                                                           \
    do {                                                                                                               \
        int rm_threads_ = (large) ? (threads) : 1;                                                                     \
        if (rm_threads_ > 1) {                                                                                         \
            _Pragma("omp parallel for num_threads(rm_threads_) schedule(static)") __VA_ARGS__                          \
        } else {                                                                                                       \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    } while (0)

/* The same for n elements, in spans: the statement is about [from, to). For loops whose constants come in a struct: given by
 * value to a function that does one span, they stay in registers, and the loop becomes vector code.
 *
 *     RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(constants, from, to, x);)
 */
#define RM_PARALLEL_SPANS(threads, large, n, ...)                                                                      \
    RM_PARALLEL_FOR(                                                                                                   \
        threads, large, for (int64_t from = 0; from < (n); from += 8192) {                                             \
            int64_t to = (n)-from < 8192 ? (n) : from + 8192;                                                          \
            __VA_ARGS__                                                                                                \
        })

#endif
