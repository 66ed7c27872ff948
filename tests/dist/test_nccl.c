/* test_nccl.c: the engine nccl on a machine without a GPU, with a libnccl and a libcudart that compute on the CPU and
 * check the rules (fake_nccl/fake.h): results of collectives, every fault that the fakes can produce, and that nothing is leaked. If
 * the real libraries are installed, they must have the functions that Remat calls, and the lack of a GPU must be one
 * clear error. */
#include "tests/dist/collectives.h"
#include "tests/suite.h"

#ifndef REMAT_HAVE_NCCL
int main(void) {
    puts("this build has no NCCL");
    return 0;
}
#else
#include <dlfcn.h>
#include <pthread.h>

#include "dist/nccl/nccl_library.h"
#include "memory/host.h"
#include "tests/dist/nccl_fakes.h"

/* ---- Results ----------------------------------------------------------------------------------------------------- */

static bool is_half(rm_wire wire) { return wire == RM_WIRE_F16 || wire == RM_WIRE_BF16; }

/* NCCL rounds 16-bit sums after every addition: another test covers these, with numbers that need no rounding. */
static bool has_a_definition(uint64_t number, int size) {
    random_case c = draw_case(number, size);
    return !is_half(c.what.wire) || (c.what.kind != RM_ALL_REDUCE && c.what.kind != RM_REDUCE_SCATTER);
}

static void random_cases(rm_group *group, int from, int to) {
    const int size = rm_group_size(group);
    for (int i = from; i < to; i++)
        if (has_a_definition((uint64_t)i, size)) do_case(group, (uint64_t)i, false);
}

/* Small whole numbers, all sums of which are exact in every type, also in halves and divided by 1, 2 or 4. */
static int whole(int r, int64_t i) { return 4 * (int)((i * 7 + r * 11) % 13 - 6); }
static int whole_sum(int size, int64_t i) {
    int sum = 0;
    for (int r = 0; r < size; r++) sum += whole(r, i);
    return sum;
}

static void put(rm_wire wire, void *to, int64_t i, int value) {
    const double real = value;
    const uint32_t bits = (uint32_t)value;
    if (wire == RM_WIRE_F32) ((float *)to)[i] = (float)value;
    if (wire == RM_WIRE_F64) ((double *)to)[i] = real;
    if (wire == RM_WIRE_I32) ((uint32_t *)to)[i] = bits;
    if (wire == RM_WIRE_U8) ((uint8_t *)to)[i] = (uint8_t)bits;
    if (is_half(wire)) ((uint16_t *)to)[i] = half_of(real, wire == RM_WIRE_F16 ? F16 : BF16);
}

static void exact_sum(rm_group *group, rm_kind kind, rm_wire wire, rm_reduction reduction) {
    enum { N = 700 };
    const int rank = rm_group_rank(group), size = rm_group_size(group), rows = kind == RM_ALL_REDUCE ? 1 : size;
    const uint64_t bytes = (uint64_t)(N * rows) * rm_wire_bytes(wire);
    void *in = rm_group_alloc(group, bytes), *out = rm_group_alloc(group, bytes);
    char expected[N * 8];
    need(in && out, "%s", remat_last_error());
    for (int64_t i = 0; i < N * rows; i++) put(wire, in, i, whole(rank, i));
    need_ok(rm_group_run(
        group, &(rm_collective){.kind = kind, .wire = wire, .reduction = reduction, .count = N, .in = in, .out = out}));
    for (int64_t i = 0; i < N; i++) {
        int sum = whole_sum(size, kind == RM_ALL_REDUCE ? i : rank * N + i);
        put(wire, expected, i, reduction == RM_MEAN ? sum / size : sum);
    }
    need(!memcmp(out, expected, N * rm_wire_bytes(wire)), "%d ranks: kind %d, wire %d, reduction %d", size, (int)kind,
         (int)wire, (int)reduction);
    rm_group_free(group, in);
    rm_group_free(group, out);
}

static void exact_sums(rm_group *group) {
    const bool power = !(rm_group_size(group) & (rm_group_size(group) - 1));
    for (int w = 0; w < RM_WIRES; w++)
        for (rm_kind kind = RM_ALL_REDUCE; kind < RM_KINDS; kind++) {
            rm_wire wire = (rm_wire)w;
            if (kind != RM_ALL_REDUCE && kind != RM_REDUCE_SCATTER) continue;
            exact_sum(group, kind, wire, RM_SUM);
            if (power && (is_half(wire) || wire == RM_WIRE_F32)) exact_sum(group, kind, wire, RM_MEAN);
            if (power && (wire == RM_WIRE_F64 || wire == RM_WIRE_F32)) exact_sum(group, kind, wire, RM_TREE);
        }
}

/* The order is NCCL's own, but the bits are equal on all ranks. Also two groups at once, with different names. */
static void same_bits(rm_group *group) {
    enum { N = 20000 };
    const int rank = rm_group_rank(group), size = rm_group_size(group);
    float *x = rm_group_alloc(group, N * sizeof *x), *all = rm_group_alloc(group, (size_t)size * N * sizeof *x);
    need(x && all, "%s", remat_last_error());
    random_case c = {.seed = 3};
    bring(&c, rank, N, x);
    need_ok(rm_group_run(group,
                         &(rm_collective){.kind = RM_ALL_REDUCE, .reduction = RM_MEAN, .count = N, .in = x, .out = x}));
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_ALL_GATHER, .count = N, .in = x, .out = all}));
    for (int r = 1; r < size; r++) need(!memcmp(all, all + r * N, N * sizeof *x), "rank %d has other bits", r);
    need_ok(rm_group_poll(group)); /* x and all other buffers are freed with the group */
}

static void results(int rank, int size, rm_kv *store, void *context) {
    const char *faults = context;
    rm_group *group, *other;
    rm_group_config config = config_of(rank, size, store);
    use_fakes(faults);
    need_ok(rm_group_open(&config, &group));
    config.name = "other";
    config.engine = "auto"; /* on GPUs, auto means nccl */
    need_ok(rm_group_open(&config, &other));
    need(!strcmp(rm_group_engine(other), "nccl"), "%s", rm_group_engine(other));
    random_cases(group, 0, faults ? 20 : 70);
    exact_sums(group);
    random_cases(other, 100, 110);
    same_bits(group);
    rm_group_close(other);
    rm_group_close(group);
    need_nothing_left();
}

START_TEST(collectives_give_the_defined_results) { run_ranks(_i + 1, results, NULL); }
END_TEST
START_TEST(results_do_not_depend_on_calls_in_progress) { run_ranks(_i + 1, results, "in_progress=3"); }
END_TEST

/* ---- Faults in a collective -------------------------------------------------------------------------------------- */

/* The last rank has `faults`; all ranks run three all-reduces with tag 7. NCCL's collectives 1 and 2 belong to call 1:
 * the fingerprint and the data. */
typedef struct {
    const char *faults;
    remat_status status; /* of the last rank; the others get PEER unless they have faults themselves */
    const char *words, *others;
    int timeout_ms;
    double limit_s;
    bool stuck, tree;
    int late_ms; /* the others notice the failure this much later */
} fault;

static const fault in_a_call[] = {
    {"remote_at=4", REMAT_PEER, "call 2, all_reduce of 8 f32 (bucket 7): NCCL lost its connection to another rank",
     "rank 1 ended the group: rank 1, call 2, all_reduce", .timeout_ms = 60000, .limit_s = 5},
    {"remote_at=3", REMAT_PEER, "Connection closed by remote peer node7", "rank 1 ended the group", .timeout_ms = 60000,
     .limit_s = 5},
    {"in_progress=2,system_at=4", REMAT_DEVICE,
     "rank 1, call 2, all_reduce of 8 f32 (bucket 7): a call to the system failed within NCCL: Call to ibv_reg_mr",
     "rank 1 ended the group: rank 1, call 2", .timeout_ms = 60000, .limit_s = 5},
    {"cuda_at=4", REMAT_DEVICE, "CUDA says: unspecified launch failure", "rank 1 ended the group", .timeout_ms = 60000,
     .limit_s = 5},
    {"hang_at=4", REMAT_PEER, "all ranks reached call 2, all_reduce of 8 f32 (bucket 7)", "all ranks reached call 2",
     .timeout_ms = 1500, .limit_s = 5},
    {"hang_at=4", REMAT_PEER, "all ranks reached call 2, all_reduce of 8 f32 (bucket 7)", "all ranks reached call 2",
     .timeout_ms = 1500, .limit_s = 6, .late_ms = 900},
    {"hang_at=3,abort_hangs", REMAT_PEER, "NCCL could not be ended within 1500 ms", "all ranks reached call 2",
     .timeout_ms = 1500, .limit_s = 7, .stuck = true},
    {"pair_remote_at=2", REMAT_PEER, "rank 1, call 2, all_reduce of 8 f32", "rank 1 ended the group: rank 1, call 2",
     .timeout_ms = 60000, .limit_s = 5, .tree = true},
    {"pair_hang_at=2", REMAT_PEER, "all ranks reached call 2, all_reduce of 8 f32", "all ranks reached call 2",
     .timeout_ms = 1500, .limit_s = 5, .tree = true},
    {"split_hangs", REMAT_PEER, "all ranks reached call 1, all_reduce of 8 f32", "all ranks reached call 1",
     .timeout_ms = 1500, .limit_s = 5, .tree = true},
};
enum { IN_A_CALL = sizeof in_a_call / sizeof *in_a_call };

static void fails_in_a_call(int rank, int size, rm_kv *store, void *context) {
    const fault *f = context;
    const bool faulty = rank == size - 1;
    remat_status status = REMAT_OK;
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    config.timeout_ms = f->timeout_ms + (faulty ? 0 : f->late_ms);
    config.join_ms = 60000;
    use_fakes(faulty ? f->faults : NULL);
    need_ok(rm_group_open(&config, &group));
    float *x = rm_group_alloc(group, 32);
    rm_collective what = {.kind = RM_ALL_REDUCE, .count = 8, .tag = 7, .in = x, .out = x};
    if (f->tree) what.reduction = RM_TREE;
    need(x, "%s", remat_last_error());
    const double start = seconds();
    for (int i = 0; i < 3 && !status; i++) status = rm_group_run(group, &what);
    need(seconds() - start <= f->limit_s, "only after %.1f s", seconds() - start);
    need(status == (faulty ? f->status : REMAT_PEER), "status %d: %s", (int)status, remat_last_error());
    need(strstr(remat_last_error(), faulty ? f->words : f->others), "%s", remat_last_error());
    need(rm_group_run(group, &what) == status && rm_group_poll(group) == status, "it is forgotten");
    rm_group_free(group, x);
    rm_group_close(group);
    need(seconds() - start <= f->limit_s, "closed only after %.1f s", seconds() - start);
    if (!(faulty && f->stuck)) need_nothing_left();
}

START_TEST(fault_in_a_collective_is_explained) { run_ranks(2, fails_in_a_call, (void *)&in_a_call[_i]); }
END_TEST

static void goes(int rank, int size, rm_kv *store, void *context) {
    const bool dies = context != NULL;
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    config.timeout_ms = dies ? 60000 : 3000;
    config.join_ms = 60000;
    use_fakes(NULL);
    need_ok(rm_group_open(&config, &group));
    float *x = rm_group_alloc(group, 32);
    rm_collective what = {.kind = RM_ALL_REDUCE, .count = 8, .tag = 9, .in = x, .out = x};
    need_ok(rm_group_run(group, &what));
    const double start = seconds();
    if (rank == size - 1) {
        if (dies) nap_ms(50), raise(SIGKILL);
        let_others_finish(store, rank, size, rank);
        need_peer(rm_group_run(group, &what), "did not reach call 2"); /* too late: the others have given up */
    } else {
        need_peer(rm_group_run(group, &what),
                  dies ? "is gone" : "did not reach call 2, all_reduce of 8 f32 (bucket 9)");
        need(strstr(remat_last_error(), "rank 2 ("), "%s", remat_last_error());
        if (!dies) let_others_finish(store, rank, size, size - 1);
    }
    need(seconds() - start < (dies ? 6 : 9), "only after %.1f s", seconds() - start);
    rm_group_close(group);
    need_nothing_left();
}

START_TEST(rank_that_ends_is_named) {
    pid_t pid[3];
    start_ranks(3, goes, _i ? (void *)"dies" : NULL, pid);
    for (int r = 0; r < 3; r++) ck_assert_int_eq(end_of(pid[r]), r == 2 && _i ? 128 + SIGKILL : 0);
}
END_TEST

static void *end_it(void *group) {
    nap_ms(300);
    rm_group_abort(group, "the disk is full");
    return NULL;
}

/* Aborts from another thread while one waits; the last rank never arrives. */
static void gives_up(int rank, int size, rm_kv *store, void *context) {
    pthread_t thread;
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    (void)context;
    use_fakes(NULL);
    need_ok(rm_group_open(&config, &group));
    if (rank == 0) pthread_create(&thread, NULL, end_it, group);
    if (rank < size - 1)
        need_peer(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}),
                  "rank 0 ended the group: the disk is full");
    if (rank == 0) pthread_join(thread, NULL);
    if (rank == size - 1) {
        remat_status status = REMAT_OK;
        for (double start = seconds(); !status && seconds() < start + 60; nap_ms(20)) status = rm_group_poll(group);
        need_peer(status, "rank 0 ended the group: the disk is full");
    }
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(abort_ends_the_group_on_all_ranks) { run_ranks(3, gives_up, NULL); }
END_TEST

/* ---- Buffers that the GPU has not finished ----------------------------------------------------------------------- */

typedef struct {
    float *x;
    int ms;
    cudaEvent_t event;
} later;

static void *make_later(void *context) {
    const later *l = context;
    void (*reach)(cudaEvent_t);
    void *handle = dlopen(FAKE_CUDART, RTLD_NOW | RTLD_NOLOAD);
    *(void **)&reach = dlsym(handle, "fake_event_reach");
    nap_ms(l->ms);
    for (int i = 0; i < 8; i++) l->x[i] = 3;
    reach(l->event);
    dlclose(handle);
    return NULL;
}

/* Data issued without an event are summed as they are at that moment. With an event, a GPU may take longer to reach it
 * than the other ranks' time limit for missing ranks. Context: how long in ms, with a timeout of 1.5 s. */
static void is_made_later(int rank, int size, rm_kv *store, void *context) {
    pthread_t thread;
    rm_group *group;
    cudaEvent_t (*event)(void);
    rm_group_config config = config_of(rank, size, store);
    config.timeout_ms = 1500;
    config.join_ms = 60000;
    use_fakes(NULL);
    need_ok(rm_group_open(&config, &group));
    later l = {.x = rm_group_alloc(group, 32), .ms = *(const int *)context};
    void *handle = dlopen(FAKE_CUDART, RTLD_NOW | RTLD_NOLOAD);
    *(void **)&event = dlsym(handle, "fake_event");
    l.event = event();
    pthread_create(&thread, NULL, make_later, &l);
    need_ok(rm_group_run(
        group, &(rm_collective){.kind = RM_ALL_REDUCE, .count = 8, .tag = 1, .in = l.x, .out = l.x, .after = l.event}));
    for (int i = 0; i < 8; i++) need(l.x[i] == 3.0f * (float)size, "%g", (double)l.x[i]);
    pthread_join(thread, NULL);
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_ALL_REDUCE, .count = 8, .in = l.x, .out = l.x}));
    rm_group_close(group);
    dlclose(handle);
    need_nothing_left();
}
START_TEST(buffers_are_read_after_their_event) {
    static const int ms[] = {20, 2500};
    run_ranks(2, is_made_later, (void *)&ms[_i]);
}
END_TEST

/* ---- Ranks that disagree ----------------------------------------------------------------------------------------- */

typedef struct {
    rm_collective odd;
    const char *about;
} dispute;

static const dispute disputes[] = {
    {{.kind = RM_ALL_REDUCE, .count = 8, .tag = 2}, "tag"},
    {{.kind = RM_ALL_REDUCE, .count = 9, .tag = 1}, "count"},
    {{.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .count = 8, .tag = 1}, "type"},
    {{.kind = RM_ALL_REDUCE, .reduction = RM_MEAN, .count = 8, .tag = 1}, "reduction"},
    {{.kind = RM_BARRIER, .tag = 1}, "kind of collective"},
};
enum { DISPUTES = sizeof disputes / sizeof *disputes };

static void disagrees(int rank, int size, rm_kv *store, void *context) {
    const dispute *d = context;
    char words[80];
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    use_fakes(NULL);
    need_ok(rm_group_open(&config, &group));
    float *x = rm_group_alloc(group, 64);
    rm_collective what = {.kind = RM_ALL_REDUCE, .count = 8, .tag = 1, .in = x, .out = x}, odd = d->odd;
    odd.in = odd.out = x;
    snprintf(words, sizeof words, "ranks 0 and %d disagree about the %s", size - 1, d->about);
    need_ok(rm_group_run(group, &what));
    need_peer(rm_group_run(group, rank == size - 1 ? &odd : &what), words);
    rm_group_close(group);
    need_nothing_left();
}
START_TEST(disagreeing_ranks_are_named) { run_ranks(3, disagrees, (void *)&disputes[_i]); }
END_TEST

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* The last of two ranks has the faults. NULL words: opening succeeds. */
typedef struct {
    const char *faults;
    remat_status status;
    const char *words, *others;
    int timeout_ms, gpu; /* gpu: of both ranks; 0: one GPU each */
    double limit_s;
} start_fault;

static const start_fault at_the_start[] = {
    {"slow_init=700", REMAT_OK, NULL, NULL, 60000, 0, 6},
    {"init_fails", REMAT_DEVICE, "rank 1, starting NCCL: NCCL found no network interface to use: Bootstrap : no socket",
     "rank 1 ended the group", 60000, 0, 6},
    {"init_hangs", REMAT_PEER, "all 2 ranks joined, but did not connect within 3000 ms: they are connecting by NCCL",
     "NCCL_SOCKET_IFNAME=NAME", 3000, 0, 9},
    {"", REMAT_INVALID,
     "two ranks of a machine use the same GPU, which NCCL refuses: Duplicate GPU detected : rank 0 and "
     "rank 1 both on CUDA device",
     "two ranks of a machine use the same GPU", 60000, 3, 6},
    {"gpus=0", REMAT_MISSING, "rank 1 finds no GPU", "rank 1 ended the group", 60000, 0, 6},
    {"gpus=1", REMAT_INVALID, "rank 1 is to use GPU 1", "rank 1 ended the group", 60000, 0, 6},
    {"version=21402", REMAT_MISSING, "this machine's NCCL is version 2.14", "rank 1 ended the group", 60000, 0, 6},
    {"no_memory", REMAT_MEMORY, "GPU memory is full", "rank 1 ended the group", 60000, 0, 6},
};
enum { AT_THE_START = sizeof at_the_start / sizeof *at_the_start };

static void starts(int rank, int size, rm_kv *store, void *context) {
    const start_fault *f = context;
    const bool faulty = rank == size - 1;
    rm_group *group = NULL;
    rm_group_config config = config_of(rank, size, store);
    config.timeout_ms = f->timeout_ms;
    if (f->gpu) config.gpu = f->gpu;
    use_fakes(faulty ? f->faults : NULL);
    const double start = seconds();
    remat_status status = rm_group_open(&config, &group);
    need(seconds() - start <= f->limit_s, "only after %.1f s", seconds() - start);
    if (f->words) {
        bool told = status == REMAT_PEER; /* reported by the other rank if that was faster */
        need(told || (faulty && status == f->status) || f->gpu, "status %d: %s", (int)status, remat_last_error());
        need(strstr(remat_last_error(), faulty ? f->words : f->others), "%s", remat_last_error());
        let_others_finish(store, rank, size, 0); /* they read this rank's store */
    } else {
        need(!status, "%s", remat_last_error());
        need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    }
    rm_group_close(group);
    if (status != REMAT_MISSING) need_nothing_left();
}
START_TEST(fault_while_opening_is_explained) { run_ranks(2, starts, (void *)&at_the_start[_i]); }
END_TEST

/* Another rank's heartbeat leaves its sentence in the store, where the communicator reads it before the heartbeat does. */
static const char none_connected[] =
    "all 2 ranks joined, but did not connect within 1000 ms: they are connecting by NCCL";

static void *ends_the_meeting(void *store) {
    uint32_t bytes;
    /* To wait in the store would keep this rank's other thread from it. */
    while (!rm_kv_peek(store, "world#1/nccl/id", NULL, 0, &bytes)) nap_ms(10);
    nap_ms(200); /* the ranks connect */
    need_ok(rm_kv_set(store, "world#1/abort", none_connected, sizeof none_connected - 1));
    return NULL;
}

static void is_told_by_the_store(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    pthread_t thread;
    rm_group_config config = config_of(rank, size, store);
    (void)context;
    use_fakes(rank == 1 ? "init_hangs" : NULL);
    if (rank == 1) need(!pthread_create(&thread, NULL, ends_the_meeting, store), "no thread");
    need_peer(rm_group_open(&config, &group), "choose one with NCCL_SOCKET_IFNAME=NAME");
    need(strstr(remat_last_error(), none_connected), "%s", remat_last_error());
    if (rank == 1) pthread_join(thread, NULL);
    let_others_finish(store, rank, size, 0); /* they read this rank's store */
    need_nothing_left();
}
START_TEST(reason_from_the_store_is_explained) { run_ranks(2, is_told_by_the_store, NULL); }
END_TEST

static void stays_away(int rank, int size, rm_kv *store, void *context) {
    rm_group *group;
    rm_group_config config = config_of(rank, size, store);
    (void)context;
    config.timeout_ms = 800;
    use_fakes(NULL);
    if (rank == 0) need_peer(rm_group_open(&config, &group), "rank 1 of 2 did not join within 800 ms");
    let_others_finish(store, rank, size, 1);
    need(!is_loaded(FAKE_NCCL) && !is_loaded(FAKE_CUDART), "libraries are loaded before all ranks have come");
}
START_TEST(missing_rank_is_named) { run_ranks(2, stays_away, NULL); }
END_TEST

/* ---- A group of one rank, without a store or another process ----------------------------------------------------- */

/* Each case runs in a process of its own: libraries stay open, and threads that hang remain. */
typedef void alone(void);
static void be_alone(int rank, int size, rm_kv *store, void *context) {
    (void)rank, (void)size, (void)store;
    (*(alone **)context)();
}

#define need_fails(call, expected, words)                                                                              \
    do {                                                                                                               \
        remat_status got_ = (call);                                                                                    \
        need(got_ == REMAT_##expected, "status %d, %s", (int)got_, got_ ? remat_last_error() : "");                    \
        need(strstr(remat_last_error(), words), "'%s' does not say '%s'", remat_last_error(), words);                  \
    } while (0)

static remat_status open_alone(const char *faults, rm_group **group) {
    rm_group_config config = config_of(0, 1, NULL);
    use_fakes(faults);
    config.timeout_ms = 1000;
    return rm_group_open(&config, group);
}

static void close_with(const char *faults, bool clean) {
    rm_group *group;
    need_ok(open_alone(faults, &group));
    const double start = seconds();
    rm_group_close(group);
    need(seconds() - start < 4, "closed after %.1f s", seconds() - start);
    if (clean) need_nothing_left();
}
static void hangs_in_finalize(void) { close_with("finalize_hangs", true); }
static void hangs_in_destroy(void) { close_with("destroy_hangs", false); }
static void hangs_in_abort(void) { close_with("finalize_hangs,abort_hangs", false); }
static void closes_in_progress(void) { close_with("in_progress=5", true); }

static void has_cpu_buffers(void) {
    rm_group *group;
    rm_group_config config = config_of(0, 1, NULL);
    float x[8];
    config.gpu = 0; /* as a session on the CPU configures it */
    need_fails(rm_group_open(&config, &group), INVALID, "backend=auto");
    need_ok(open_alone(NULL, &group));
    need_fails(rm_group_run(group, &(rm_collective){.kind = RM_ALL_REDUCE, .count = 8, .in = x, .out = x}), INVALID,
               "the collective's in is host memory");
    rm_group_close(group);
    need_nothing_left();
}

static void has_no_memory(void) {
    rm_group *group;
    remat_status status = REMAT_MEMORY;
    need_ok(open_alone(NULL, &group));
    setenv("FAKE_NCCL", "no_memory", 1);
    need(!rm_group_alloc(group, 1000), "of a GPU that has none");
    need(strstr(remat_last_error(), "a buffer of 1000 bytes on GPU 0: GPU memory is full"), "%s", remat_last_error());
    setenv("FAKE_NCCL", "", 1);
    rm_host_fail_at(1);
    need(!rm_group_alloc(group, 1000), "without memory for its name");
    rm_group_close(group);
    for (int64_t n = 1; status; n++) {
        rm_host_fail_at(n);
        status = open_alone(NULL, &group);
        rm_host_fail_at(0);
        if (status) need_nothing_left();
        need(n < 20, "it never opens");
    }
    rm_group_close(group);
    need_nothing_left();
}

static void has_no_library(void) {
    rm_group *group;
    rm_group_config config = config_of(0, 1, NULL);
    use_fakes(NULL);
    setenv("REMAT_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    need_fails(rm_group_open(&config, &group), MISSING, "REMAT_NCCL_LIBRARY=/nowhere/libnccl.so.2 cannot be opened");
    setenv("REMAT_NCCL_LIBRARY", FAKE_CUDART, 1); /* another library under this name */
    need_fails(rm_group_open(&config, &group), MISSING, "has no function ncclGetVersion");
    need_ok(open_alone(NULL, &group));
    rm_group_close(group);
}

/* ---- The real libraries ------------------------------------------------------------------------------------------ */

static void need_functions(const char *name, const char *const *functions) {
    void *handle = dlopen(name, RTLD_NOW);
    if (!handle) printf("no %s here: its functions are not looked for\n", name);
    for (int i = 0; handle && functions[i]; i++) need(dlsym(handle, functions[i]), "%s has no %s", name, functions[i]);
}

static void real_functions(void) {
#define NAME(function) #function,
    static const char *const nccl[] = {RM_NCCL_CALLS(NAME) NULL}, *const cudart[] = {RM_CUDART_CALLS(NAME) NULL};
    need_functions("libnccl.so.2", nccl);
    need_functions("libcudart.so", cudart);
    fflush(stdout);
}

/* With libraries and a GPU the group opens; otherwise the error says what is missing. */
static void real_libraries(void) {
    rm_group *group;
    rm_group_config config = config_of(0, 1, NULL);
    unsetenv("REMAT_NCCL_LIBRARY");
    unsetenv("REMAT_CUDART_LIBRARY");
    if (rm_group_open(&config, &group)) {
        printf("the real NCCL: %s\n", remat_last_error());
        fflush(stdout);
        need(strstr(remat_last_error(), "rank 0 finds no GPU") || strstr(remat_last_error(), "is not on this machine"),
             "%s", remat_last_error());
        return;
    }
    float *x = rm_group_alloc(group, 1 << 20);
    need(x, "%s", remat_last_error());
    rm_collective mean = {.kind = RM_ALL_REDUCE, .reduction = RM_MEAN, .count = 1 << 18, .in = x, .out = x};
    need_ok(rm_group_run(group, &mean));
    rm_group_close(group);
}

static alone *const lonely[] = {hangs_in_finalize,  hangs_in_destroy, hangs_in_abort,
                                closes_in_progress, has_cpu_buffers,  has_no_memory,
                                has_no_library,     real_functions,   real_libraries};
enum { LONELY = sizeof lonely / sizeof *lonely };
START_TEST(single_rank_needs_no_store) { run_ranks(1, be_alone, (void *)&lonely[_i]); }
END_TEST

int main(void) {
    TCase *all = tcase_create("nccl");
    tcase_add_loop_test(all, collectives_give_the_defined_results, 0, 4);
    tcase_add_loop_test(all, results_do_not_depend_on_calls_in_progress, 0, 3);
    tcase_add_loop_test(all, fault_in_a_collective_is_explained, 0, IN_A_CALL);
    tcase_add_loop_test(all, rank_that_ends_is_named, 0, 2);
    tcase_add_test(all, abort_ends_the_group_on_all_ranks);
    tcase_add_loop_test(all, buffers_are_read_after_their_event, 0, 2);
    tcase_add_loop_test(all, disagreeing_ranks_are_named, 0, DISPUTES);
    tcase_add_loop_test(all, fault_while_opening_is_explained, 0, AT_THE_START);
    tcase_add_test(all, missing_rank_is_named);
    tcase_add_test(all, reason_from_the_store_is_explained);
    tcase_add_loop_test(all, single_rank_needs_no_store, 0, LONELY);
    return run_cases("dist/nccl", all);
}
#endif
