/* state_runs.h: small runs whose training states are saved and restored. */
#ifndef STATE_RUNS_H
#define STATE_RUNS_H

#include "train/run/setup.h"

#include "tests/train/train_test.h"

#define FLAGS "--task=copy --seq-len=21 --batch=2 --hidden=5 --layers=2 --samples=9 --threads=1 "

typedef struct {
    rm_options options;
    rm_dataset *dataset;
    rm_loader loader;
    rm_model model;
    remat_session *session;
} bench;

static inline void parse(rm_options *o, const char *line) {
    static char copy[512], *argv[20];
    int argc = 0;
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    ck_ok(rm_options_parse(o, RM_TRAIN, argc, argv));
}

static inline void open_bench(bench *b, const char *flags) {
    rm_model_spec spec;
    parse(&b->options, flags);
    remat_config config = rm_setup_training_config(&b->options);
    ck_ok(rm_setup_dataset(&b->options, &b->dataset));
    ck_ok(rm_setup_spec(&b->options, b->dataset, &spec));
    rm_loader_config order = {.batch = b->options.order.batch, .seed = b->options.data.seed, .shuffle = true};
    ck_ok(rm_loader_create(b->dataset, &order, &b->loader));
    ck_ok(rm_model_build(&spec, b->options.order.batch, true, &b->model));
    ck_ok(remat_session_create(b->model.graph, b->model.loss, &config, &b->session));
}

static inline void close_bench(bench *b) {
    remat_session_free(b->session);
    rm_model_free(&b->model);
    rm_loader_free(&b->loader);
    rm_dataset_close(b->dataset);
    rm_options_free(&b->options);
}

static inline double step(bench *b) {
    remat_step_result result;
    ck_ok(rm_loader_next(&b->loader));
    ck_ok(rm_batch_write(&b->loader.batch, rm_batch_whole(&b->loader.batch), b->session));
    ck_ok(remat_step(b->session, 0.01, &result));
    return result.loss;
}

static inline rm_state_point point_of(const bench *b) {
    return (rm_state_point){.step = remat_step_count(b->session),
                            .epoch = b->loader.epoch,
                            .consumed = b->loader.consumed,
                            .samples = b->dataset->count};
}

static inline void save_ok(rm_state_store *store, bench *b) {
    ck_ok(rm_state_save(store, b->session, &b->options, point_of(b)));
}

/* The number of names in a directory that start with `prefix`. */
static inline int count_entries(const char *directory, const char *prefix) {
    char command[400];
    snprintf(command, sizeof command, "ls -A %s | grep -c '^%s'", directory, prefix);
    FILE *pipe = popen(command, "r");
    int count = -1;
    ck_assert(pipe && fscanf(pipe, "%d", &count) == 1);
    pclose(pipe);
    return count;
}

#endif
