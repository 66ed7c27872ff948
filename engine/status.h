/* status.h: how a function fails. Part of the shared floor: every folder may use it.
 *
 *   REQUIRE(cond, INVALID, "T is %ld; it must be at least 1", T);   the caller's mistake
 *   NEED(session, "a session");                                      ... where a public function was given NULL
 *   TRY(may_fail());                                                 pass a failure up unchanged
 *   FAIL(IO, "cannot write %s: %s", path, strerror(errno));          a failure found here
 *
 * The sentence is kept per thread and read with remat_last_error(). It is written for the user: it says what
 * is wrong, with numbers, and names the remedy. Where cleanup is needed use `goto done` with TRY_GOTO.
 *
 * A format names a member of a struct that the caller filled in as {member}: "{tile}=%lld is too long". A library's sentence
 * says "tile"; the program `remat`, whose users never see the struct, has it say "--tile" (rm_set_member_names).
 */
#ifndef RM_STATUS_H
#define RM_STATUS_H

#include "engine/remat.h"

/* Records the sentence (printf-style) and returns `status`. */
remat_status rm_fail(remat_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* INVALID: a public function was given NULL instead of `what`. It is called without the _sized that the header hides. */
remat_status rm_fail_needing(const char *function, const char *what);

/* How sentences name members: a function from "tile" to "--tile", or NULL, the default, for the member's own name. A program
 * sets it once, before it has threads. */
void rm_set_member_names(const char *(*name)(const char *member));
const char *rm_member_name(const char *member); /* by that function, for texts that are not formats of rm_fail */

/* Puts "prefix: " before the sentence already recorded; returns `status`. */
remat_status rm_fail_in(remat_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The reason of a failure, for as long as other calls follow that may fail as well (a look-up, a goodbye):
 *     rm_reason why = rm_reason_kept();
 *     ...
 *     return rm_reason_again(status, &why); */
typedef struct {
    char text[1024];
} rm_reason;
rm_reason rm_reason_kept(void);
remat_status rm_reason_again(remat_status status, const rm_reason *reason);

/* Words that came from elsewhere (another rank, a file), made fit for a terminal: bytes that it would obey, or that are no
 * UTF-8, become '?'. In place; returns `text`. Sentences are made so as they are recorded. */
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
