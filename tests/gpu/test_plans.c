/* test_plans.c: the first promise, on a real device: loss, norms, gradients and parameters have the same bits under
 * every plan (everything kept, lean, segments, sqrt, and a budget without recomputation, so that activations move to
 * the host and back), are repeatable, and agree with the CPU's to float precision.
 *
 *     gpu_test_plans [--device=cuda] [--small] [--net=lstm|gru|rnn|resnet|unet|gpt] [--precision=fp32|tf32|bf16]
 *                    [--kernels=remat|cudnn]
 *     gpu_test_plans --list [--small]
 *
 * --list prints the last three flags for each available combination, without a GPU; run.sh gives each its own
 * process.
 *
 * On a GPU also with recurrent layers and convolutions through cuDNN, if installed, and with products in tf32 and bf16, if supported:
 * their losses are near those of the CPU in fp32. --device=cpu tests this program, and the CPU's products in bf16, if
 * supported. Exits with 77 without such a device. */
#include "engine/abi.h"
#include "tests/gpu/skip.h"

#define CHECKED(call)                                                                                                  \
    do {                                                                                                               \
        if (call) printf("%s: %s\n", #call, remat_last_error()), exit(EXIT_FAILURE);                                   \
    } while (0)
#include "tests/gpu/networks.h"
#include "tests/net.h"
#include "tests/sanitized.h"

enum { STEPS = 4 };

typedef struct {
    double loss[STEPS], norm[STEPS];
    unsigned char *arrays; /* gradients of the last step, then parameters */
    size_t bytes;
    remat_plan_summary plan;
} trace;

typedef struct {
    const char *name, *strategy;
    int64_t segments;
    bool spill, unrecorded;
} policy;

static const policy policies[] = {
    {"kept again", "none", 0, false, false},     {"not recorded", "none", 0, false, true},
    {"lean", "lean", 0, false, false},           {"2 segments", "segments", 2, false, false},
    {"7 segments", "segments", 7, false, false}, {"every tile", "segments", 1 << 20, false, false},
    {"sqrt", "sqrt", 0, false, false},           {"spilled", "optimal", 0, true, false},
};
enum { POLICIES = sizeof policies / sizeof *policies };

static int failures, checked;

/* Precision and kernels of a pass over all networks; cuDNN's recurrent layers do not support bf16. On a GPU --small uses
 * only the first two, unless a precision is given. */
typedef struct {
    const char *precision, *cells;
} kind;
static const kind kinds[] = {{"fp32", "remat"}, {"fp32", "cudnn"}, {"tf32", "remat"},
                             {"tf32", "cudnn"}, {"bf16", "remat"}, {"bf16", "cudnn"}};
enum { KINDS = sizeof kinds / sizeof *kinds, SMALL_KINDS = 2 };
static kind now;

/* A recurrent network of some size, or one of networks.h. */
typedef struct {
    net cells;
    const network *other;
    bool large;
} subject;

enum { SUBJECTS = NET_CELLS + NETWORKS };
static const network *other_of(int i) { return i < NET_CELLS ? NULL : &networks[i - NET_CELLS]; }
static const char *name_of(int i) { return i < NET_CELLS ? net_cell_name[i] : other_of(i)->name; }

static remat_value build(remat_graph *g, const subject *n) {
    return n->other ? n->other->build(g, n->large) : net_build(g, &n->cells);
}

/* ---- A run ------------------------------------------------------------------------------------------------------ */

/* Of cuDNN's layers only the convolutions know bf16. */
static remat_config configured(const char *device, const subject *n, const policy *how, int64_t tile) {
    remat_config config = REMAT_CONFIG_INIT;
    config.device = device;
    config.precision = now.precision;
    config.rnn_kernels = strcmp(device, "cpu") && !n->other ? now.cells : "remat";
    config.strategy = how->strategy;
    config.segments = how->segments;
    config.tile = tile;
    config.seed = 5;
    config.optimizer = "adamw";
    config.weight_decay = 0.01;
    config.clip_grad_norm = 0.5;
    if (how->spill) config.spill_dir = "/tmp", config.recompute = "off";
    return config;
}

/* The bytes of keeping everything at this moment: a session measures the memory of libraries besides the plan, and the
 * first session of a kind measures more than later ones. */
static uint64_t keeping_all(const remat_graph *g, remat_value loss, remat_config config) {
    remat_session *s = NULL;
    config.strategy = "none";
    config.spill_dir = NULL;
    config.plan_only = true;
    if (remat_session_create(g, loss, &config, &s)) {
        printf("keeping everything cannot be planned again: %s\n", remat_last_error());
        exit(EXIT_FAILURE);
    }
    uint64_t all = rm_plan_summary_of(s).budgeted_bytes;
    remat_session_free(s);
    return all;
}

/* One third of the way from the smallest budget to that of keeping everything. */
static uint64_t tight_budget(const remat_graph *g, remat_value loss, remat_config config) {
    remat_session *s = NULL;
    uint64_t all = keeping_all(g, loss, config);
    config.memory_budget = 1;
    config.plan_only = true;
    if (remat_session_create(g, loss, &config, &s) != REMAT_INFEASIBLE || !remat_smallest_budget()) {
        printf("a budget of one byte is not refused: %s\n", remat_last_error());
        exit(EXIT_FAILURE);
    }
    uint64_t least = remat_smallest_budget();
    return least < all ? least + (all - least) / 3 : least;
}

static remat_status run_steps(remat_session *s, const subject *n, trace *t) {
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r;
        if (n->other)
            TRY(network_feed(s, step));
        else
            net_feed(s, &n->cells, step);
        TRY(remat_step(s, 0.01, &r));
        REQUIRE(isfinite(r.loss) && r.loss > 0 && isfinite(r.grad_norm), INTERNAL, "the loss of step %d is %g", step,
                r.loss);
        REQUIRE(r.arena_peak_bytes <= t->plan.planned_peak_bytes, INTERNAL, "the step used more bytes than planned");
        t->loss[step] = r.loss, t->norm[step] = r.grad_norm;
    }
    size_t bytes;
    unsigned char *gradients = net_read_all(s, REMAT_GRADIENT, &t->bytes);
    unsigned char *parameters = net_read_all(s, REMAT_PARAM, &bytes);
    t->arrays = realloc(gradients, t->bytes + bytes);
    memcpy(t->arrays + t->bytes, parameters, bytes);
    t->bytes += bytes;
    free(parameters);
    return REMAT_OK;
}

static remat_status run(const char *device, const subject *n, const policy *how, int64_t tile, trace *t) {
    remat_graph *g;
    remat_session *s = NULL;
    *t = (trace){0};
    TRY(remat_graph_create(&g));
    remat_value loss = build(g, n);
    remat_config config = configured(device, n, how, tile);
    if (how->unrecorded) setenv("REMAT_CUDA_GRAPHS", "OFF", 1);
    if (!strcmp(now.cells, "remat")) setenv("REMAT_CUDA_CUDNN", "OFF", 1); /* convolutions by products */
    if (how->spill) config.memory_budget = tight_budget(g, loss, config);
    remat_status status = remat_session_create(g, loss, &config, &s);
    if (!status) t->plan = rm_plan_summary_of(s);
    if (!status) status = run_steps(s, n, t);
    remat_session_free(s);
    remat_graph_free(g);
    unsetenv("REMAT_CUDA_GRAPHS"), unsetenv("REMAT_CUDA_CUDNN");
    return status;
}

/* ---- Comparing -------------------------------------------------------------------------------------------------- */

static const char *difference(const trace *a, const trace *b) {
    if (memcmp(a->loss, b->loss, sizeof a->loss)) return "losses differ";
    if (memcmp(a->norm, b->norm, sizeof a->norm)) return "gradient norms differ";
    if (a->bytes != b->bytes || memcmp(a->arrays, b->arrays, a->bytes)) return "gradients or parameters differ";
    return NULL;
}

static void report(const char *cell, const char *what, const char *wrong, const trace *t) {
    if (wrong) failures++;
    printf("%-6s %-12s %8.2f MiB of activations", cell, what, (double)t->plan.activations_peak_bytes / (1 << 20));
    if (t->plan.spill_bytes) printf(", %.2f MiB spilled", (double)t->plan.spill_bytes / (1 << 20));
    printf("   %s%s\n", wrong ? "FAILED: " : "the same bits", wrong ? wrong : "");
    fflush(stdout);
}

/* Float rounding, over a few hundred timesteps and STEPS updates: losses agree to five digits. Operands in TF32 have three
 * digits, in bf16 two: the bounds are wide, and show only gross mistakes. */
static void compare_with_cpu(const subject *n, const char *name, const policy *how, int64_t tile, const trace *there) {
    const double allowed = !strcmp(now.precision, "fp32") ? 2e-5 : !strcmp(now.precision, "tf32") ? 1e-2 : 0.1;
    const kind device = now;
    trace here;
    now = kinds[0];
    remat_status status = run("cpu", n, how, tile, &here);
    now = device;
    double most = 0;
    for (int step = 0; step < STEPS && !status; step++)
        most = fmax(most, fabs(here.loss[step] - there->loss[step]) / here.loss[step]);
    bool good = !status && most <= allowed;
    if (!good) failures++;
    printf("%-6s beside the CPU: losses differ by %.1e at most", name, most);
    printf(good ? "\n" : "   FAILED: %.0e is allowed\n", allowed);
    free(here.arrays);
}

/* If the second tier itself needs more memory than a tiny network, keeping everything is the smallest plan. Only arenas
 * are compared: the other memory varies between sessions, and is small compared with the activations of a large
 * network. */
static bool too_little_for_all(const remat_plan_summary *plan, const remat_plan_summary *kept, const subject *n) {
    const uint64_t beside = plan->budgeted_bytes - plan->planned_peak_bytes;
    return plan->memory_budget - beside < kept->planned_peak_bytes || n->cells.hidden * n->cells.batch >= 4096;
}

static void check(const char *device, const subject *n, int64_t tile) {
    const char *cell = n->other ? n->other->name : net_cell_name[n->cells.cell];
    const policy keep = {"kept", "none", 0, false, false};
    trace kept;
    remat_status status = run(device, n, &keep, tile, &kept);
    if (status == REMAT_MISSING && (strcmp(now.precision, "fp32") || strcmp(now.cells, "remat")))
        printf("%-6s not tried: %s\n", cell, remat_last_error());
    else if (status)
        report(cell, "kept", remat_last_error(), &kept);
    if (status) return;
    checked++;
    for (int i = 0; i < POLICIES; i++) {
        trace t;
        if (rm_release_only(POLICIES - 1 - i, 3)) continue;
        status = run(device, n, &policies[i], tile, &t);
        const char *wrong = status ? remat_last_error() : difference(&kept, &t);
        bool must_spill = policies[i].spill && too_little_for_all(&t.plan, &kept.plan, n);
        if (!wrong && must_spill && !t.plan.spill_bytes) wrong = "nothing was spilled";
        report(cell, policies[i].name, wrong, &t);
        free(t.arrays);
    }
    compare_with_cpu(n, cell, &keep, tile, &kept);
    free(kept.arrays);
}

/* Whether cuDNN computes anything of the network in this precision, if its kernels are requested. */
static bool exists(int i, const kind *k) {
    const network *other = other_of(i);
    return !strcmp(k->cells, "remat") || (other ? other->convolves : strcmp(k->precision, "bf16") != 0);
}

static int list(int passes) {
    for (int i = 0; i < SUBJECTS * passes; i++)
        if (exists(i % SUBJECTS, &kinds[i / SUBJECTS]))
            printf("--net=%s --precision=%s --kernels=%s\n", name_of(i % SUBJECTS), kinds[i / SUBJECTS].precision,
                   kinds[i / SUBJECTS].cells);
    return EXIT_SUCCESS;
}

static bool wanted(const char *only, const char *name) { return !only || !strcmp(only, name); }

/* The CPU has neither cuDNN nor tf32. */
static bool tried(const char *device, const kind *k) {
    return strcmp(device, "cpu") || (!strcmp(k->cells, "remat") && strcmp(k->precision, "tf32"));
}

static void check_cells(const char *device, net_cell cell, bool small) {
    subject s = {.cells = {.cell = cell, .layers = 2, .vocabulary = 13, .embed = 6, .hidden = 9, .dropout = 0.2}};
    net *n = &s.cells;
    n->timesteps = 37, n->batch = 3;
    check(device, &s, 4); /* timesteps through products; the others use persistent kernels, if the GPU has clusters */
    n->hidden = 19;
    check(device, &s, 4);
    if (small) return;
    n->vocabulary = 64, n->embed = 32, n->hidden = 256, n->timesteps = 200, n->batch = 16;
    check(device, &s, 32);
    n->hidden = 131, n->batch = 1; /* vectors, and sizes that do not fill a block */
    check(device, &s, 16);
    n->hidden = 301, n->batch = 5, n->timesteps = 50;
    check(device, &s, 8);
}

static void check_network(const char *device, const network *other, bool small) {
    check(device, &(subject){.other = other}, 0);
    if (!small) check(device, &(subject){.other = other, .large = true}, 0);
}

int main(int argc, char **argv) {
    const char *device = value_of(argc, argv, "--device=", "cuda");
    const char *only = value_of(argc, argv, "--net=", NULL), *precision = value_of(argc, argv, "--precision=", NULL),
               *kernels = value_of(argc, argv, "--kernels=", NULL);
    bool small = has_flag(argc, argv, "--small");
    int passes = small && strcmp(device, "cpu") && !precision ? SMALL_KINDS : KINDS;
    if (has_flag(argc, argv, "--list")) return list(passes);
    need_device(try_device(device));
    for (int i = 0; i < SUBJECTS * passes; i++) {
        int which = i % SUBJECTS;
        now = kinds[i / SUBJECTS];
        if (!tried(device, &now) || !exists(which, &now) || !wanted(only, name_of(which))) continue;
        if (!wanted(precision, now.precision) || !wanted(kernels, now.cells)) continue;
        if (only || which == 0) printf("products in %s, layers by %s\n", now.precision, now.cells);
        if (which < NET_CELLS)
            check_cells(device, (net_cell)which, small);
        else
            check_network(device, other_of(which), small);
    }
    if (!failures && !checked) printf("skipped: nothing of this could be tried\n"), exit(SKIPPED);
    printf("plans on %s: %d failed\n", device, failures);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
