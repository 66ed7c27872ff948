/* describe.c: prints a session's plan as text for people, as steps for diff, and as JSON. plan_report.c and summary.c read the numbers
 * from the checked plan. Main entries: remat_plan_describe and its neighbours at the end. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/neutral.h"
#include "engine/report/plan_report.h"
#include "memory/host.h"

enum { SHOWN = 5 }; /* groups of buffers at the peak */

/* ---- Words ---------------------------------------------------------------------------------------------------- */

static const char *option_name(const remat_session *s, int64_t stage, int8_t option) {
    return option == RM_DROP ? "none" : rm_session_problem(s)->stage[stage].option[option].name;
}

/* "kept", "kept lean", "dropped, then recomputed" or "dropped, recomputed lean", with ", spilled" appended if it is. */
static const char *report_text(const remat_session *s, int64_t stage, const rm_stage_report *f, char text[40]) {
    const char *name = option_name(s, stage, f->kept);
    bool all = !strcmp(name, "all");
    if (s->inference)
        return "run once";
    else if (f->first != RM_DROP)
        snprintf(text, 40, "kept%s%s", all ? "" : " ", all ? "" : name);
    else
        snprintf(text, 40, all ? "dropped, then recomputed" : "dropped, recomputed %s", name);
    if (f->spilled) strcat(text, ", spilled");
    return text;
}

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

/* ---- For people ----------------------------------------------------------------------------------------------- */

static void print_head(FILE *out, const remat_session *s, const remat_plan_summary *plan) {
    fprintf(out, "Plan: strategy %s, device %s, ", plan->strategy, plan->device);
    if (s->precision != RM_FP32) fprintf(out, "products in %s, ", plan->precision);
    if (s->cudnn) fprintf(out, "recurrent layers by cuDNN, ");
    fprintf(out, "%d thread%s\n", plan->threads, plan->threads == 1 ? "" : "s");
    if (s->chain.timed)
        fprintf(out, "  %" PRId64 " timesteps x batch %" PRId64 ", in %" PRId64 " tile%s of %" PRId64, plan->timesteps,
                plan->batch, plan->n_tiles, plan->n_tiles == 1 ? "" : "s", plan->tile);
    if (s->chain.timed && s->chain.n_sweeps > 1)
        fprintf(out, ", %" PRId64 " stages in %d sweeps", plan->n_stages, s->chain.n_sweeps);
    if (!s->chain.timed) fprintf(out, "  a net of %" PRId64 " stages, cut by depth", plan->n_stages);
    if (!s->inference) fprintf(out, "; %" PRId64 " segment%s", plan->segments, plan->segments == 1 ? "" : "s");
    fprintf(out, "\n");
    if (plan->segments_requested > plan->segments)
        fprintf(out,
                "  %" PRId64 " segments were requested, but a segment is at least one %s and there %s %" PRId64 "\n",
                plan->segments_requested, s->chain.timed ? "tile" : "stage", plan->n_stages == 1 ? "is" : "are",
                plan->n_stages);
    if (s->n_folded) fprintf(out, "  the embedding is folded into the input projection that follows it\n");
}

static bool method_of(const remat_session *s, int32_t n, int64_t tile, rm_method *out) {
    const rm_node *node = &s->graph->node[n];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    if (!s->api->method || !s->device) return false;
    rm_node_descs(s->graph, node, s->graph->value[node->x[0]].sequence ? tile : 0, x, &y, state);
    return s->api->method(s->device, node->op, node->attr, x, out);
}

/* A line for each way in which the device computes some layers: how many, which is the first and the last, and their
 * memory. */
static void print_methods(FILE *out, const remat_session *s, const remat_plan_summary *plan) {
    for (int32_t n = 0; n < s->graph->n_nodes; n++) {
        char first[RM_LAYER_TEXT], last[RM_LAYER_TEXT], bytes[32];
        rm_method here, other;
        bool seen = false;
        int count = 1;
        if (!method_of(s, n, plan->tile, &here)) continue;
        for (int32_t i = 0; i < n && !seen; i++)
            seen = method_of(s, i, plan->tile, &other) && !strcmp(here.by, other.by);
        if (seen) continue;
        rm_node_layer(s, &s->graph->node[n], first);
        strcpy(last, first);
        for (int32_t i = n + 1; i < s->graph->n_nodes; i++) {
            if (!method_of(s, i, plan->tile, &other) || strcmp(here.by, other.by)) continue;
            if (other.work_bytes > here.work_bytes) here.work_bytes = other.work_bytes;
            rm_node_layer(s, &s->graph->node[i], last);
            count++;
        }
        fprintf(out, "  %d convolution%s by %s; work space up to %s: %s%s%s\n", count, count == 1 ? "" : "s", here.by,
                size_text(here.work_bytes, bytes), first, count > 1 ? " .. " : "", count > 1 ? last : "");
    }
}

/* The end of the row of the table that starts at stage i: the next checkpoint, sweep or change of option. */
static int64_t end_of_row(const remat_session *s, const rm_stage_report *reports, int64_t i) {
    const rm_sweep *sweep = rm_stage_sweep(&s->chain, i);
    int64_t j = i + 1, n = s->chain.timed ? sweep->first + sweep->count : s->chain.n_stages;
    while (j < n && !reports[j].checkpoint && reports[j].first == reports[i].first &&
           reports[j].kept == reports[i].kept && reports[j].spilled == reports[i].spilled)
        j++;
    return j;
}

/* Without a time axis, names the layers of stages i..j-1: "conv1 .. layer1.0.conv2". */
static void print_layers(const remat_session *s, int64_t i, int64_t j, char *text, size_t size) {
    char first[RM_LAYER_TEXT], last[RM_LAYER_TEXT];
    rm_session_layer(s, i, j, false, first);
    rm_session_layer(s, j - 1, i, true, last);
    snprintf(text, size, !*first ? "-" : strcmp(first, last) ? "%s .. %s" : "%s", first, last);
}

/* The timesteps of stages i..j-1 of one sweep, from the last down if the sweep runs down. */
static void print_timesteps(const remat_session *s, int64_t i, int64_t j, char *text, size_t size) {
    const rm_sweep *sweep = rm_stage_sweep(&s->chain, i);
    int64_t first = rm_stage_begin(&s->chain, sweep->down ? j - 1 : i);
    int64_t end = rm_stage_begin(&s->chain, sweep->down ? i : j - 1) + sweep->tile;
    int64_t last = (end < sweep->timesteps ? end : sweep->timesteps) - 1;
    if (s->chain.timed)
        snprintf(text, size, "%" PRId64 "..%" PRId64, sweep->down ? last : first, sweep->down ? first : last);
    else
        print_layers(s, i, j, text, size);
}

/* The width of the column of timesteps or layers. */
static int widest(const remat_session *s, const rm_stage_report *reports) {
    char text[2 * RM_LAYER_TEXT + 8];
    size_t wide = s->chain.timed ? 18 : 46;
    for (int64_t i = 0, j; i < s->chain.n_stages; i = j) {
        j = end_of_row(s, reports, i);
        print_timesteps(s, i, j, text, sizeof text);
        if (strlen(text) > wide) wide = strlen(text);
    }
    return (int)wide;
}

static void print_row(FILE *out, const remat_session *s, const rm_stage_report *reports, int64_t i, int64_t j,
                      int wide) {
    char saved[32], state[32], stages[48], steps[2 * RM_LAYER_TEXT + 8], runs[32], what[40];
    uint64_t bytes = 0;
    int32_t least = reports[i].forward_runs, most = least;
    for (int64_t k = i; k < j; k++) {
        bytes += reports[k].saved_bytes;
        if (reports[k].forward_runs < least) least = reports[k].forward_runs;
        if (reports[k].forward_runs > most) most = reports[k].forward_runs;
    }
    snprintf(stages, sizeof stages, "%" PRId64 "..%" PRId64, i, j - 1);
    print_timesteps(s, i, j, steps, sizeof steps);
    snprintf(runs, sizeof runs, least == most ? "%d" : "%d..%d", least, most);
    fprintf(out, "  %-16s %-*s %-33s %6s %12s %12s%s\n", stages, wide, steps, report_text(s, i, &reports[i], what),
            runs, size_text(bytes, saved), reports[i].checkpoint ? size_text(reports[i].state_bytes, state) : "-",
            reports[i].state_spilled ? ", spilled" : "");
}

static void print_rows(FILE *out, const remat_session *s, const rm_stage_report *reports) {
    enum { HEAD = 12, TAIL = 4 };
    int64_t n = s->chain.n_stages, rows = 0, row = 0;
    const int wide = widest(s, reports);
    for (int64_t i = 0; i < n; i = end_of_row(s, reports, i)) rows++;
    fprintf(out, "\n  %-16s %-*s %-33s %6s %12s %12s\n", "stages", wide, s->chain.timed ? "timesteps" : "layers",
            "data for backward", "runs", "saved", "checkpoint");
    for (int64_t i = 0, j; i < n; i = j, row++) {
        j = end_of_row(s, reports, i);
        if (rows > HEAD + TAIL + 1 && row == HEAD)
            fprintf(out, "  ... %" PRId64 " rows like these ...\n", rows - HEAD - TAIL);
        if (rows > HEAD + TAIL + 1 && row >= HEAD && row < rows - TAIL) continue;
        print_row(out, s, reports, i, j, wide);
    }
}

typedef struct {
    int64_t kept, kept_lean, dropped, rebuilt, spilled, runs, checkpoints;
} totals;

static totals add_up(const remat_session *s, const rm_stage_report *reports) {
    totals sum = {0};
    for (int64_t i = 0; i < s->chain.n_stages; i++) {
        bool lean = reports[i].kept > 0, kept = reports[i].first != RM_DROP;
        sum.kept += kept && !lean;
        sum.kept_lean += kept && lean;
        sum.dropped += !kept;
        sum.rebuilt += lean;
        sum.spilled += reports[i].spilled || reports[i].state_spilled;
        sum.checkpoints += reports[i].checkpoint;
        sum.runs += reports[i].forward_runs;
    }
    return sum;
}

static void print_count(FILE *out, const char *before, int64_t n, const char *what) {
    if (n) fprintf(out, "%s%" PRId64 " %s", before, n, what);
}

static void print_totals(FILE *out, const remat_session *s, const rm_stage_report *reports) {
    totals sum = add_up(s, reports);
    if (s->inference) return;
    fprintf(out, "\n  %" PRId64 " stage%s", s->chain.n_stages, s->chain.n_stages == 1 ? "" : "s");
    print_count(out, ": ", sum.kept, "kept");
    print_count(out, sum.kept ? ", " : ": ", sum.kept_lean, "kept lean");
    print_count(out, sum.kept || sum.kept_lean ? ", " : ": ", sum.dropped, "dropped and recomputed");
    print_count(out, "; ", sum.rebuilt, "rebuilt in backward");
    print_count(out, "; ", sum.spilled, "spilled");
    print_count(out, "; ", sum.runs, "forward runs");
    print_count(out, "; ", sum.checkpoints, sum.checkpoints == 1 ? "checkpoint" : "checkpoints");
    fprintf(out, "\n");
}

/* Which backward runs make the buckets final: "4 buckets, final in stage 7 (1), stage 0 (2), after the plan (1)". */
static void print_buckets(FILE *out, const remat_session *s) {
    const rm_buckets *b = &s->chain.at.buckets;
    enum { SHOWN_STAGES = 8 };
    if (s->ranks.size == 1 || s->inference) return;
    fprintf(out, "  gradients for %d ranks: %d bucket%s, final in", s->ranks.size, b->n, b->n == 1 ? "" : "s");
    for (int32_t i = 0, shown = 0; i < b->n; shown++) {
        int32_t from = i;
        while (i < b->n && b->item[i].stage == b->item[from].stage) i++;
        if (shown == SHOWN_STAGES) i = b->n;
        fprintf(out, "%s ", from ? "," : "");
        if (shown == SHOWN_STAGES)
            fprintf(out, "earlier ones");
        else if (b->item[from].stage < 0)
            fprintf(out, "what follows the plan");
        else
            fprintf(out, "stage %" PRId64, b->item[from].stage);
        fprintf(out, " (%d)", i - from);
    }
    fprintf(out, "\n");
}

static void print_bytes(FILE *out, const remat_session *s, const remat_plan_summary *plan) {
    fprintf(out, "\nBytes\n");
    for (int i = 0; i < s->chain.problem.n_resident; i++)
        if (s->chain.problem.resident[i].bytes)
            print_size(out, s->chain.problem.resident[i].name, s->chain.problem.resident[i].bytes);
    print_size(out, "activations at their peak", plan->activations_peak_bytes);
    print_size(out, "arena (planned peak)", plan->planned_peak_bytes);
    if (plan->workspace_bytes) print_size(out, "library workspaces", plan->workspace_bytes);
    print_size(out, "tables of the plan", plan->tables_bytes);
    print_size(out, "counted by a budget", plan->budgeted_bytes);
    if (plan->memory_budget) {
        print_size(out, "the budget", plan->memory_budget);
        fprintf(out, "  %-26s %14.1f %%\n", "of it used",
                100 * (double)plan->budgeted_bytes / (double)plan->memory_budget);
    }
    if (plan->spill_bytes) print_size(out, "spilled to a file", plan->spill_bytes);
}

static const char *group_text(const rm_peak_group *g, char text[96]) {
    static const char *const what[] = {"states of stage", "saved of stage", "gradients of states of stage",
                                       "scratch of stage"};
    int n = snprintf(text, 96, "%s%s %d", what[g->kind], g->first == g->last ? "" : "s", g->first);
    if (g->first != g->last) n += snprintf(text + n, 96 - (size_t)n, "..%d", g->last);
    if (g->count > 1) snprintf(text + n, 96 - (size_t)n, ": %" PRId64 " of", g->count);
    return text;
}

static void print_peak(FILE *out, const remat_session *s, const remat_plan_summary *plan) {
    static const char *const kind[] = {"states and checkpoints", "saved for backward", "gradients of states",
                                       "scratch"};
    char step[RM_STEP_TEXT], name[96], each[32], all[32];
    rm_peak p;
    if (!rm_session_peak(s, &p)) return;
    fprintf(out, "\nPeak: at step %" PRId64 " of %" PRId64 " (%s); alive then\n", plan->peak_step, plan->n_steps,
            rm_step_text(rm_session_problem(s), rm_session_schedule(s)->plan.step[plan->peak_step], step));
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) print_size(out, kind[k], p.bytes[k]);
    fprintf(out, "  largest buffers\n");
    for (int i = 0; i < p.n_groups && i < SHOWN; i++)
        fprintf(out, "    %-38s %12s%s%s\n", group_text(&p.group[i], name), size_text(p.group[i].bytes, each),
                p.group[i].count > 1 ? ", together " : "",
                p.group[i].count > 1 ? size_text(p.group[i].bytes * (uint64_t)p.group[i].count, all) : "");
    rm_peak_free(&p);
}

static void print_times(FILE *out, const remat_plan_summary *plan) {
    const char *of = plan->measured_busy
                         ? "from kernels measured here, while other programs used the processors: probably too long"
                     : plan->measured_times ? "from kernels measured here"
                                            : "estimated from rates, not measured";
    fprintf(out, "\nPredicted time of a step, ms (%s)\n", of);
    fprintf(out, "  forward %.1f, recompute %.1f, backward %.1f", 1e-6 * (double)plan->forward_ns,
            1e-6 * (double)plan->recompute_ns, 1e-6 * (double)plan->backward_ns);
    if (plan->transfer_ns)
        fprintf(out, ", waiting for transfers %.1f (of %.1f)", 1e-6 * (double)plan->wait_ns,
                1e-6 * (double)plan->transfer_ns);
    fprintf(out, "; total %.1f, plus %.1f outside the plan; recompute factor %.3f\n", 1e-6 * (double)plan->step_ns,
            1e-6 * (double)plan->fixed_ns, plan->recompute_factor);
}

/* ---- Texts ---------------------------------------------------------------------------------------------------- */

/* Texts are built in a memory stream; NULL when that fails. */
typedef void text_writer(FILE *out, const remat_session *s);

static char *write_text(const remat_session *s, text_writer *write) {
    char *text = NULL;
    size_t length;
    FILE *out = s ? open_memstream(&text, &length) : NULL;
    if (!out) return NULL;
    locale_t before = rm_neutral_begin();
    write(out, s);
    rm_neutral_end(before);
    bool failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return NULL;
    }
    return text;
}

static void write_description(FILE *out, const remat_session *s) {
    remat_plan_summary plan = rm_plan_summary_of(s);
    rm_stage_report *reports = rm_session_stage_reports(s);
    if (!reports) return;
    print_head(out, s, &plan);
    print_methods(out, s, &plan);
    print_rows(out, s, reports);
    print_totals(out, s, reports);
    print_buckets(out, s);
    print_bytes(out, s, &plan);
    print_peak(out, s, &plan);
    print_times(out, &plan);
    rm_free(reports);
}

static const char *yes_no(bool yes) { return yes ? "true" : "false"; }

static void write_stages(FILE *out, const remat_session *s) {
    rm_stage_report *reports = rm_session_stage_reports(s);
    fprintf(out, "[");
    for (int64_t i = 0; reports && i < s->chain.n_stages; i++) {
        const rm_stage_report *f = &reports[i];
        char layer[RM_LAYER_TEXT];
        fprintf(out,
                "%s\n  {\"stage\": %" PRId64 ", \"layer\": \"%s\", \"first_timestep\": %" PRId64
                ", \"timesteps\": %" PRId64
                ", \"forward_runs\": %d, \"kept_at_first\": %s, \"option\": \"%s\", \"rebuilt\": %s"
                ", \"checkpoint\": %s, \"spilled\": %s, \"state_spilled\": %s, \"saved_bytes\": %" PRIu64
                ", \"state_bytes\": %" PRIu64 "}",
                i ? "," : "", i, rm_session_layer(s, i, i + 1, false, layer),
                s->chain.timed ? rm_stage_begin(&s->chain, i) : i, rm_stage_kind_of(&s->chain, i)->tau, f->forward_runs,
                yes_no(f->first != RM_DROP), option_name(s, i, s->inference ? RM_DROP : f->kept), yes_no(f->kept > 0),
                yes_no(f->checkpoint), yes_no(f->spilled), yes_no(f->state_spilled), f->saved_bytes, f->state_bytes);
    }
    fprintf(out, "\n]\n");
    rm_free(reports);
}

static void write_convolutions(FILE *out, const remat_session *s) {
    const char *between = "";
    fprintf(out, "[");
    for (int32_t n = 0; n < s->graph->n_nodes; n++) {
        char layer[RM_LAYER_TEXT];
        rm_method method;
        if (!method_of(s, n, s->chain.tile, &method)) continue;
        fprintf(out, "%s\n  {\"layer\": \"%s\", \"by\": \"%s\", \"work_bytes\": %" PRIu64 "}", between,
                rm_node_layer(s, &s->graph->node[n], layer), method.by, method.work_bytes);
        between = ",";
    }
    fprintf(out, "%s]\n", *between ? "\n" : "");
}

static void write_peak(FILE *out, const remat_session *s) {
    char step[RM_STEP_TEXT];
    rm_peak p;
    if (!rm_session_peak(s, &p)) return;
    int64_t at = rm_session_schedule(s)->verdict.peak_step;
    fprintf(out,
            "{\"step\": %" PRId64 ", \"run\": \"%s\", \"states_bytes\": %" PRIu64 ", \"saved_bytes\": %" PRIu64
            ", \"state_gradients_bytes\": %" PRIu64 ", \"scratch_bytes\": %" PRIu64 ", \"largest\": [",
            at, rm_step_text(rm_session_problem(s), rm_session_schedule(s)->plan.step[at], step),
            p.bytes[REMAT_LIVE_STATES], p.bytes[REMAT_LIVE_SAVED], p.bytes[REMAT_LIVE_GRADIENTS],
            p.bytes[REMAT_LIVE_SCRATCH]);
    static const char *const kind[] = {"states", "saved", "state_gradients", "scratch"};
    for (int i = 0; i < p.n_groups && i < SHOWN; i++)
        fprintf(out,
                "%s{\"kind\": \"%s\", \"first\": %d, \"last\": %d, \"count\": %" PRId64 ", \"bytes_each\": %" PRIu64
                "}",
                i ? ", " : "", kind[p.group[i].kind], p.group[i].first, p.group[i].last, p.group[i].count,
                p.group[i].bytes);
    fprintf(out, "]}\n");
    rm_peak_free(&p);
}

static void write_steps(FILE *out, const remat_session *s) {
    rm_plan_write(rm_session_problem(s), &rm_session_schedule(s)->plan, out);
}
static void write_problem(FILE *out, const remat_session *s) { rm_problem_write(rm_session_problem(s), out); }

char *remat_plan_describe(const remat_session *s) { return write_text(s, write_description); }
char *remat_plan_stages_json(const remat_session *s) { return write_text(s, write_stages); }
char *remat_plan_peak_json(const remat_session *s) { return write_text(s, write_peak); }
char *remat_plan_convolutions_json(const remat_session *s) { return write_text(s, write_convolutions); }
char *remat_plan_steps_text(const remat_session *s) { return write_text(s, write_steps); }
char *remat_plan_problem_text(const remat_session *s) { return write_text(s, write_problem); }
