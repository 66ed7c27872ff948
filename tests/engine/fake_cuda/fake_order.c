/* fake_order.c: the fake's streams and events (fake.h). Each piece of work knows how much of every stream precedes it.
 * An access is a violation if by these counts it does not follow a conflicting access of another stream. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <time.h>

#include "fake.h"

enum { MOST_STREAMS = 64, MOST_RANGES = 40 };

typedef struct {
    uint64_t after[MOST_STREAMS]; /* by stream: its work up to this number comes before */
} moment;

typedef struct task {
    struct task *next;
    enum { WORK, RECORD, WAIT } what;
    void (*work)(void *context);
    bool (*patient)(void *context); /* instead of it: false while it waits for another process */
    void *context;                  /* owned copy */
    cudaEvent_t event;
    uint64_t version;
} task;

/* A recorded piece of work. */
typedef struct recorded {
    struct recorded *next;
    void (*work)(void *context);
    bool (*patient)(void *context);
    void *context;
    size_t bytes;
    fake_range range[MOST_RANGES];
    int n;
} recorded;

struct CUgraph_st {
    struct CUgraph_st *next;
    bool lives;
    recorded *first, **last;
};

struct CUgraphExec_st {
    struct CUgraphExec_st *next;
    bool lives;
    recorded *first;
    int stream;      /* of its last launch ... */
    uint64_t number; /* ... where it was this piece of work; 0: never launched */
};

struct CUstream_st {
    struct CUstream_st *next;
    bool lives;
    int number;
    moment now;
    task *first, **last;
    bool busy;           /* a thread runs a piece of its work */
    cudaGraph_t records; /* NULL: the stream executes its work */
    pthread_t recorder;
};

struct CUevent_st {
    struct CUevent_st *next;
    bool lives;
    moment when;
    uint64_t recorded, reached;
    bool keeps_time;
    struct timespec at; /* time when it was last reached */
};

typedef struct {
    fake_range range;
    uint64_t number;
} access_made;

static struct CUstream_st *streams;
static struct CUevent_st *events;
static struct CUgraph_st *graphs;
static struct CUgraphExec_st *execs;
static int64_t graphs_made, graphs_launched;
static int n_streams;
static moment host; /* the work that it has waited for */
static struct {
    access_made *item;
    int64_t n, room;
} made[MOST_STREAMS];
static uint64_t random_state;
int64_t fake_break;
bool fake_broken;

/* ---- Threads --------------------------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int depth;

void fake_enter(void) {
    if (!depth++) pthread_mutex_lock(&mutex);
}
void fake_leave(const int *unused) {
    (void)unused;
    if (!--depth) pthread_mutex_unlock(&mutex);
}

/* Work may wait for another process, whose work may wait for another thread of this process. */
static int step_outside(void) {
    int was = depth;
    depth = 0;
    pthread_mutex_unlock(&mutex);
    return was;
}
static void step_inside(int was) {
    pthread_mutex_lock(&mutex);
    depth = was;
}

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void join(moment *a, const moment *b) {
    for (int i = 0; i < MOST_STREAMS; i++)
        if (b->after[i] > a->after[i]) a->after[i] = b->after[i];
}

/* ---- Accesses -------------------------------------------------------------------------------------------------- */

static bool overlap(const fake_range *a, const fake_range *b) {
    const char *x = a->start, *y = b->start;
    return x < y + b->bytes && y < x + a->bytes;
}

static void check_access(cudaStream_t stream, const fake_range *range) {
    for (int s = 0; s < n_streams; s++)
        for (int64_t i = 0; i < made[s].n && s != stream->number; i++) {
            const access_made *other = &made[s].item[i];
            bool conflict = (range->writes || other->range.writes) && overlap(range, &other->range);
            if (!conflict || other->number <= stream->now.after[s]) continue;
            fake_violate("stream %d %s %llu bytes at %p that stream %d %s, and no event orders them", stream->number,
                         range->writes ? "writes" : "reads", (unsigned long long)range->bytes, range->start, s,
                         other->range.writes ? "writes" : "reads");
        }
}

static void keep_access(cudaStream_t stream, const fake_range *range) {
    int s = stream->number;
    if (made[s].n == made[s].room) {
        made[s].room = made[s].room ? 2 * made[s].room : 256;
        made[s].item = realloc(made[s].item, (size_t)made[s].room * sizeof *made[s].item);
    }
    made[s].item[made[s].n++] = (access_made){*range, stream->now.after[s]};
}

/* Work that the host has waited for cannot conflict with later work. */
static void forget_accesses(void) {
    for (int s = 0; s < n_streams; s++) {
        int64_t kept = 0;
        for (int64_t i = 0; i < made[s].n; i++)
            if (made[s].item[i].number > host.after[s]) made[s].item[kept++] = made[s].item[i];
        made[s].n = kept;
    }
}

bool fake_in_flight(const void *start, uint64_t bytes) {
    FAKE_INSIDE;
    fake_range all = {start, bytes, true};
    for (int s = 0; s < n_streams; s++)
        for (int64_t i = 0; i < made[s].n; i++)
            if (overlap(&all, &made[s].item[i].range)) return true;
    return false;
}

/* ---- Execution ------------------------------------------------------------------------------------------------- */

static bool can_go_on(cudaStream_t s) {
    return s->first && !s->busy && !(s->first->what == WAIT && s->first->event->reached < s->first->version);
}

/* False: it waits for another process. */
static bool work_on(task *t) {
    if (fake_broken) return true;
    if (t->patient) return t->patient(t->context);
    t->work(t->context);
    return true;
}

/* False: the first piece of its work waits for another process, and stays the first. */
static bool go_on(cudaStream_t s) {
    task *t = s->first;
    bool done = true;
    if (t->what == RECORD) clock_gettime(CLOCK_MONOTONIC, &t->event->at);
    if (t->what == RECORD && t->event->reached < t->version) t->event->reached = t->version;
    if (t->what == WORK) {
        if (!t->patient && fake_break && !--fake_break) fake_broken = true;
        s->busy = true;
        int was = step_outside();
        done = work_on(t);
        step_inside(was);
        s->busy = false;
    }
    if (!done) return false;
    s->first = t->next;
    if (!s->first) s->last = &s->first;
    free(t->context);
    free(t);
    return true;
}

/* Runs one piece of work of some stream, and tries those that wait for another process. False: no stream has gone on. *waits:
 * one may later. */
static bool take_a_turn(bool *waits) {
    cudaStream_t able[MOST_STREAMS];
    uint32_t n = 0;
    *waits = false;
    for (cudaStream_t s = streams; s; s = s->next)
        if (can_go_on(s)) able[n++] = s;
    while (n) {
        uint32_t i = draw(n);
        bool able_still = can_go_on(able[i]); /* other threads may have had their turns meanwhile */
        if (able_still && go_on(able[i])) return true;
        *waits |= able_still;
        able[i] = able[--n];
    }
    return false;
}

static void take_some_turns(void) {
    bool waits;
    fake_unlock(true);
    for (uint32_t turns = 1 + draw(24); turns && take_a_turn(&waits);) turns--;
    fake_unlock(false);
}

void fake_take_turns(void) {
    FAKE_INSIDE;
    take_some_turns();
}

static bool is_empty(cudaStream_t s) { return !s->first && !s->busy; }

static bool somebody_works(void) {
    for (cudaStream_t s = streams; s; s = s->next)
        if (s->busy) return true;
    return false;
}

static void run_until(cudaStream_t stream, cudaEvent_t event, uint64_t version) {
    fake_unlock(true);
    while (stream ? !is_empty(stream) : event->reached < version) {
        bool waits;
        if (take_a_turn(&waits)) continue;
        if (!waits && !somebody_works()) {
            fake_violate("streams wait for each other, or for an event that is never recorded");
            break;
        }
        int was = step_outside();
        usleep(50);
        step_inside(was);
    }
    fake_unlock(false);
}

bool fake_query_stream(cudaStream_t stream) {
    FAKE_INSIDE;
    if (stream->records) fake_violate("a stream is queried while it records");
    if (!is_empty(stream)) fake_take_turns();
    if (!is_empty(stream)) return false;
    join(&host, &stream->now);
    forget_accesses();
    return true;
}

bool fake_query_event(cudaEvent_t event) {
    FAKE_INSIDE;
    if (event->reached < event->recorded) fake_take_turns();
    if (event->reached < event->recorded) return false;
    join(&host, &event->when);
    forget_accesses();
    return true;
}

void fake_finish_stream(cudaStream_t stream) {
    FAKE_INSIDE;
    if (stream->records) fake_violate("a wait for a stream that records");
    run_until(stream, NULL, 0);
    join(&host, &stream->now);
    forget_accesses();
}

void fake_finish_event(cudaEvent_t event) {
    FAKE_INSIDE;
    run_until(NULL, event, event->recorded);
    join(&host, &event->when);
    forget_accesses();
}

/* ---- Submission ------------------------------------------------------------------------------------------------ */

static task *append(cudaStream_t stream) {
    task *t = calloc(1, sizeof *t);
    join(&stream->now, &host);
    stream->now.after[stream->number]++;
    *stream->last = t;
    stream->last = &t->next;
    return t;
}

/* Sometimes work runs at once: a real GPU does not need a wait. */
static void perhaps_go_on(void) {
    if (!draw(32)) take_some_turns();
}

static void *copy_of(const void *context, size_t bytes) {
    void *copy = malloc(bytes);
    return memcpy(copy, context, bytes);
}

static void push(cudaStream_t stream, const recorded *r) {
    task *t = append(stream);
    t->work = r->work;
    t->patient = r->patient;
    t->context = copy_of(r->context, r->bytes);
    for (int i = 0; i < r->n; i++) {
        const fake_range *range = &r->range[i];
        if (!range->bytes) continue;
        if (!fake_lies_in(range->start, range->bytes, true) && !fake_lies_in(range->start, range->bytes, false))
            fake_violate("%llu bytes at %p are not in memory allocated by CUDA", (unsigned long long)range->bytes,
                         range->start);
        check_access(stream, range);
        keep_access(stream, range);
    }
}

static void keep_recorded(cudaGraph_t graph, const recorded *r) {
    recorded *copy = copy_of(r, sizeof *r);
    copy->context = copy_of(r->context, r->bytes);
    *graph->last = copy;
    graph->last = &copy->next;
}

static void give(cudaStream_t stream, recorded r, const fake_range *range) {
    FAKE_INSIDE;
    if (r.n) memcpy(r.range, range, (size_t)r.n * sizeof *range);
    if (!fake_stream_lives(stream))
        fake_violate("work is given to a stream that does not exist");
    else if (stream->records && r.patient)
        fake_violate("a graph records work that waits for another process");
    else if (stream->records)
        keep_recorded(stream->records, &r);
    else {
        push(stream, &r);
        perhaps_go_on();
    }
}

void fake_push(cudaStream_t stream, void (*work)(void *), const void *context, size_t bytes, const fake_range *range,
               int n) {
    give(stream, (recorded){.work = work, .context = (void *)(uintptr_t)context, .bytes = bytes, .n = n}, range);
}

void fake_push_patient(cudaStream_t stream, bool (*work)(void *), const void *context, size_t bytes,
                       const fake_range *range, int n) {
    give(stream, (recorded){.patient = work, .context = (void *)(uintptr_t)context, .bytes = bytes, .n = n}, range);
}

void fake_record(cudaEvent_t event, cudaStream_t stream) {
    FAKE_INSIDE;
    if (stream->records) fake_violate("an event is recorded in the middle of a graph");
    task *t = append(stream);
    t->what = RECORD;
    t->event = event;
    t->version = ++event->recorded;
    event->when = stream->now;
}

void fake_wait(cudaStream_t stream, cudaEvent_t event) {
    FAKE_INSIDE;
    if (stream->records) fake_violate("an event is waited for in the middle of a graph");
    task *t = append(stream);
    t->what = WAIT;
    t->event = event;
    t->version = event->recorded;
    join(&stream->now, &event->when);
}

/* ---- Graphs ---------------------------------------------------------------------------------------------------- */

bool fake_records(void) {
    FAKE_INSIDE;
    for (cudaStream_t s = streams; s; s = s->next)
        if (s->records && pthread_equal(s->recorder, pthread_self())) return true;
    return false;
}

bool fake_record_begin(cudaStream_t stream) {
    FAKE_INSIDE;
    if (!fake_stream_lives(stream) || stream->records) {
        fake_violate("a recording starts on a stream that does not exist, or that records already");
        return false;
    }
    cudaGraph_t graph = calloc(1, sizeof *graph);
    graph->lives = true;
    graph->last = &graph->first;
    graph->next = graphs;
    stream->recorder = pthread_self();
    stream->records = graphs = graph;
    return true;
}

cudaGraph_t fake_record_end(cudaStream_t stream) {
    FAKE_INSIDE;
    cudaGraph_t graph = fake_stream_lives(stream) ? stream->records : NULL;
    if (!graph) fake_violate("a recording ends that was never started");
    if (graph) stream->records = NULL;
    return graph;
}

static void drop_recorded(recorded *first) {
    while (first) {
        recorded *next = first->next;
        free(first->context);
        free(first);
        first = next;
    }
}

/* Destroyed graphs stay as empty objects, so that a second destruction or a later use is detected. */
void fake_graph_end(cudaGraph_t graph) {
    FAKE_INSIDE;
    if (!graph->lives) fake_violate("a graph is destroyed twice");
    drop_recorded(graph->first);
    graph->first = NULL;
    graph->lives = false;
}

cudaGraphExec_t fake_graph_make(cudaGraph_t graph) {
    FAKE_INSIDE;
    cudaGraphExec_t exec = calloc(1, sizeof *exec);
    recorded **last = &exec->first;
    if (!graph->lives) fake_violate("a destroyed graph is instantiated");
    for (const recorded *r = graph->first; r; r = r->next) {
        *last = copy_of(r, sizeof *r);
        (*last)->context = copy_of(r->context, r->bytes);
        (*last)->next = NULL;
        last = &(*last)->next;
    }
    exec->lives = true;
    exec->next = execs;
    graphs_made++;
    return execs = exec;
}

size_t fake_graph_launches(cudaGraph_t graph) {
    FAKE_INSIDE;
    size_t n = 0;
    for (const recorded *r = graph->first; r; r = r->next) n++;
    return n;
}

void fake_graph_launch(cudaGraphExec_t exec, cudaStream_t stream) {
    FAKE_INSIDE;
    if (!exec->lives || !fake_stream_lives(stream) || stream->records) {
        fake_violate("a graph is launched that does not exist, or on a stream that does not exist or records");
        return;
    }
    for (const recorded *r = exec->first; r; r = r->next) push(stream, r);
    exec->stream = stream->number;
    exec->number = stream->now.after[stream->number];
    graphs_launched++;
    perhaps_go_on();
}

void fake_graph_exec_end(cudaGraphExec_t exec) {
    FAKE_INSIDE;
    if (!exec->lives) fake_violate("a graph is destroyed twice");
    if (exec->number > host.after[exec->stream]) fake_violate("a graph is destroyed while it may run");
    drop_recorded(exec->first);
    exec->first = NULL;
    exec->lives = false;
}

int64_t fake_graphs_live(void) {
    FAKE_INSIDE;
    int64_t n = 0;
    for (cudaGraphExec_t e = execs; e; e = e->next) n += e->lives;
    return n;
}
int64_t fake_cuda_graphs(void) { return graphs_made; }
int64_t fake_cuda_replays(void) { return graphs_launched; }

/* ---- Creation and destruction ---------------------------------------------------------------------------------- */

cudaStream_t fake_stream_make(void) {
    FAKE_INSIDE;
    if (n_streams == MOST_STREAMS) return NULL;
    cudaStream_t s = calloc(1, sizeof *s);
    s->number = n_streams++;
    s->lives = true;
    s->last = &s->first;
    s->next = streams;
    return streams = s;
}

cudaEvent_t fake_event_make(void) {
    FAKE_INSIDE;
    cudaEvent_t e = calloc(1, sizeof *e);
    e->lives = true;
    e->next = events;
    return events = e;
}

void fake_event_keeps_time(cudaEvent_t event) { event->keeps_time = true; }

float fake_event_between_ms(cudaEvent_t from, cudaEvent_t to) {
    if (!from->keeps_time || !to->keeps_time) fake_violate("the time of an event without timing is queried");
    if (!from->recorded || from->reached < from->recorded || !to->recorded || to->reached < to->recorded)
        fake_violate("the time of an event that was not reached is queried");
    return 1e3f * (float)(to->at.tv_sec - from->at.tv_sec) + 1e-6f * (float)(to->at.tv_nsec - from->at.tv_nsec);
}

/* Destroyed objects stay, so that a second destruction is detected. */
bool fake_stream_lives(cudaStream_t stream) {
    FAKE_INSIDE;
    for (cudaStream_t s = streams; s; s = s->next)
        if (s == stream) return s->lives;
    return false;
}

void fake_stream_end(cudaStream_t stream) {
    FAKE_INSIDE;
    if (!fake_stream_lives(stream))
        fake_violate("a stream is destroyed that does not exist, or twice");
    else if (stream->first || stream->records)
        fake_violate("a stream is destroyed while it has work, or records");
    else
        stream->lives = false;
}

void fake_event_end(cudaEvent_t event) {
    FAKE_INSIDE;
    if (!event->lives) fake_violate("an event is destroyed twice");
    event->lives = false;
}

int64_t fake_order_live(void) {
    FAKE_INSIDE;
    int64_t n = 0;
    for (cudaStream_t s = streams; s; s = s->next) n += s->lives;
    for (cudaEvent_t e = events; e; e = e->next) n += e->lives;
    for (cudaGraph_t g = graphs; g; g = g->next) n += g->lives;
    return n + fake_graphs_live();
}

static void drop_tasks(cudaStream_t s) {
    while (s->first) {
        task *t = s->first;
        s->first = t->next;
        free(t->context);
        free(t);
    }
}

void fake_order_reset(uint64_t seed) {
    while (streams) {
        cudaStream_t s = streams;
        streams = s->next;
        drop_tasks(s);
        free(s);
    }
    while (events) {
        cudaEvent_t e = events;
        events = e->next;
        free(e);
    }
    while (graphs) {
        cudaGraph_t g = graphs;
        graphs = g->next;
        drop_recorded(g->first);
        free(g);
    }
    while (execs) {
        cudaGraphExec_t e = execs;
        execs = e->next;
        drop_recorded(e->first);
        free(e);
    }
    graphs_made = graphs_launched = 0;
    for (int i = 0; i < MOST_STREAMS; i++) {
        free(made[i].item);
        memset(&made[i], 0, sizeof made[i]);
    }
    n_streams = 0;
    memset(&host, 0, sizeof host);
    random_state = seed * 2 + 1;
    fake_break = 0;
    fake_broken = false;
}
