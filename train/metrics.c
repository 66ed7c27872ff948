/* metrics.c: see metrics.h. */
#include "train/metrics.h"

#include "train/file.h"
#include "train/setup.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The file --------------------------------------------------------------------------------------------------- */

static remat_status failed(const rm_metrics *metrics) {
    FAIL(IO, "cannot write %s: %s: make room, or choose another place for --metrics", metrics->path, strerror(errno));
}

/* Whether a line of an earlier run belongs to what a resumed run makes again. */
static bool is_later(const char *line, size_t length, int64_t step) {
    json_t *event = json_loadb(line, length, 0, NULL);
    const json_t *at = json_object_get(event, "step");
    const char *name = json_string_value(json_object_get(event, "event"));
    bool ends = !event || (name && !strcmp(name, "end")); /* no event: the line was being written when the run died */
    bool later = ends || (json_is_integer(at) && json_integer_value(at) > step);
    json_decref(event);
    return later;
}

/* Cuts the file off behind what was written up to `step`. */
static remat_status cut_after(rm_metrics *metrics, int64_t step) {
    char *line = NULL;
    size_t capacity = 0;
    off_t keep = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, metrics->file)) > 0 && line[length - 1] == '\n') {
        if (is_later(line, (size_t)length, step)) break;
        keep += length;
    }
    free(line);
    if (ftruncate(fileno(metrics->file), keep) || fseeko(metrics->file, keep, SEEK_SET)) return failed(metrics);
    return REMAT_OK;
}

/* A name that was mistyped must not cost anybody a file: all that begins differently is somebody's. A run that was killed may have
 * left a part of the beginning, or nothing. */
static remat_status spare_others(const char *path) {
    static const char ours[] = "{\"event\"";
    char begin[sizeof ours] = "";
    FILE *file = rm_path_is_file(path) ? fopen(path, "re") : NULL;
    size_t n = file ? fread(begin, 1, sizeof ours - 1, file) : 0;
    if (file) fclose(file);
    REQUIRE(!memcmp(begin, ours, n), INVALID,
            "%s is there already, and has no metrics in it: it is left as it is; choose another name for --metrics",
            path);
    return REMAT_OK;
}

remat_status rm_metrics_open(const char *path, int64_t resumed_step, rm_metrics *out) {
    struct stat about;
    *out = (rm_metrics){.path = path};
    if (!path) return REMAT_OK;
    TRY(spare_others(path));
    bool append = resumed_step > 0 && stat(path, &about) == 0 && S_ISREG(about.st_mode);
    out->file = fopen(path, append ? "r+e" : "we");
    if (!out->file) FAIL(IO, "cannot create %s: %s: choose another place for --metrics", path, strerror(errno));
    return append ? cut_after(out, resumed_step) : REMAT_OK;
}

remat_status rm_metrics_close(rm_metrics *metrics) {
    FILE *file = metrics->file;
    metrics->file = NULL;
    return file && fclose(file) ? failed(metrics) : REMAT_OK;
}

/* %.9g: enough for a float to come back as the same bits. Takes the event over. */
static remat_status write_event(rm_metrics *metrics, json_t *event) {
    REQUIRE(event, MEMORY, "no memory for a line of %s", metrics->path);
    bool bad =
        json_dumpf(event, metrics->file, JSON_COMPACT | JSON_REAL_PRECISION(9)) || fputc('\n', metrics->file) < 0;
    bad = fflush(metrics->file) || bad;
    json_decref(event);
    return bad ? failed(metrics) : REMAT_OK;
}

/* ---- The events ------------------------------------------------------------------------------------------------- */

static json_t *real(double value) { return isfinite(value) ? json_real(value) : json_null(); }
static json_t *count(uint64_t value) { return json_integer((json_int_t)value); }

static void add_flags(json_t *event, const rm_options *o) {
    json_object_set_new(event, "task", json_string(o->task));
    json_object_set_new(event, "model", json_string(o->model));
    json_object_set_new(event, "layers", json_integer(o->layers));
    json_object_set_new(event, "hidden", json_integer(o->hidden));
    json_object_set_new(event, "embed", json_integer(o->embed));
    json_object_set_new(event, "dropout", json_real(o->dropout));
    json_object_set_new(event, "optimizer", json_string(o->optimizer));
    json_object_set_new(event, "seed", json_integer(o->seed));
}

/* Who computes an update, and in how many parts. */
static void add_ranks(json_t *event, const rm_options *o) {
    int64_t ranks = rm_setup_ranks(o), micro_steps = rm_setup_micro_steps(o);
    json_object_set_new(event, "ranks", json_integer(ranks));
    json_object_set_new(event, "rank", json_integer(o->rank > 0 ? o->rank : 0));
    json_object_set_new(event, "micro_steps", json_integer(micro_steps));
    json_object_set_new(event, "global_batch", json_integer(ranks * micro_steps * rm_setup_rows(o)));
    json_object_set_new(event, "deterministic_world", json_integer(o->deterministic_world));
    json_object_set_new(event, "grad_compress", json_string(o->grad_compress));
    json_object_set_new(event, "zero", json_integer(o->zero));
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
                             int64_t resumed_step) {
    if (!metrics->file) return REMAT_OK;
    json_t *event = rm_metrics_plan_json(summary, options);
    json_object_set_new(event, "resumed_step", json_integer(resumed_step));
    return write_event(metrics, event);
}

remat_status rm_metrics_step(rm_metrics *metrics, const rm_step_event *e) {
    if (!metrics->file) return REMAT_OK;
    json_t *event =
        json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "event", "step", "step", (json_int_t)e->step, "loss",
                  real(e->loss), "grad_norm", real(e->grad_norm), "lr", real(e->lr), "step_ms", real(e->step_ms),
                  "tokens_per_s", real(e->tokens_per_s), "arena_peak_bytes", count(e->arena_peak_bytes),
                  "rss_peak_bytes", count(e->rss_peak_bytes));
    if (e->has_comm) {
        json_object_set_new(event, "comm_bytes", count(e->comm_bytes));
        json_object_set_new(event, "comm_busy_ms", real(e->comm_busy_ms));
        json_object_set_new(event, "comm_wait_ms", real(e->comm_wait_ms));
    }
    return write_event(metrics, event);
}

remat_status rm_metrics_eval(rm_metrics *metrics, const rm_eval_event *e) {
    if (!metrics->file) return REMAT_OK;
    json_t *event = json_pack("{s:s, s:I, s:I, s:o}", "event", "eval", "step", (json_int_t)e->step, "samples",
                              (json_int_t)e->samples, "loss", real(e->loss));
    if (e->accuracy >= 0) json_object_set_new(event, "accuracy", real(e->accuracy));
    if (e->bytes) {
        json_object_set_new(event, "bits_per_byte", real(e->loss / M_LN2));
        json_object_set_new(event, "perplexity", real(exp(e->loss)));
    }
    return write_event(metrics, event);
}

remat_status rm_metrics_end(rm_metrics *metrics, const rm_end_event *e) {
    if (!metrics->file) return REMAT_OK;
    remat_build_info build = remat_build();
    json_t *event = json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:{s:s, s:o, s:o}}", "event", "end", "steps",
                              (json_int_t)e->steps, "loss", real(e->loss), "wall_s", real(e->wall_s),
                              "arena_peak_bytes", count(e->arena_peak_bytes), "rss_peak_bytes",
                              count(e->rss_peak_bytes), "host", "allocator", build.host_allocator, "allocated_bytes",
                              count(build.host_allocated_bytes), "resident_bytes", count(build.host_resident_bytes));
    if (e->signal) json_object_set_new(event, "signal", json_integer(e->signal));
    return write_event(metrics, event);
}
