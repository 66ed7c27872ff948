/* rank_jobs.h: runs `remat train` as several ranks, which are processes that meet through a file, and reads what they
 * print. */
#ifndef RANK_JOBS_H
#define RANK_JOBS_H

#include "tests/train/train_test.h"

#define FLAGS "--hidden=12 --layers=2 --seq-len=24 --threads=1 --lr=0.01 "
enum { MOST = 8 };

/* ---- Running ranks ----------------------------------------------------------------------------------------------- */

typedef struct {
    int size;
    pid_t process[MOST];
    int out[MOST], err[MOST];
    int status[MOST]; /* exit status; 128 + n: signal n ended it */
    char output[MOST][1 << 14], errors[MOST][1 << 13];
} job;

static int meetings;

/* Every rank gets `line`; rank `odd` also gets `more`. */
static inline void start_ranks(job *j, int size, const char *line, int odd, const char *more) {
    *j = (job){.size = size};
    meetings++;
    for (int r = 0; r < size; r++) {
        char whole[3072];
        snprintf(whole, sizeof whole, "%s --init-method=file://%s/meeting%d --world-size=%d --rank=%d %s", line,
                 scratch(), meetings, size, r, r == odd ? more : "");
        j->out[r] = temporary();
        j->err[r] = temporary();
        j->process[r] = start_program(whole, j->out[r], j->err[r]);
    }
}

static inline void reap(job *j, int r) {
    int status;
    if (!j->process[r]) return;
    ck_assert_int_eq(waitpid(j->process[r], &status, 0), j->process[r]);
    j->process[r] = 0;
    j->status[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_back(j->out[r], j->output[r], sizeof j->output[r]);
    read_back(j->err[r], j->errors[r], sizeof j->errors[r]);
}

static inline void finish_ranks(job *j) {
    for (int r = 0; r < j->size; r++) reap(j, r);
}

static inline void run_ranks(job *j, int size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline void run_ranks(job *j, int size, const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    start_ranks(j, size, line, -1, "");
    finish_ranks(j);
}

#define ck_all_end(j, expected)                                                                                        \
    do {                                                                                                               \
        for (int r_ = 0; r_ < (j)->size; r_++)                                                                         \
            ck_assert_msg((j)->status[r_] == (expected), "rank %d: exit %d, not %d: %s", r_, (j)->status[r_],          \
                          expected, (j)->errors[r_]);                                                                  \
    } while (0)

#define ck_says(j, rank, part)                                                                                         \
    ck_assert_msg(says_all((j)->errors[rank], part), "rank %d: \"%s\" does not say all of \"%s\"", rank,               \
                  (j)->errors[rank], part)

/* Has this rank printed nothing? That it waits does not count: any rank may be late on a busy machine. */
static inline bool is_quiet(const job *j, int rank) {
    for (const char *line = j->errors[rank], *waits; *line; line = waits + strspn(waits, "\n")) {
        waits = strstr(line, " waiting ");
        if (!waits || waits > line + strcspn(line, "\n")) return false;
        waits += strcspn(waits, "\n");
    }
    return true;
}

#define ck_quiet(j, rank) ck_assert_msg(is_quiet(j, rank), "rank %d also says: %s", rank, (j)->errors[rank])

static const char *text_file(void) { return make_text("text", 20000); }

/* ---- One plan, one budget --------------------------------------------------------------------------------------- */

static inline uint64_t whole_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, text);
    return strtoull(at + strlen(label), NULL, 10);
}

/* ---- Long distances --------------------------------------------------------------------------------------------- */

#ifdef REMAT_HAVE_GLOO
enum { HAS_GLOO = 1 };
#else
enum { HAS_GLOO = 0 };
#endif

#endif
