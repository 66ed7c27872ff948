/* timeline_events.c: an observer that writes events to a file for trace viewers (engine/remat/observe.h). It keeps the
 * events of a step until the step's update, then writes them or, of most steps, forgets them; trace_file.c writes. Main
 * entry: remat_timeline_open. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/abi.h"
#include "engine/report/observe.h"
#include "engine/report/trace_file.h"
#include "memory/host.h"

enum {
    MOST_EVENTS = 32768, /* of a step */
    FIRST_STEPS = 16,    /* are all written */
    PER_DOUBLING = 8,    /* of later ones: as many between steps 2^k and 2^(k+1) */
    MOST_LANES = 64,     /* threads whose names are written */
    TEXT = 1 << 16,
    LONGEST = 1 << 10 /* of an event in JSON */
};
#define MOST_BYTES (UINT64_C(64) << 20)
#define PATIENCE_NS 250000000 /* events of a step that is written are written so often while it lasts */

typedef struct {
    remat_event_kind kind;
    int32_t thread, peer;
    int64_t number;
    uint64_t begin_ns, end_ns, bytes;
    char name[64];
} event;

struct remat_timeline {
    remat_observer observer;
    pthread_mutex_t lock;
    rm_trace_file file;
    int rank, size;             /* size 0: no JOIN yet */
    event *now, *before;        /* not written yet: of this step, and of the last one */
    int64_t n_now, n_before;    /* events there */
    int64_t n_step;             /* events of this step so far, written or not */
    int64_t step;               /* updates since the timeline was opened */
    uint64_t real_ns;           /* CLOCK_REALTIME - CLOCK_MONOTONIC */
    uint64_t looked_ns, bytes;  /* when events were last written; how many bytes so far */
    int64_t n_dropped, n_async; /* events that were not written; ids of those that overlap */
    int32_t lane[MOST_LANES];   /* threads whose names have been written */
    int n_lanes;
    remat_status status; /* the first failure to write, after which nothing is written */
    rm_reason why;
    size_t length;
    char text[TEXT + RM_TRACE_TAIL_BYTES];
};

/* ---- JSON ----------------------------------------------------------------------------------------------------- */

typedef enum { SESSION, COLLECTIVES, SPILL } lane;
typedef struct {
    const char *name;                  /* in viewers; NULL: the event's own */
    const char *number, *peer, *about; /* what these members of an event are called; NULL: they are not written */
    lane lane;
} shape;

static const shape shapes[] = {
    [REMAT_EVENT_JOIN] = {.name = "join", .number = "rank", .peer = "of"},
    [REMAT_EVENT_GRADIENTS] = {.name = "gradients", .number = "step"},
    [REMAT_EVENT_UPDATE] = {.name = "update", .number = "step"},
    [REMAT_EVENT_EVALUATION] = {.name = "evaluation", .number = "step"},
    [REMAT_EVENT_FORWARD] = {.name = "forward", .number = "stage"},
    [REMAT_EVENT_RECOMPUTE] = {.name = "recompute", .number = "stage"},
    [REMAT_EVENT_BACKWARD] = {.name = "backward", .number = "stage"},
    [REMAT_EVENT_LIVE] = {.name = "live bytes"},
    [REMAT_EVENT_SAVE] = {.name = "save", .lane = SPILL},
    [REMAT_EVENT_LOAD] = {.name = "load", .lane = SPILL},
    [REMAT_EVENT_WAIT] = {.name = "wait", .about = "for"},
    [REMAT_EVENT_BUCKET] = {.lane = COLLECTIVES},
    [REMAT_EVENT_COLLECTIVE] = {.lane = COLLECTIVES},
    [REMAT_EVENT_SEND] = {.name = "send", .peer = "to"},
    [REMAT_EVENT_RECEIVE] = {.name = "receive", .peer = "from"},
    [REMAT_EVENT_PROGRAM] = {.name = NULL},
};
enum { KINDS = sizeof shapes / sizeof *shapes };

static void print(remat_timeline *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print(remat_timeline *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(t->text + t->length, TEXT - t->length, format, arguments);
    va_end(arguments);
    if (bytes > 0) t->length += (size_t)bytes;
}

static void print_text(remat_timeline *t, const char *key, const char *text) {
    print(t, "\"%s\":\"", key);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c >= ' ') print(t, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    print(t, "\"");
}

/* Microseconds since the file was begun, with three decimals. */
static void print_time(remat_timeline *t, const char *key, uint64_t ns) {
    print(t, ",\"%s\":%llu.%03u", key, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

static uint64_t since_start(const remat_timeline *t, uint64_t ns) {
    ns += t->real_ns;
    return ns > t->file.start_ns ? ns - t->file.start_ns : 0;
}

static void begin(remat_timeline *t, char phase, const event *e, uint64_t ns) {
    print(t, ",\n{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", phase, t->rank, e->thread);
    print_time(t, "ts", since_start(t, ns));
    print(t, ",");
    print_text(t, "name", shapes[e->kind].name ? shapes[e->kind].name : e->name);
}

static void print_arguments(remat_timeline *t, const event *e) {
    const shape *s = &shapes[e->kind];
    const char *comma = "";
    print(t, ",\"args\":{");
    if (s->number) print(t, "\"%s\":%lld", s->number, (long long)e->number), comma = ",";
    if (s->peer) print(t, "%s\"%s\":%d", comma, s->peer, e->peer), comma = ",";
    if (e->bytes) print(t, "%s\"bytes\":%llu", comma, (unsigned long long)e->bytes), comma = ",";
    if (s->about) print(t, "%s", comma), print_text(t, s->about, e->name);
    print(t, "}}");
}

static void print_async(remat_timeline *t, const event *e) {
    for (int end = 0; end < 2; end++) {
        begin(t, end ? 'e' : 'b', e, end ? e->end_ns : e->begin_ns);
        print(t, ",\"cat\":\"bucket\",\"id\":\"%d.%lld\"", t->rank, (long long)t->n_async);
        print_arguments(t, e);
    }
    t->n_async++;
}

static void print_event(remat_timeline *t, const event *e) {
    if (e->kind == REMAT_EVENT_BUCKET) {
        print_async(t, e);
    } else if (e->kind == REMAT_EVENT_LIVE) {
        begin(t, 'C', e, e->begin_ns);
        print(t, ",\"args\":{\"bytes\":%llu}}", (unsigned long long)e->bytes);
    } else {
        begin(t, 'X', e, e->begin_ns);
        print_time(t, "dur", since_start(t, e->end_ns) - since_start(t, e->begin_ns));
        print_arguments(t, e);
    }
}

static void print_name(remat_timeline *t, const char *what, int32_t thread, const char *name) {
    print(t, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{", t->rank, thread, what);
    print_text(t, "name", name);
    print(t, "}}");
}

/* Names the rank before its first event, and every thread before its first. */
static void introduce(remat_timeline *t, const event *e) {
    static const char *const lanes[] = {[SESSION] = "session", [COLLECTIVES] = "collectives", [SPILL] = "spill file"};
    char host[80] = "", name[128];
    for (int i = 0; i < t->n_lanes; i++)
        if (t->lane[i] == e->thread) return;
    if (!t->n_lanes) {
        (void)gethostname(host, sizeof host - 1);
        snprintf(name, sizeof name, "rank %d of %d on %s", t->rank, t->size ? t->size : 1, host);
        print_name(t, "process_name", e->thread, name);
        print(t, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", t->rank,
              t->rank);
    }
    if (t->n_lanes == MOST_LANES) return;
    t->lane[t->n_lanes++] = e->thread;
    print_name(t, "thread_name", e->thread, lanes[shapes[e->kind].lane]);
}

/* ---- Writing -------------------------------------------------------------------------------------------------- */

static remat_status write_out(remat_timeline *t) {
    remat_status status = t->length ? rm_trace_file_append(&t->file, t->text, t->length) : REMAT_OK;
    t->bytes += t->length;
    t->length = 0;
    return status;
}

static remat_status write_locked(remat_timeline *t, const event *events, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        introduce(t, &events[i]);
        print_event(t, &events[i]);
        if (t->length > TEXT - 4 * LONGEST) TRY(write_out(t));
    }
    return write_out(t);
}

static remat_status write_events(remat_timeline *t, const event *events, int64_t n) {
    TRY(rm_trace_file_lock(&t->file));
    remat_status status = write_locked(t, events, n);
    rm_trace_file_unlock(&t->file);
    return status;
}

static void write_now(remat_timeline *t, uint64_t now_ns) {
    t->looked_ns = now_ns;
    if (!t->status && t->n_now) {
        t->status = write_events(t, t->now, t->n_now);
        if (t->status) t->why = rm_reason_kept();
    }
    t->n_now = 0;
}

/* ---- Recording ------------------------------------------------------------------------------------------------ */

static bool is_written(const remat_timeline *t) {
    int64_t stride = 1;
    while (t->step / stride >= 2 * PER_DOUBLING) stride *= 2;
    return t->bytes < MOST_BYTES && (t->step < FIRST_STEPS || t->step % stride == 0);
}

static void end_step(remat_timeline *t, uint64_t now_ns) {
    if (is_written(t)) {
        write_now(t, now_ns);
        t->n_before = 0;
    } else {
        event *other = t->before;
        t->before = t->now;
        t->n_before = t->n_now;
        t->now = other;
        t->n_now = 0;
    }
    t->step++;
    t->n_step = 0;
}

static int32_t this_thread(void) {
    static _Thread_local int32_t thread;
    if (!thread) thread = (int32_t)gettid();
    return thread;
}

static void keep(remat_timeline *t, const remat_event *e) {
    if (t->n_now == MOST_EVENTS || t->n_step == MOST_EVENTS) {
        t->n_dropped++;
        return;
    }
    event *kept = &t->now[t->n_now++];
    *kept = (event){e->kind, this_thread(), e->peer, e->number, e->begin_ns, e->end_ns, e->bytes, ""};
    t->n_step++;
    if (e->name) strncat(kept->name, e->name, sizeof kept->name - 1);
}

static void take(void *context, const remat_event *e) {
    remat_timeline *t = context;
    if ((unsigned)e->kind >= KINDS) return;
    pthread_mutex_lock(&t->lock);
    if (e->kind == REMAT_EVENT_JOIN && !t->size) t->rank = (int)e->number, t->size = e->peer;
    keep(t, e);
    if (e->kind == REMAT_EVENT_UPDATE)
        end_step(t, e->end_ns);
    else if (is_written(t) && e->end_ns > t->looked_ns + PATIENCE_NS)
        write_now(t, e->end_ns);
    pthread_mutex_unlock(&t->lock);
}

/* ---- Entries -------------------------------------------------------------------------------------------------- */

remat_status rm_take_observer(const remat_observer *from, remat_observer *out) {
    *out = (remat_observer){0};
    return from && from->event ? rm_take(out, sizeof *out, from, "remat_observer") : REMAT_OK;
}

static void free_timeline(remat_timeline *t) {
    rm_trace_file_close(&t->file);
    rm_free(t->now);
    rm_free(t->before);
    pthread_mutex_destroy(&t->lock);
    rm_free(t);
}

static remat_status set_up(remat_timeline *t, const remat_timeline_config *config) {
    t->now = rm_malloc(MOST_EVENTS * sizeof *t->now);
    t->before = rm_malloc(MOST_EVENTS * sizeof *t->before);
    TRY(rm_trace_file_open(config->path, config->append, &t->file));
    REQUIRE(t->now && t->before, MEMORY, "out of memory for a timeline of %d events a step", MOST_EVENTS);
    return REMAT_OK;
}

remat_status remat_timeline_open(const remat_timeline_config *config, remat_timeline **out) {
    remat_timeline_config ours;
    NEED(config, "a config");
    NEED(out, "a place for the timeline");
    TRY(rm_take(&ours, sizeof ours, config, "remat_timeline_config"));
    NEED(ours.path, "a path");
    remat_timeline *t = rm_calloc(1, sizeof *t);
    REQUIRE(t, MEMORY, "out of memory for a timeline");
    pthread_mutex_init(&t->lock, NULL);
    t->observer = (remat_observer){.struct_bytes = sizeof t->observer, .context = t, .event = take};
    t->looked_ns = rm_now_ns();
    t->real_ns = rm_clock_ns(CLOCK_REALTIME) - t->looked_ns;
    remat_status status = set_up(t, &ours);
    if (status)
        free_timeline(t);
    else
        *out = t;
    return status;
}

const remat_observer *remat_timeline_observer(remat_timeline *t) { return t ? &t->observer : NULL; }

static remat_status write_last(remat_timeline *t) {
    TRY(t->status ? rm_reason_again(t->status, &t->why) : REMAT_OK);
    TRY(write_events(t, t->before, t->n_before));
    TRY(write_events(t, t->now, t->n_now));
    REQUIRE(!t->n_dropped, IO, "%lld events are not in the timeline %s: a step may have %d", (long long)t->n_dropped,
            t->file.path, MOST_EVENTS);
    return REMAT_OK;
}

remat_status remat_timeline_close(remat_timeline *t) {
    if (!t) return REMAT_OK;
    remat_status status = write_last(t);
    free_timeline(t);
    return status;
}
