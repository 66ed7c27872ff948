/* metrics.c: see metrics.h. */
#include "engine/abi.h"
#include "train/report/metrics.h"

#include "train/file.h"
#include "train/run/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* ---- The file --------------------------------------------------------------------------------------------------- */

static remat_status failed(const rm_metrics *metrics) {
    FAIL(IO, "cannot write %s: %s: free some space, or choose another path for --metrics", metrics->path,
         strerror(errno));
}

/* Protects other files against a mistyped name: metrics start with `ours`. A run that was killed may have left a part
 * of that, or an empty file. */
static remat_status spare_others(rm_metrics *metrics) {
    static const char ours[] = "{\"event\"";
    char begin[sizeof ours] = "";
    size_t n = fread(begin, 1, sizeof ours - 1, metrics->file);
    rewind(metrics->file);
    REQUIRE(!memcmp(begin, ours, n), INVALID,
            "%s exists and does not hold metrics, so it was not changed: choose another name for --metrics",
            metrics->path);
    return REMAT_OK;
}

/* The content of a metrics file. */
typedef struct {
    int64_t lines; /* complete lines */
    bool other;    /* another run's name was found */
    bool runs;     /* a line belongs to a run, not to an evaluation without a run */
    bool ended;    /* a run has ended after at least one step */
    bool later;    /* this run will write a line again */
    int64_t keep;  /* bytes up to the last valid line before the first such line */
    int64_t whole; /* bytes of all complete lines */
} contents;

static bool is(const char *text, const char *other) { return text && !strcmp(text, other); }

static void note(contents *c, const char *line, size_t length, const rm_metrics_run *run) {
    json_t *event = json_loadb(line, length, 0, NULL);
    const json_t *at = json_object_get(event, "step");
    const char *kind = json_string_value(json_object_get(event, "event"));
    const char *name = json_string_value(json_object_get(event, "run"));
    c->lines++;
    c->other = c->other || (name && !is(name, run->name));
    c->runs = c->runs || name || !is(kind, "eval");
    c->whole += (int64_t)length;
    c->ended = c->ended || (is(kind, "end") && json_integer_value(json_object_get(event, "steps")) > 0);
    c->later = c->later || is(kind, "end") || (json_is_integer(at) && json_integer_value(at) > run->resumed_step);
    if (event && !c->later) c->keep = c->whole;
    json_decref(event);
}

/* The last line may be incomplete, if the run died while writing it. */
static contents look(FILE *file, const rm_metrics_run *run) {
    contents c = {0};
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, file)) > 0 && line[length - 1] == '\n')
        note(&c, line, (size_t)length, run);
    free(line);
    return c;
}

static remat_status continue_after(rm_metrics *metrics, off_t keep) {
    if (ftruncate(fileno(metrics->file), keep) || fseeko(metrics->file, keep, SEEK_SET)) return failed(metrics);
    return REMAT_OK;
}

/* Appends to earlier evaluations, because scripts collect several states or data sets in one file. */
static remat_status add_evaluation(rm_metrics *metrics, const contents *c) {
    REQUIRE(!c->runs, INVALID,
            "%s holds the metrics of a run, so evaluations cannot be added: choose another name for "
            "--metrics",
            metrics->path);
    return continue_after(metrics, (off_t)c->whole);
}

/* A resumed run continues its own file and drops the lines that it will write again. Files of versions that did not
 * name runs count as its own. A run that was killed before it saved starts again; its file has no end event. Other
 * files belong to other runs. */
static remat_status go_on(rm_metrics *metrics, const rm_metrics_run *run) {
    contents c = look(metrics->file, run);
    if (!*run->name) return add_evaluation(metrics, &c);
    bool own = run->resumed_step ? c.runs && !c.other : run->again && !c.ended;
    REQUIRE(!c.lines || own, INVALID,
            "%s holds the metrics of another run, so it was not changed: choose another name for --metrics, or remove "
            "it",
            metrics->path);
    return continue_after(metrics, run->resumed_step ? (off_t)c.keep : 0);
}

/* Changes the file only after checking that it belongs to this run and that no other run is writing to it. */
static remat_status open_plain(rm_metrics *metrics, const rm_metrics_run *run) {
    int fd = open(metrics->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    metrics->file = fd < 0 ? NULL : fdopen(fd, "r+");
    if (!metrics->file) return REMAT_OK;
    bool taken = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; /* other errors: the file system has no locks */
    REQUIRE(!taken, IO, "another run is writing to %s: choose another name for --metrics", metrics->path);
    TRY(spare_others(metrics));
    return go_on(metrics, run);
}

remat_status rm_metrics_open(const char *path, const rm_metrics_run *run, rm_metrics *out) {
    *out = (rm_metrics){.path = path, .standard_output = path && is(path, "-")};
    if (!path) return REMAT_OK;
    if (out->standard_output) {
        int fd = dup(STDOUT_FILENO);
        out->path = "the output";
        out->file = fd < 0 ? NULL : fdopen(fd, "w");
    } else if (rm_path_exists(path) && !rm_path_is_file(path)) {
        rm_file_writer stream;
        TRY(rm_file_open_stream(path, &stream));
        out->file = fdopen(stream.fd, "w");
    } else {
        TRY(open_plain(out, run));
    }
    if (!out->file) FAIL(IO, "cannot create %s: %s: choose another path for --metrics", path, strerror(errno));
    return REMAT_OK;
}

FILE *rm_metrics_words(const rm_metrics *metrics) { return metrics->standard_output ? stderr : stdout; }

remat_status rm_metrics_close(rm_metrics *metrics) {
    FILE *file = metrics->file;
    metrics->file = NULL;
    return file && fclose(file) ? failed(metrics) : REMAT_OK;
}

/* "2026-03-01T12:00:00.123Z": ISO 8601, in UTC. */
static json_t *time_of_day(void) {
    struct timespec now;
    struct tm utc;
    char second[32], text[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(second, sizeof second, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03ldZ", second, now.tv_nsec / 1000000);
    return json_string(text);
}

/* %.9g preserves the bits of a float. Frees the event. */
static remat_status write_event(rm_metrics *metrics, json_t *event) {
    REQUIRE(event, MEMORY, "no memory for a line of %s", metrics->path);
    json_object_set_new(event, "time", time_of_day());
    bool bad =
        json_dumpf(event, metrics->file, JSON_COMPACT | JSON_REAL_PRECISION(9)) || fputc('\n', metrics->file) < 0;
    bad = fflush(metrics->file) || bad;
    json_decref(event);
    if (!bad) return REMAT_OK;
    (void)failed(metrics);
    (void)fclose(metrics->file);
    metrics->file = NULL;
    return REMAT_IO;
}

/* ---- The events ------------------------------------------------------------------------------------------------- */

static json_t *real(double value) { return isfinite(value) ? json_real(value) : json_null(); }
static json_t *count(uint64_t value) { return json_integer((json_int_t)value); }

static void add_flags(json_t *event, const rm_options *o) {
    json_object_set_new(event, "task", json_string(o->task));
    json_object_set_new(event, "model", json_string(o->model.name));
    json_object_set_new(event, "layers", json_integer(o->model.layers));
    json_object_set_new(event, "hidden", json_integer(o->model.hidden));
    json_object_set_new(event, "embed", json_integer(o->model.embed));
    json_object_set_new(event, "dropout", json_real(o->model.dropout));
    json_object_set_new(event, "tbptt", json_integer(o->tbptt.length));
    json_object_set_new(event, "tbptt_step", json_integer(o->tbptt.step));
    json_object_set_new(event, "stateful", json_boolean(o->order.stateful));
    json_object_set_new(event, "optimizer", json_string(o->session.optimizer));
    json_object_set_new(event, "seed", json_integer(o->data.seed));
}

/* Adds the ranks and the parts of an update. */
static void add_ranks(json_t *event, const rm_options *o) {
    char word[32];
    int64_t ranks = rm_setup_ranks(o), micro_steps = rm_setup_micro_steps(o);
    json_object_set_new(event, "ranks", json_integer(ranks));
    json_object_set_new(event, "rank", json_integer(o->rank > 0 ? o->rank : 0));
    json_object_set_new(event, "micro_steps", json_integer(micro_steps));
    json_object_set_new(event, "global_batch", json_integer(ranks * micro_steps * rm_setup_rows(o)));
    json_object_set_new(event, "deterministic_world", json_integer(o->order.shards));
    json_object_set_new(event, "grad_compress", json_string(rm_options_text_of(o, "grad-compress", word, sizeof word)));
    json_object_set_new(event, "zero", json_integer(o->ddp.shard_optimizer));
}

static void add_summary(json_t *event, const remat_plan_summary *p) {
    json_object_set_new(event, "strategy", json_string(p->strategy));
    json_object_set_new(event, "segments", json_integer(p->segments));
    json_object_set_new(event, "segments_requested", json_integer(p->segments_requested));
    json_object_set_new(event, "device", json_string(p->device));
    json_object_set_new(event, "precision", json_string(p->precision));
    json_object_set_new(event, "rnn_kernels", json_string(p->rnn_kernels));
    json_object_set_new(event, "threads", json_integer(p->threads));
    json_object_set_new(event, "seq_len", json_integer(p->timesteps));
    json_object_set_new(event, "batch", json_integer(p->batch));
    json_object_set_new(event, "tile", json_integer(p->tile));
    json_object_set_new(event, "n_tiles", json_integer(p->n_tiles));
    json_object_set_new(event, "n_stages", json_integer(p->n_stages));
    json_object_set_new(event, "params_bytes", count(p->params_bytes));
    json_object_set_new(event, "gradients_bytes", count(p->gradients_bytes));
    json_object_set_new(event, "n_buckets", json_integer(p->n_buckets));
    json_object_set_new(event, "optimizer_bytes", count(p->optimizer_bytes));
    json_object_set_new(event, "inputs_bytes", count(p->inputs_bytes));
    json_object_set_new(event, "packed_bytes", count(p->packed_bytes));
    json_object_set_new(event, "other_bytes", count(p->other_bytes));
    json_object_set_new(event, "activations_peak_bytes", count(p->activations_peak_bytes));
    json_object_set_new(event, "activations_floor_bytes", count(p->activations_floor_bytes));
    json_object_set_new(event, "planned_peak_bytes", count(p->planned_peak_bytes));
    json_object_set_new(event, "workspace_bytes", count(p->workspace_bytes));
    json_object_set_new(event, "tables_bytes", count(p->tables_bytes));
    json_object_set_new(event, "budgeted_bytes", count(p->budgeted_bytes));
    json_object_set_new(event, "memory_budget", count(p->memory_budget));
    json_object_set_new(event, "spill_bytes", count(p->spill_bytes));
    json_object_set_new(event, "peak_step", json_integer(p->peak_step));
    json_object_set_new(event, "n_steps", json_integer(p->n_steps));
    json_object_set_new(event, "forward_ns", count(p->forward_ns));
    json_object_set_new(event, "recompute_ns", count(p->recompute_ns));
    json_object_set_new(event, "backward_ns", count(p->backward_ns));
    json_object_set_new(event, "transfer_ns", count(p->transfer_ns));
    json_object_set_new(event, "wait_ns", count(p->wait_ns));
    json_object_set_new(event, "step_ns", count(p->step_ns));
    json_object_set_new(event, "fixed_ns", count(p->fixed_ns));
    json_object_set_new(event, "measured_times", json_boolean(p->measured_times));
    json_object_set_new(event, "measured_busy", json_boolean(p->measured_busy));
    json_object_set_new(event, "recompute_factor", real(p->recompute_factor));
}

void *rm_metrics_plan_json(const remat_plan_summary *summary, const rm_options *options) {
    json_t *event = json_pack("{s:s}", "event", "plan");
    if (event) {
        add_summary(event, summary);
        add_flags(event, options);
        add_ranks(event, options);
    }
    return event;
}

remat_status rm_metrics_plan(rm_metrics *metrics, const remat_plan_summary *summary, const rm_options *options,
                             const rm_metrics_run *run) {
    if (!metrics->file) return REMAT_OK;
    json_t *event = rm_metrics_plan_json(summary, options);
    json_object_set_new(event, "run", json_string(run->name));
    json_object_set_new(event, "resumed_step", json_integer(run->resumed_step));
    return write_event(metrics, event);
}

remat_status rm_metrics_step(rm_metrics *metrics, const rm_step_event *e) {
    if (!metrics->file) return REMAT_OK;
    json_t *event =
        json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "event", "step", "step", (json_int_t)e->step,
                  "epoch", real(e->epoch), "loss", real(e->loss), "grad_norm", real(e->grad_norm), "lr", real(e->lr),
                  "step_ms", real(e->step_ms), "tokens_per_s", real(e->tokens_per_s), "arena_peak_bytes",
                  count(e->arena_peak_bytes), "rss_peak_bytes", count(e->rss_peak_bytes));
    if (e->accuracy >= 0) json_object_set_new(event, "accuracy", real(e->accuracy));
    if (e->has_comm) {
        json_object_set_new(event, "comm_bytes", count(e->comm_bytes));
        json_object_set_new(event, "comm_busy_ms", real(e->comm_busy_ms));
        json_object_set_new(event, "comm_wait_ms", real(e->comm_wait_ms));
    }
    return write_event(metrics, event);
}

remat_status rm_metrics_gpu(rm_metrics *metrics, int64_t step, const remat_products *p, const remat_recordings *r) {
    if (!metrics->file) return REMAT_OK;
    json_t *event =
        json_pack("{s:s, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:o, s:o, s:s?}}", "event",
                  "gpu", "step", (json_int_t)step, "products", "shapes", (json_int_t)p->shapes, "in_fp32",
                  (json_int_t)p->in_fp32, "split", (json_int_t)p->split, "by_cublas", (json_int_t)p->by_cublas, "alone",
                  (json_int_t)p->alone, "whole", (json_int_t)p->whole, "batched", (json_int_t)p->batched, "blocks",
                  (json_int_t)p->blocks, "graphs", "calls", (json_int_t)r->calls, "recorded", (json_int_t)r->graphs,
                  "bytes", count(r->bytes), "limit_bytes", count(r->limit_bytes), "ended", r->ended);
    return write_event(metrics, event);
}

static json_t *confusion_json(const int64_t *confusion, int64_t classes) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < classes; i++) {
        json_t *row = json_array();
        for (int64_t k = 0; k < classes; k++) json_array_append_new(row, json_integer(confusion[i * classes + k]));
        json_array_append_new(rows, row);
    }
    return rows;
}

const char *rm_eval_text(const rm_eval_event *event, char *text, size_t bytes) {
    size_t n = 0;
    for (int i = 0; i < RM_SCORES && n + 2 < bytes; i++) {
        const rm_score *s = &rm_scores[i];
        if (!event->has[i]) continue;
        if (n) text[n++] = ' ', text[n++] = ' ';
        n += (size_t)snprintf(text + n, bytes - n,
                              !s->share || isfinite(event->score[i]) ? s->text
                                                                     : "no label error rate: there are no labels",
                              s->share ? 100 * event->score[i] : event->score[i]);
    }
    if (n < bytes) snprintf(text + n, bytes - n, "  (%lld samples)", (long long)event->samples);
    return text;
}

void *rm_metrics_eval_json(const rm_eval_event *e, const int64_t *confusion, int64_t classes) {
    json_t *event =
        json_pack("{s:s, s:I, s:I}", "event", "eval", "step", (json_int_t)e->step, "samples", (json_int_t)e->samples);
    for (int i = 0; i < RM_SCORES; i++)
        if (e->has[i]) json_object_set_new(event, rm_scores[i].name, real(e->score[i]));
    if (confusion) json_object_set_new(event, "confusion", confusion_json(confusion, classes));
    return event;
}

remat_status rm_metrics_eval(rm_metrics *metrics, const rm_eval_event *e) {
    return metrics->file ? write_event(metrics, rm_metrics_eval_json(e, NULL, 0)) : REMAT_OK;
}

remat_status rm_metrics_end(rm_metrics *metrics, const rm_end_event *e) {
    if (!metrics->file) return REMAT_OK;
    remat_build_info build = rm_build_info_of_this();
    json_t *event = json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:{s:s, s:o, s:o}}", "event", "end", "steps",
                              (json_int_t)e->steps, "loss", real(e->loss), "wall_s", real(e->wall_s),
                              "arena_peak_bytes", count(e->arena_peak_bytes), "rss_peak_bytes",
                              count(e->rss_peak_bytes), "host", "allocator", build.host_allocator, "allocated_bytes",
                              count(build.host_allocated_bytes), "resident_bytes", count(build.host_resident_bytes));
    if (e->signal) json_object_set_new(event, "signal", json_integer(e->signal));
    if (e->straggler_host)
        json_object_set_new(event, "straggler",
                            json_pack("{s:i, s:s, s:o}", "rank", e->straggler, "host", e->straggler_host, "waited_s",
                                      real(e->straggler_s)));
    return write_event(metrics, event);
}
