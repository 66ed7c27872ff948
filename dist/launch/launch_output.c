/* launch_output.c: passes lines from the ranks' pipes to the launcher's output and to log files. See
 * launch_output.h. */
#define _GNU_SOURCE
#include "dist/launch/launch_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory/host.h"

#define READ_BYTES 65536u
#define LINE_BYTES (1u << 20)  /* a longer line is split */
#define QUEUE_BYTES (1u << 20) /* with more than this in the queue, nothing more is read */
#define PIECE_BYTES 4096u      /* a pipe that poll reports writable accepts this much without blocking (PIPE_BUF) */
#define PATH_BYTES 4096

typedef struct {
    int fd;
    char *data;
    size_t begin, end, room;
    bool broken; /* a write failed: later output is discarded */
} queue;

/* One of a rank's two outputs. `line`: the received part of an unfinished line. */
typedef struct {
    int fd, write_end;
    int32_t local_rank;
    queue *to;
    char *line;
    size_t bytes, room;
} stream;

struct rm_launch_output {
    rm_launch_output_config config;
    queue out, err;
    queue *in_line;           /* the queue whose output stopped inside a line */
    stream *streams;          /* 2 for each rank */
    FILE **logs;              /* 2 for each rank: of its streams, or the first of both */
    char run_dir[PATH_BYTES]; /* subdirectory of log_dir for this job */
    bool log_failed;
};

/* ---- Queues ------------------------------------------------------------------------------------------------------ */

static bool writable(int fd, int timeout_ms) {
    struct pollfd slot = {.fd = fd, .events = POLLOUT};
    return poll(&slot, 1, timeout_ms) > 0;
}

/* The length of the next piece: up to the last line end that fits; of a longer line, a part. */
static size_t piece_of(const queue *q) {
    size_t bytes = q->end - q->begin;
    if (bytes <= PIECE_BYTES) return bytes;
    const char *last = memrchr(q->data + q->begin, '\n', PIECE_BYTES);
    return last ? (size_t)(last - (q->data + q->begin)) + 1 : PIECE_BYTES;
}

static void break_off(rm_launch_output *output, queue *q, int why) {
    q->broken = true;
    q->begin = q->end = 0;
    if (output->in_line == q) output->in_line = NULL;
    if (q == &output->out)
        rm_launch_output_say(output, "cannot write to stdout: %s; from here on, what the ranks print there is lost",
                             strerror(why));
}

/* Writes one piece. Returns false if nothing could be written. */
static bool write_piece(rm_launch_output *output, queue *q) {
    ssize_t n = write(q->fd, q->data + q->begin, piece_of(q));
    if (n < 0 && errno != EINTR && errno != EAGAIN) break_off(output, q, errno);
    if (n <= 0) return false;
    q->begin += (size_t)n;
    output->in_line = q->data[q->begin - 1] == '\n' ? NULL : q;
    if (q->begin == q->end) q->begin = q->end = 0;
    return true;
}

static bool may_write(const rm_launch_output *output, const queue *q) {
    return q->end > q->begin && (!output->in_line || output->in_line == q);
}

/* Writes as much as possible without blocking, within limits, so that other work is not delayed. */
static void flush_some(rm_launch_output *output, queue *q) {
    for (int piece = 0; piece < 64 && may_write(output, q) && writable(q->fd, 0); piece++)
        if (!write_piece(output, q)) return;
}

static bool reserve(queue *q, size_t bytes) {
    if (q->begin > 0 && q->begin + bytes > q->room - (q->end - q->begin)) {
        memmove(q->data, q->data + q->begin, q->end - q->begin);
        q->end -= q->begin;
        q->begin = 0;
    }
    if (q->end + bytes <= q->room) return true;
    size_t room = 2 * (q->end + bytes);
    char *larger = rm_realloc(q->data, room);
    if (!larger) return false;
    q->data = larger;
    q->room = room;
    return true;
}

/* Queues one line with its end. If out of memory, first empties the queue, however long that takes. */
static void append(rm_launch_output *output, queue *q, const char *prefix, const char *text, size_t bytes) {
    size_t before = strlen(prefix);
    if (q->broken) return;
    while (!reserve(q, before + bytes + 1)) {
        if (q->end == q->begin) return;
        output->in_line = NULL;
        if (writable(q->fd, 1000)) (void)write_piece(output, q);
    }
    memcpy(q->data + q->end, prefix, before);
    memcpy(q->data + q->end + before, text, bytes);
    q->end += before + bytes;
    q->data[q->end++] = '\n';
}

void rm_launch_output_say(rm_launch_output *output, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    append(output, &output->err, "remat launch: ", text, strlen(text));
}

/* ---- Log files --------------------------------------------------------------------------------------------------- */

static void log_failed(rm_launch_output *output) {
    if (!output->log_failed)
        rm_launch_output_say(output, "cannot write the logs in %s: %s", output->config.log_dir, strerror(errno));
    output->log_failed = true;
}

/* Whether streams have logs of their own, and not one for each rank. */
static bool apart(const rm_launch_output *output) { return output->config.redirects || output->config.tee; }

/* 0: stdout, 1: stderr. */
static int which(const rm_launch_output *output, const stream *s) { return (int)((s - output->streams) % 2); }

static bool has(const uint8_t *by_rank, int32_t local, int which) { return by_rank && by_rank[local] >> which & 1; }

static bool is_logged(const rm_launch_output *output, int32_t local, int which) {
    const rm_launch_output_config *c = &output->config;
    return apart(output) ? has(c->redirects, local, which) || has(c->tee, local, which) : which == 0;
}

static bool is_shown(const rm_launch_output *output, const stream *s) {
    const rm_launch_output_config *c = &output->config;
    const int w = which(output, s);
    bool only_in_a_file = has(c->redirects, s->local_rank, w) && !has(c->tee, s->local_rank, w);
    return !only_in_a_file && (!c->shown || c->shown[s->local_rank]);
}

static void log_lines(rm_launch_output *output, const stream *s, const char *text, size_t bytes) {
    FILE *file = output->logs[2 * s->local_rank + (apart(output) ? which(output, s) : 0)];
    if (file && (fwrite(text, 1, bytes, file) < bytes || fflush(file))) log_failed(output);
}

static void close_logs(rm_launch_output *output) {
    for (int32_t i = 0; i < 2 * output->config.nproc; i++) {
        if (output->logs[i] && fclose(output->logs[i])) log_failed(output);
        output->logs[i] = NULL;
    }
}

/* Creates the directory and its parents. */
static remat_status make_folders(char *path) {
    for (char *at = path + 1;; at++) {
        char kept = *at;
        if (kept && kept != '/') continue;
        *at = 0;
        bool failed = mkdir(path, 0777) && errno != EEXIST;
        if (failed) FAIL(IO, "cannot create the directory %s for logs: %s", path, strerror(errno));
        *at = kept;
        if (!kept) return REMAT_OK;
    }
}

/* DIR/20260131-235959, or with -2, -3, ... if another job started in the same second; mkdir decides which job owns
 * it. */
static remat_status make_run_folder(rm_launch_output *output) {
    const char *dir = output->config.log_dir;
    char stamp[32], path[PATH_BYTES];
    time_t now = time(NULL);
    struct tm local;
    REQUIRE(strlen(dir) < sizeof output->run_dir - 64, INVALID,
            "the directory for logs has a name of %zu bytes, which is too long", strlen(dir));
    strcpy(path, dir);
    TRY(make_folders(path));
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    for (int run = 1;; run++) {
        char number[16] = "";
        if (run > 1) snprintf(number, sizeof number, "-%d", run);
        snprintf(output->run_dir, sizeof output->run_dir, "%.4000s/%s%s", dir, stamp, number);
        if (!mkdir(output->run_dir, 0777)) break;
        REQUIRE(errno == EEXIST && run < 1000, IO, "cannot create the directory %s for logs: %s", output->run_dir,
                strerror(errno));
    }
    rm_launch_output_say(output, "the ranks' logs are in %s", output->run_dir);
    return REMAT_OK;
}

remat_status rm_launch_output_begin(rm_launch_output *output, int32_t attempt) {
    const rm_launch_output_config *config = &output->config;
    char path[PATH_BYTES + 64];
    close_logs(output);
    if (!config->log_dir) return REMAT_OK;
    if (attempt == 0) TRY(make_run_folder(output));
    int length = snprintf(path, sizeof path, "%s/attempt-%d", output->run_dir, attempt);
    TRY(make_folders(path));
    static const char *const names[] = {"", ".stdout", ".stderr"};
    for (int32_t i = 0; i < 2 * config->nproc; i++) {
        if (!is_logged(output, i / 2, i % 2)) continue;
        snprintf(path + length, sizeof path - (size_t)length, "/rank-%d%s.log", config->first_rank + i / 2,
                 names[apart(output) ? 1 + i % 2 : 0]);
        output->logs[i] = fopen(path, "we");
        REQUIRE(output->logs[i], IO, "cannot write the log %s: %s", path, strerror(errno));
    }
    return REMAT_OK;
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

/* Passes on whole lines with their ends. */
static void pass_on(rm_launch_output *output, const stream *s, const char *text, size_t bytes) {
    char prefix[16] = "";
    if (output->config.prefix) snprintf(prefix, sizeof prefix, "[%d] ", output->config.first_rank + s->local_rank);
    log_lines(output, s, text, bytes);
    while (bytes > 0 && is_shown(output, s)) {
        size_t length = (size_t)((const char *)memchr(text, '\n', bytes) - text);
        append(output, s->to, prefix, text, length);
        text += length + 1;
        bytes -= length + 1;
    }
}

/* Ends an unfinished line. */
static void finish_line(rm_launch_output *output, stream *s) {
    if (!s->bytes) return;
    s->line[s->bytes++] = '\n'; /* `room` leaves space for it */
    pass_on(output, s, s->line, s->bytes);
    s->bytes = 0;
}

static bool make_room(rm_launch_output *output, stream *s) {
    if (s->room - s->bytes > READ_BYTES) return true;
    char *larger = s->room < LINE_BYTES ? rm_realloc(s->line, 2 * s->room + 2 * READ_BYTES) : NULL;
    if (larger) {
        s->line = larger;
        s->room = 2 * s->room + 2 * READ_BYTES;
    } else {
        finish_line(output, s);
    }
    return s->room > READ_BYTES;
}

/* Reads one portion. Returns false if there was none. */
static bool receive(rm_launch_output *output, stream *s) {
    if (s->fd < 0 || !make_room(output, s)) return false;
    ssize_t n = read(s->fd, s->line + s->bytes, READ_BYTES);
    if (n == 0) { /* no process has this pipe open for writing */
        close(s->fd);
        s->fd = -1;
    }
    if (n <= 0) return n < 0 && errno == EINTR;
    char *end = memrchr(s->line + s->bytes, '\n', (size_t)n);
    s->bytes += (size_t)n;
    if (!end) return true;
    size_t whole = (size_t)(end + 1 - s->line);
    pass_on(output, s, s->line, whole);
    memmove(s->line, s->line + whole, s->bytes - whole);
    s->bytes -= whole;
    return true;
}

void rm_launch_output_drain(rm_launch_output *output) {
    for (int i = 0; i < 2 * output->config.nproc; i++) {
        while (receive(output, &output->streams[i])) {}
        finish_line(output, &output->streams[i]);
    }
}

/* ---- A turn of the loop ------------------------------------------------------------------------------------------ */

bool rm_launch_output_pending(const rm_launch_output *output) {
    return output->out.end > output->out.begin || output->err.end > output->err.begin;
}

int rm_launch_output_slots(const rm_launch_output *output) { return 2 + 2 * output->config.nproc; }

static bool may_read(const stream *s) { return s->fd >= 0 && s->to->end - s->to->begin < QUEUE_BYTES; }

int rm_launch_output_watch(rm_launch_output *output, struct pollfd *slots) {
    int n = 0;
    if (may_write(output, &output->out)) slots[n++] = (struct pollfd){.fd = output->out.fd, .events = POLLOUT};
    if (may_write(output, &output->err)) slots[n++] = (struct pollfd){.fd = output->err.fd, .events = POLLOUT};
    for (int i = 0; i < 2 * output->config.nproc; i++)
        if (may_read(&output->streams[i])) slots[n++] = (struct pollfd){.fd = output->streams[i].fd, .events = POLLIN};
    return n;
}

void rm_launch_output_tend(rm_launch_output *output) {
    for (int i = 0; i < 2 * output->config.nproc; i++)
        if (may_read(&output->streams[i])) (void)receive(output, &output->streams[i]);
    flush_some(output, &output->out);
    flush_some(output, &output->err);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static remat_status open_stream(rm_launch_output *output, int i) {
    int ends[2];
    stream *s = &output->streams[i];
    s->local_rank = i / 2;
    s->to = i % 2 ? &output->err : &output->out;
    if (output->config.direct_rank_0 && i < 2) return REMAT_OK;
    REQUIRE(!pipe2(ends, O_CLOEXEC), IO,
            "cannot create pipes for the output of %d ranks: %s; check the limit of open files (`ulimit -n`)",
            output->config.nproc, strerror(errno));
    s->fd = ends[0];
    s->write_end = ends[1];
    fcntl(s->fd, F_SETFL, O_NONBLOCK); /* only for the reading end: ranks write to an ordinary pipe */
    return REMAT_OK;
}

remat_status rm_launch_output_open(const rm_launch_output_config *config, rm_launch_output **out) {
    size_t n = (size_t)config->nproc;
    rm_launch_output *output = rm_calloc(1, sizeof *output);
    REQUIRE(output, MEMORY, "out of memory for a launcher");
    *output = (rm_launch_output){.config = *config, .out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}};
    output->streams = rm_calloc(2 * n, sizeof *output->streams);
    output->logs = rm_calloc(2 * n, sizeof(FILE *));
    remat_status status = REMAT_OK;
    if (!output->streams || !output->logs)
        status = rm_fail(REMAT_MEMORY, "out of memory for the output of %zu ranks", n);
    for (size_t i = 0; i < 2 * n && output->streams; i++) output->streams[i].fd = output->streams[i].write_end = -1;
    for (size_t i = 0; i < 2 * n && !status; i++) status = open_stream(output, (int)i);
    if (!status) status = rm_launch_output_begin(output, 0);
    if (status)
        rm_launch_output_close(output);
    else
        *out = output;
    return status;
}

int rm_launch_output_pipe(const rm_launch_output *output, int32_t local_rank, int which) {
    return output->streams[2 * local_rank + which - 1].write_end;
}

void rm_launch_output_close_pipes(rm_launch_output *output) {
    for (int i = 0; i < 2 * output->config.nproc && output->streams; i++) {
        if (output->streams[i].write_end >= 0) close(output->streams[i].write_end);
        output->streams[i].write_end = -1;
    }
}

void rm_launch_output_close(rm_launch_output *output) {
    if (!output) return;
    rm_launch_output_close_pipes(output);
    for (int i = 0; i < 2 * output->config.nproc && output->streams; i++) {
        if (output->streams[i].fd >= 0) close(output->streams[i].fd);
        rm_free(output->streams[i].line);
    }
    if (output->logs) close_logs(output);
    rm_free(output->streams);
    rm_free(output->logs);
    rm_free(output->out.data);
    rm_free(output->err.data);
    rm_free(output);
}
