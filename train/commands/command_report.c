/* command_report.c: `remat report A.jsonl B.jsonl ...`: a row per run, from its --metrics file, and whether the losses of the runs are
 * bit-identical. Reads the files of metrics.c. */
#include "train/commands/commands.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/text.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t step;
    double loss, step_ms, tokens_per_s;
} point;

typedef struct {
    const char *path;
    char strategy[24];
    int64_t segments;
    rm_windows tbptt; /* 0: exact */
    uint64_t activations_bytes, arena_bytes, rss_bytes;
    bool planned;
    point *point; /* by step, without duplicates: the last one counts */
    int64_t count, capacity;
} run;

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

static double number(const json_t *event, const char *name) {
    const json_t *value = json_object_get(event, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}
static int64_t whole(const json_t *event, const char *name) {
    return (int64_t)json_integer_value(json_object_get(event, name)); /* 0: missing */
}

static void read_plan(const json_t *event, run *r) {
    const char *strategy = json_string_value(json_object_get(event, "strategy"));
    snprintf(r->strategy, sizeof r->strategy, "%s", strategy ? strategy : "?");
    (void)rm_printable(r->strategy); /* the file is not trusted */
    r->segments = whole(event, "segments");
    r->tbptt = (rm_windows){whole(event, "tbptt"), whole(event, "tbptt_step")};
    r->activations_bytes = (uint64_t)whole(event, "activations_peak_bytes");
    r->arena_bytes = (uint64_t)whole(event, "planned_peak_bytes");
    r->planned = true;
}

static remat_status read_step(const json_t *event, run *r) {
    int64_t step = whole(event, "step");
    while (r->count && r->point[r->count - 1].step >= step) r->count--; /* a resumed run repeated it */
    REQUIRE(rm_grow(&r->point, &r->capacity, r->count + 1, sizeof *r->point), MEMORY, "no memory for the steps of %s",
            r->path);
    r->point[r->count++] =
        (point){step, number(event, "loss"), number(event, "step_ms"), number(event, "tokens_per_s")};
    r->rss_bytes = (uint64_t)whole(event, "rss_peak_bytes");
    return REMAT_OK;
}

static remat_status read_event(const json_t *event, run *r) {
    const char *name = json_string_value(json_object_get(event, "event"));
    if (name && !strcmp(name, "plan")) read_plan(event, r);
    return name && !strcmp(name, "step") ? read_step(event, r) : REMAT_OK;
}

static remat_status read_lines(FILE *file, run *r) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    remat_status status = REMAT_OK;
    for (int64_t n = 1; !status && (length = getline(&line, &capacity, file)) > 0; n++) {
        json_error_t error;
        json_t *event = json_loadb(line, (size_t)length, 0, &error);
        bool unfinished = line[length - 1] != '\n'; /* the run is still writing, or was killed */
        if (event)
            status = read_event(event, r);
        else if (!unfinished)
            status = rm_fail(REMAT_IO, "%s:%lld is not JSON (%s): give files written by --metrics", r->path,
                             (long long)n, error.text);
        json_decref(event);
    }
    free(line);
    return status;
}

static remat_status read_run(run *r) {
    FILE *file = fopen(r->path, "re");
    if (!file) FAIL(IO, "cannot open %s: %s", r->path, strerror(errno));
    remat_status status = read_lines(file, r);
    fclose(file);
    if (status) return status;
    REQUIRE(r->planned && r->count, IO, "%s has no steps of a run: give files written by `remat train --metrics=FILE`",
            r->path);
    return REMAT_OK;
}

/* ---- The table -------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over the steps; skips the first of several, which includes warm-up. */
static double median_ms(const run *r) {
    int64_t skip = r->count > 1, n = r->count - skip;
    double *value = rm_malloc((size_t)n * sizeof *value), median = NAN;
    if (!value) return NAN;
    for (int64_t i = 0; i < n; i++) value[i] = r->point[i + skip].step_ms;
    qsort(value, (size_t)n, sizeof *value, by_value);
    median = n % 2 ? value[n / 2] : 0.5 * (value[n / 2 - 1] + value[n / 2]);
    rm_free(value);
    return median;
}

static void print_row(const run *r) {
    char activations[RM_TEXT], arena[RM_TEXT], rss[RM_TEXT], speed[RM_TEXT];
    const char *slash = strrchr(r->path, '/');
    const point *last = &r->point[r->count - 1];
    double ms = median_ms(r), tokens = last->tokens_per_s * last->step_ms / 1e3;
    printf("%-22s %-9s %8lld %12s %12s %12s %11.1f %10s %6lld %13.9g\n", slash ? slash + 1 : r->path, r->strategy,
           (long long)r->segments, rm_bytes_text(r->activations_bytes, activations),
           rm_bytes_text(r->arena_bytes, arena), rm_bytes_text(r->rss_bytes, rss), ms,
           rm_count_text(tokens / (ms / 1e3), speed), (long long)last->step, last->loss);
}

static void print_table(const run *runs, int n) {
    printf("%-22s %-9s %8s %12s %12s %12s %11s %10s %6s %13s\n", "run", "strategy", "segments", "activations", "arena",
           "process", "step [ms]", "tokens/s", "steps", "final loss");
    for (int i = 0; i < n; i++) print_row(&runs[i]);
    putchar('\n');
    for (int i = 0; i < n; i++)
        if (runs[i].tbptt.length)
            printf("%s is truncated: its gradients %s %lld timesteps.\n", runs[i].path,
                   runs[i].tbptt.step < runs[i].tbptt.length ? "reach back" : "end every",
                   (long long)runs[i].tbptt.length);
}

/* ---- The same bits? --------------------------------------------------------------------------------------------- */

static bool same_bits(double a, double b) {
    float x = (float)a, y = (float)b; /* losses are floats, written with enough digits to read them back exactly */
    return !memcmp(&x, &y, sizeof x) &&
           !isnan(a); /* null stands for every non-finite loss, so two of them need not be equal */
}

/* The first step at which two runs differ; -1: none. */
static int64_t first_difference(const run *a, const run *b) {
    int64_t n = a->count < b->count ? a->count : b->count;
    for (int64_t i = 0; i < n; i++)
        if (a->point[i].step != b->point[i].step || !same_bits(a->point[i].loss, b->point[i].loss)) return i;
    return a->count == b->count ? -1 : n;
}

static void print_difference(const run *a, const run *b, int64_t at) {
    if (at >= a->count || at >= b->count)
        printf("%s has %lld steps and %s has %lld; the %lld that both have agree.\n", a->path, (long long)a->count,
               b->path, (long long)b->count, (long long)at);
    else if (a->point[at].step != b->point[at].step)
        printf("%s continues with step %lld and %s with step %lld.\n", a->path, (long long)a->point[at].step, b->path,
               (long long)b->point[at].step);
    else if (isnan(a->point[at].loss) && isnan(b->point[at].loss))
        printf("The losses cannot be compared from step %lld on: the loss is not finite in %s and in %s.\n",
               (long long)a->point[at].step, a->path, b->path);
    else
        printf("The losses differ first at step %lld: %.9g in %s, %.9g in %s.\n", (long long)a->point[at].step,
               a->point[at].loss, a->path, b->point[at].loss, b->path);
}

static bool compare(const run *runs, int n) {
    bool same = true;
    for (int i = 1; i < n; i++) {
        int64_t at = first_difference(&runs[0], &runs[i]);
        if (at >= 0) print_difference(&runs[0], &runs[i], at);
        same = same && at < 0;
    }
    if (same && n > 1)
        printf("The losses of all %d runs are identical, to the last bit, at each of %lld steps.\n", n,
               (long long)runs[0].count);
    return same;
}

static remat_status report(run *runs, int n, const rm_options *options, int *exit_status) {
    for (int i = 0; i < n; i++) {
        runs[i].path = options->argument[i];
        TRY(read_run(&runs[i]));
    }
    print_table(runs, n);
    if (!compare(runs, n) && options->require_identical) *exit_status = 1;
    return rm_file_flush_output();
}

remat_status rm_command_report(rm_options *options, int *exit_status) {
    int n = options->n_arguments;
    REQUIRE(n > 0, INVALID, "there are no runs to report: give their metrics, as in remat report A.jsonl B.jsonl");
    run *runs = rm_calloc((size_t)n, sizeof *runs);
    REQUIRE(runs, MEMORY, "no memory for %d runs", n);
    remat_status status = report(runs, n, options, exit_status);
    for (int i = 0; i < n; i++) rm_free(runs[i].point);
    rm_free(runs);
    return status;
}
