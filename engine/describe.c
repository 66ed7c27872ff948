/* describe.c: what a session will do, as numbers and as text for people and for diffing. Read from the checked plan
 * itself, so that what is printed is what runs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"
#include "memory/host.h"

/* ---- Numbers -------------------------------------------------------------------------------------------------- */

static uint64_t resident_bytes(const remat_session *s, const char *name) {
    for (int i = 0; i < s->chain.problem.n_resident; i++)
        if (!strcmp(s->chain.problem.resident[i].name, name)) return s->chain.problem.resident[i].bytes;
    return 0;
}

static const rm_schedule *schedule_of(const remat_session *s) { return s->inference ? &s->evaluation : &s->training; }

remat_plan_summary remat_session_plan(const remat_session *s) {
    const rm_schedule *schedule = schedule_of(s);
    const rm_verdict *verdict = &schedule->verdict;
    remat_plan_summary plan = {
        .strategy = s->strategy->name,
        .device = s->api->name,
        .threads = s->threads,
        .timesteps = s->chain.timesteps,
        .batch = s->chain.batch,
        .tile = s->chain.tile,
        .n_tiles = s->chain.timed ? s->chain.n_stages : 1,
        .n_stages = s->chain.n_stages,
        .segments = s->training.proposal.segments,
        .segments_requested = s->segments_requested ? s->segments_requested : s->training.proposal.segments,
        .params_bytes = resident_bytes(s, "parameters"),
        .gradients_bytes = resident_bytes(s, "gradients"),
        .optimizer_bytes = resident_bytes(s, "optimizer"),
        .inputs_bytes = resident_bytes(s, "inputs"),
        .packed_bytes = resident_bytes(s, "packed weights"),
        .activations_peak_bytes = s->arena_bytes - s->chain.at.bytes,
        .activations_floor_bytes = schedule->placement.floor_bytes,
        .planned_peak_bytes = s->arena_bytes,
        .peak_step = verdict->peak_step,
        .forward_ns = verdict->forward_ns,
        .recompute_ns = verdict->recompute_ns,
        .backward_ns = verdict->backward_ns,
        .recompute_factor = verdict->recompute_factor,
        .n_steps = schedule->plan.n_steps,
    };
    plan.other_bytes = s->chain.at.bytes - plan.params_bytes - plan.gradients_bytes - plan.optimizer_bytes -
                       plan.inputs_bytes - plan.packed_bytes;
    return plan;
}

/* ---- What happens to each stage ------------------------------------------------------------------------------- */

typedef struct {
    int32_t forward_runs;
    bool checkpoint;    /* state(s) is kept from forward to backward, and is where a recomputation begins */
    bool kept_at_first; /* its first forward run kept what backward needs */
    uint64_t saved_bytes, state_bytes;
} fate;

static uint64_t object_bytes(const rm_problem *problem, const rm_lists *lists, int64_t i) {
    uint64_t bytes = 0;
    for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++) bytes += problem->piece[lists->item[k]].bytes;
    return bytes;
}

/* One entry a stage; NULL when out of memory. */
static fate *find_fates(const remat_session *s) {
    const rm_problem *problem = s->inference ? &s->chain.evaluation : &s->chain.problem;
    const rm_plan *plan = &schedule_of(s)->plan;
    fate *fates = rm_calloc((size_t)problem->n_stages, sizeof *fates);
    for (int64_t i = 0; fates && i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        fate *f = &fates[step->index < problem->n_stages ? step->index : 0];
        if (step->verb == RM_RUN_FORWARD && f->forward_runs++ == 0) {
            f->kept_at_first = step->option != RM_DROP;
            const rm_step *next = i + 1 < plan->n_steps ? step + 1 : step;
            bool freed = next->verb == RM_FREE && next->object == RM_STATE && next->index == step->index;
            f->checkpoint = !f->kept_at_first && !freed;
        }
    }
    for (int64_t i = 0; fates && i < problem->n_stages; i++) {
        fates[i].saved_bytes = s->inference ? 0 : problem->stage[i].option[0].saved_bytes;
        fates[i].state_bytes = object_bytes(problem, &problem->state, i);
    }
    return fates;
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

static const char *size_text(uint64_t bytes, char *text) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int u = 0;
    for (; value >= 1024 && u < 4; u++) value /= 1024;
    snprintf(text, 32, u ? "%.2f %s" : "%.0f %s", value, unit[u]);
    return text;
}

static void print_size(FILE *out, const char *label, uint64_t bytes) {
    char text[32];
    fprintf(out, "  %-26s %14" PRIu64 "  (%s)\n", label, bytes, size_text(bytes, text));
}

static void print_head(FILE *out, const remat_session *s, const remat_plan_summary *plan) {
    fprintf(out, "Plan: strategy %s, device %s, %d thread%s\n", plan->strategy, plan->device, plan->threads,
            plan->threads == 1 ? "" : "s");
    if (s->chain.timed)
        fprintf(out, "  %" PRId64 " timesteps x batch %" PRId64 ", in %" PRId64 " tiles of %" PRId64, plan->timesteps,
                plan->batch, plan->n_tiles, plan->tile);
    else
        fprintf(out, "  a net of %" PRId64 " stages, cut by depth", plan->n_stages);
    if (!s->inference) fprintf(out, "; %" PRId64 " segment%s", plan->segments, plan->segments == 1 ? "" : "s");
    fprintf(out, "\n");
    if (plan->segments_requested > plan->segments)
        fprintf(out, "  %" PRId64 " segments were asked for; segments are whole %s, and there are %" PRId64 "\n",
                plan->segments_requested, s->chain.timed ? "tiles" : "stages", plan->n_stages);
    if (s->n_folded) fprintf(out, "  the embedding is folded into the input projection that follows it\n");
}

/* Rows i..j-1 share a segment: a stage and those after it up to the next checkpoint or change of treatment. */
static int64_t end_of_row(const fate *fates, int64_t n, int64_t i) {
    int64_t j = i + 1;
    while (j < n && !fates[j].checkpoint && fates[j].kept_at_first == fates[i].kept_at_first) j++;
    return j;
}

static void print_row(FILE *out, const remat_session *s, const fate *fates, int64_t i, int64_t j) {
    char saved[32], state[32], stages[48], steps[48];
    uint64_t bytes = 0;
    for (int64_t k = i; k < j; k++) bytes += fates[k].saved_bytes;
    int64_t last = s->chain.timed && j * s->chain.tile < s->chain.timesteps ? j * s->chain.tile : s->chain.timesteps;
    snprintf(stages, sizeof stages, "%" PRId64 "..%" PRId64, i, j - 1);
    snprintf(steps, sizeof steps, s->chain.timed ? "%" PRId64 "..%" PRId64 : "-", i * s->chain.tile, last - 1);
    const char *what = s->inference ? "run once" : fates[i].kept_at_first ? "kept" : "dropped, then recomputed";
    fprintf(out, "  %-16s %-18s %-26s %6d %14s %12s\n", stages, steps, what, fates[i].forward_runs,
            size_text(bytes, saved), size_text(fates[i].state_bytes, state));
}

static void print_rows(FILE *out, const remat_session *s, const fate *fates) {
    enum { HEAD = 12, TAIL = 4 };
    int64_t n = s->chain.n_stages, rows = 0, row = 0;
    for (int64_t i = 0; i < n; i = end_of_row(fates, n, i)) rows++;
    fprintf(out, "\n  %-16s %-18s %-26s %6s %14s %12s\n", "stages", "timesteps", "what backward needs is", "runs",
            "saved", "checkpoint");
    for (int64_t i = 0, j; i < n; i = j, row++) {
        j = end_of_row(fates, n, i);
        if (rows > HEAD + TAIL + 1 && row == HEAD)
            fprintf(out, "  ... %" PRId64 " rows like these ...\n", rows - HEAD - TAIL);
        if (rows > HEAD + TAIL + 1 && row >= HEAD && row < rows - TAIL) continue;
        print_row(out, s, fates, i, j);
    }
}

static void print_resident(FILE *out, const remat_session *s, const remat_plan_summary *plan) {
    fprintf(out, "\nBytes\n");
    for (int i = 0; i < s->chain.problem.n_resident; i++)
        if (s->chain.problem.resident[i].bytes)
            print_size(out, s->chain.problem.resident[i].name, s->chain.problem.resident[i].bytes);
    print_size(out, "activations, at their peak", plan->activations_peak_bytes);
    print_size(out, "planned peak = the arena", plan->planned_peak_bytes);
}

/* Which pieces are gradients: 1 in the result, one entry a piece. */
static uint8_t *mark_gradients(const rm_problem *problem) {
    uint8_t *mark = rm_calloc((size_t)problem->n_pieces + 1, 1);
    for (int64_t i = 0; mark && i < problem->dstate.start[problem->n_stages + 1]; i++)
        mark[problem->dstate.item[i]] = 1;
    return mark;
}

static void print_peak(FILE *out, const remat_session *s, const remat_plan_summary *plan) {
    const rm_problem *problem = s->inference ? &s->chain.evaluation : &s->chain.problem;
    const rm_lifetimes *lives = &schedule_of(s)->lifetimes;
    uint64_t state = 0, gradient = 0, saved = 0, scratch = 0;
    uint8_t *is_gradient = mark_gradients(problem);
    for (int64_t i = 0; is_gradient && i < lives->count; i++) {
        const rm_lifetime *life = &lives->item[i];
        if (life->first > plan->peak_step || life->last < plan->peak_step) continue;
        *(life->kind == RM_BUFFER_SAVED     ? &saved
          : life->kind == RM_BUFFER_SCRATCH ? &scratch
          : is_gradient[life->index]        ? &gradient
                                            : &state) += life->bytes;
    }
    rm_free(is_gradient);
    char step[RM_STEP_TEXT];
    fprintf(out, "\nPeak: at step %" PRId64 " of %" PRId64 " (%s); alive there\n", plan->peak_step, plan->n_steps,
            rm_step_text(problem, schedule_of(s)->plan.step[plan->peak_step], step));
    print_size(out, "states and checkpoints", state);
    print_size(out, "saved for backward", saved);
    print_size(out, "gradients of states", gradient);
    print_size(out, "scratch", scratch);
}

static void print_times(FILE *out, const remat_plan_summary *plan) {
    fprintf(out, "\nPredicted time of a step, ms\n");
    fprintf(out, "  forward %.1f, recompute %.1f, backward %.1f; recompute factor %.3f\n",
            1e-6 * (double)plan->forward_ns, 1e-6 * (double)plan->recompute_ns, 1e-6 * (double)plan->backward_ns,
            plan->recompute_factor);
}

/* Texts are built in a memory stream; NULL when that fails. */
typedef void text_writer(FILE *out, const remat_session *s);

static char *write_text(const remat_session *s, text_writer *write) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    write(out, s);
    bool failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return NULL;
    }
    return text;
}

void remat_text_free(char *text) { free(text); }

static void write_description(FILE *out, const remat_session *s) {
    remat_plan_summary plan = remat_session_plan(s);
    fate *fates = find_fates(s);
    if (!fates) return;
    print_head(out, s, &plan);
    print_rows(out, s, fates);
    print_resident(out, s, &plan);
    print_peak(out, s, &plan);
    print_times(out, &plan);
    rm_free(fates);
}

static void write_stages(FILE *out, const remat_session *s) {
    fate *fates = find_fates(s);
    fprintf(out, "[");
    for (int64_t i = 0; fates && i < s->chain.n_stages; i++)
        fprintf(out,
                "%s\n  {\"stage\": %" PRId64 ", \"first_timestep\": %" PRId64 ", \"timesteps\": %" PRId64
                ", \"forward_runs\": %d, \"kept_at_first\": %s, \"checkpoint\": %s, \"saved_bytes\": %" PRIu64
                ", \"state_bytes\": %" PRIu64 "}",
                i ? "," : "", i, i * s->chain.tile, rm_stage_class(&s->chain, i)->tau, fates[i].forward_runs,
                fates[i].kept_at_first ? "true" : "false", fates[i].checkpoint ? "true" : "false", fates[i].saved_bytes,
                fates[i].state_bytes);
    fprintf(out, "\n]\n");
    rm_free(fates);
}

static void write_steps(FILE *out, const remat_session *s) {
    rm_plan_write(s->inference ? &s->chain.evaluation : &s->chain.problem, &schedule_of(s)->plan, out);
}
static void write_problem(FILE *out, const remat_session *s) {
    rm_problem_write(s->inference ? &s->chain.evaluation : &s->chain.problem, out);
}

char *remat_plan_describe(const remat_session *s) { return write_text(s, write_description); }
char *remat_plan_stages_json(const remat_session *s) { return write_text(s, write_stages); }
char *remat_plan_steps_text(const remat_session *s) { return write_text(s, write_steps); }
char *remat_plan_problem_text(const remat_session *s) { return write_text(s, write_problem); }
