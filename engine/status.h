/* status.h: how functions report errors. Every folder may use it.
 *
 *   REQUIRE(cond, INVALID, "T is %ld; it must be at least 1", T);   the caller's mistake
 *   NEED(session, "a session");                                      a public function was given NULL
 *   TRY(may_fail());                                                 pass a failure up unchanged
 *   FAIL(IO, "cannot write %s: %s", path, strerror(errno));          a failure found here
 *
 * remat_last_error() returns the message; each thread has its own. A message says what is wrong, with numbers, and then what to do. If
 * cleanup is needed, use TRY_GOTO with a label `done`.
 *
 * A format names a member of a struct that the caller filled in as {member}: "{tile}=%lld is too long". A library's sentence
 * says "tile"; the program `remat`, whose users never see the struct, has it say "--tile" (rm_set_member_names).
 */
#ifndef RM_STATUS_H
#define RM_STATUS_H

#include "engine/remat.h"

/* Records the message (printf-style) and returns `status`. */
remat_status rm_fail(remat_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* INVALID: a public function was given NULL instead of `what`. */
remat_status rm_fail_needing(const char *function, const char *what);

/* How sentences name members: a function from "tile" to "--tile", or NULL, the default, for the member's own name. A program
 * sets it once, before it has threads. */
void rm_set_member_names(const char *(*name)(const char *member));
const char *rm_member_name(const char *member); /* by that function, for texts that are not formats of rm_fail */

/* Puts "prefix: " before the recorded message; returns `status`. */
remat_status rm_fail_in(remat_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Keeps a failure's message while later calls may fail as well (cleanup, a look-up):
 *     rm_reason why = rm_reason_kept();
 *     ...
 *     return rm_reason_again(status, &why); */
typedef struct {
    char text[1024];
} rm_reason;
rm_reason rm_reason_kept(void);
remat_status rm_reason_again(remat_status status, const rm_reason *reason);

/* Replaces control characters and invalid UTF-8 in a text from elsewhere (another rank, a file) by '?', in place; returns `text`. Messages
 * are cleaned like this when they are recorded. */
char *rm_printable(char *text);

#define FAIL(code, ...) return rm_fail(REMAT_##code, __VA_ARGS__)
#define REQUIRE(cond, code, ...)                                                                                       \
    do {                                                                                                               \
        if (!(cond)) return rm_fail(REMAT_##code, __VA_ARGS__);                                                        \
    } while (0)
#define NEED(pointer, what)                                                                                            \
    do {                                                                                                               \
        if (!(pointer)) return rm_fail_needing(__func__, what);                                                        \
    } while (0)
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        remat_status try_status_ = (call);                                                                             \
        if (try_status_) return try_status_;                                                                           \
    } while (0)
#define TRY_GOTO(status, label, call)                                                                                  \
    do {                                                                                                               \
        if (((status) = (call))) goto label;                                                                           \
    } while (0)

#endif
