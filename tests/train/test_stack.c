/* test_stack.c: the stack that a thread needs, as promised in docs/promises.md. The test paints the stacks of a calling
 * thread and of OpenMP's threads, creates and runs sessions of the program's models, and finds the deepest overwritten
 * byte. The program trains with OMP_STACKSIZE at that size. The compiler checks that no function takes more than 32 KiB
 * (REMAT_STACK_FLAGS). */
#include "tests/train/train_test.h"

#include "engine/abi.h"
#include "engine/remat.h"
#include "ops/math/parallel.h"
#include "train/models/model.h"

#include <omp.h>
#include <pthread.h>
#include <sys/mman.h>

enum { PROMISED = 80 << 10, ROOM = 1 << 20, MARGIN = 4096, THREADS = 2, PAINT = 0xa5, BATCH = 6 };

#define TEXT                                                                                                           \
    { .timesteps = 80, .vocabulary = 70, .classes = 70, .every_step = true }
#define IMAGES                                                                                                         \
    { .timesteps = 1, .channels = 3, .height = 40, .width = 40, .features = 4800, .classes = 10 }
#define PIXELS                                                                                                         \
    { .timesteps = 1, .channels = 3, .height = 16, .width = 16, .features = 768, .classes = 3, .pixels = 256 }

/* Wide enough to fill every block of the kernels. */
static const rm_model_spec models[] = {
    {.name = "mlp", .layers = 3, .hidden = 300, .dropout = 0.2, .data = IMAGES},
    {.name = "cnn", .dropout = 0.2, .data = IMAGES},
    {.name = "resnet18", .data = IMAGES},
    {.name = "unet", .layers = 2, .hidden = 16, .data = PIXELS},
    {.name = "gpt2", .layers = 2, .hidden = 128, .embed = 128, .heads = 2, .dropout = 0.2, .data = TEXT},
    {.name = "lstm", .layers = 2, .hidden = 520, .embed = 130, .dropout = 0.2, .data = TEXT},
    {.name = "lstm", .layers = 2, .hidden = 70, .projection = 40, .embed = 130, .dropout = 0.2, .data = TEXT},
    {.name = "gru", .layers = 2, .hidden = 300, .embed = 300, .dropout = 0.2, .data = TEXT},
    {.name = "rnn", .layers = 2, .hidden = 300, .embed = 300, .dropout = 0.2, .data = TEXT},
    {.name = "mingru", .layers = 2, .hidden = 130, .embed = 130, .dropout = 0.2, .data = TEXT},
    {.name = "minlstm", .layers = 2, .hidden = 130, .embed = 130, .dropout = 0.2, .data = TEXT},
    {.name = "mamba", .layers = 2, .hidden = 70, .embed = 70, .data = TEXT},
    {.name = "mamba2", .layers = 2, .hidden = 70, .embed = 70, .heads = 2, .data = TEXT},
    {.name = "m2rnn", .layers = 2, .hidden = 70, .embed = 70, .heads = 2, .data = TEXT},
    {.name = "rwkv7", .layers = 2, .hidden = 70, .embed = 70, .heads = 2, .data = TEXT},
    {.name = "gdn", .layers = 2, .hidden = 70, .embed = 70, .heads = 2, .data = TEXT},
    {.name = "xlstm", .layers = 2, .hidden = 70, .embed = 70, .heads = 2, .slstm_at = "1", .data = TEXT},
    {.name = "recurrentgemma", .layers = 2, .hidden = 70, .embed = 70, .heads = 2, .data = TEXT},
};
enum { MODELS = sizeof models / sizeof *models };

/* ---- Painting --------------------------------------------------------------------------------------------------- */

static char *frame[THREADS + 1]; /* of OpenMP's threads, and of the calling thread */

/* Paints far below its own frame, so not the used part. */
static __attribute__((noinline)) void paint(int i) {
    frame[i] = __builtin_frame_address(0);
    memset(frame[i] - ROOM, PAINT, ROOM - MARGIN);
}

static size_t depth(int i) {
    const char *at = frame[i] - ROOM;
    while (at < frame[i] - MARGIN && *at == (char)PAINT) at++;
    return (size_t)(frame[i] - at);
}

/* ---- Sessions --------------------------------------------------------------------------------------------------- */

static void feed(remat_session *s) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        ck_ok(remat_array_info(s, REMAT_INPUT, i, &info));
        ck_ok(remat_write(s, REMAT_INPUT, i, calloc(1, info.bytes), info.bytes)); /* freed at the end of the process */
    }
}

/* budget 0: none. Returns the bytes of the session's plan. */
static uint64_t train(const rm_model *model, const char *strategy, const char *precision, uint64_t budget) {
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = THREADS;
    config.strategy = strategy;
    config.precision = precision;
    config.optimizer = budget ? "lamb" : "adamw";
    config.memory_budget = budget;
    config.clip_grad_norm = 1;
    remat_session *s;
    remat_step_result r;
    remat_status status = remat_session_create(model->graph, model->loss, &config, &s);
    if (status) return 0; /* the budget is too small, or this processor or model does not support bf16 */
    feed(s);
    for (int step = 0; step < 2; step++) {
        ck_ok(remat_gradients(s, &r));
        ck_ok(remat_update(s, 0.01, &r));
    }
    ck_ok(remat_evaluate(s, &r));
    remat_plan_summary plan = rm_plan_summary_of(s);
    remat_text_free(remat_plan_describe(s));
    remat_session_free(s);
    return plan.budgeted_bytes;
}

static size_t caller_depth, worker_depth;

static void *call(void *data) {
    const rm_model_spec *spec = data;
    rm_model model = {0};
    rm_parallel_pretend(1); /* the other thread computes, however busy the machine is */
    paint(THREADS);
#pragma omp parallel num_threads(THREADS)
    if (omp_get_thread_num()) paint(omp_get_thread_num());
    ck_ok(rm_model_build(spec, BATCH, true, &model));
    uint64_t bytes = train(&model, "none", "fp32", 0);
    ck_assert_uint_gt(bytes, 0);
    train(&model, "optimal", "fp32", bytes / 4 * 3);
    train(&model, "none", "bf16", 0);
    rm_model_free(&model);
    caller_depth = depth(THREADS);
    worker_depth = depth(1);
    return NULL;
}

START_TEST(stacks_stay_within_the_promise) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 4 << 20);
    rm_model_spec spec = models[_i];
    ck_assert_int_eq(pthread_create(&thread, &attributes, call, &spec), 0);
    pthread_join(thread, NULL);
    ck_assert_uint_gt(worker_depth, MARGIN); /* a worker thread ran */
    ck_assert_msg(caller_depth <= PROMISED && worker_depth <= PROMISED, "%s: the caller used %zu, the other thread %zu",
                  spec.name, caller_depth, worker_depth);
}
END_TEST

static const char *const cells[] = {"lstm", "gru", "rnn", "mingru", "gpt2"};

START_TEST(the_promised_stack_suffices) {
    const char *text = make_text("text", 4096);
    char size[20];
    snprintf(size, sizeof size, "%dK", PROMISED >> 10);
    setenv("OMP_STACKSIZE", size, 1);
    ck_runs("train --model=%s --hidden=512 --data=%s --seq-len=80 --batch=4 --steps=2 --threads=3 --calibration=off",
            cells[_i], text);
}
END_TEST

int main(void) {
#ifdef REMAT_SANITIZED
    return 0; /* sanitizers have larger frames */
#endif
    TCase *tests = tcase_create("stack");
    tcase_add_loop_test(tests, stacks_stay_within_the_promise, 0, MODELS);
    tcase_add_loop_test(tests, the_promised_stack_suffices, 0, (int)(sizeof cells / sizeof *cells));
    return run_suite("train/stack", tests);
}
