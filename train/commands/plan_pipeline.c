/* plan_pipeline.c: see plan_pipeline.h. */
#include "train/commands/plan_pipeline.h"

#include "engine/abi.h"
#include "dist/group/group.h"
#include "memory/host.h"
#include "train/run/setup.h"
#include "train/text.h"

#include <stdio.h>
#include <string.h>

static remat_status create_ranks(const rm_model *model, remat_config config, rm_plan_pipeline *p) {
    remat_pipeline of_rank = *config.pipeline;
    config.pipeline = &of_rank;
    for (int r = 1; r < p->n; r++) {
        of_rank.rank = r;
        TRY(rm_setup_session(model, &config, &p->session[r]));
    }
    return REMAT_OK;
}

/* Each rank has a GPU, but of this process's sessions only the first counts CUDA's context. */
static uint64_t first_only(const rm_plan_pipeline *p) {
    uint64_t first = rm_plan_summary_of(p->session[0]).workspace_bytes;
    uint64_t next = rm_plan_summary_of(p->session[1]).workspace_bytes;
    return first > next ? first - next : 0;
}

static uint64_t total_bytes(const rm_plan_pipeline *p, int rank) {
    return rm_plan_summary_of(p->session[rank]).budgeted_bytes + (rank ? p->context_bytes : 0);
}

remat_status rm_plan_pipeline_make(const rm_model *model, const remat_config *config, remat_session *first,
                                   const rm_cut_choice *cut, rm_plan_pipeline *out) {
    const int n = config->pipeline->size;
    remat_config ours = *config;
    out->session = rm_calloc((size_t)n, sizeof *out->session);
    out->time = rm_calloc((size_t)n, sizeof *out->time);
    REQUIRE(out->session && out->time, MEMORY, "no memory to plan %d ranks", n);
    out->n = n;
    out->session[0] = first;
    out->cut = cut;
    char *steps = remat_plan_steps_text(first);
    REQUIRE(steps, MEMORY, "no memory for the text of the plan");
    ours.plan_steps = steps;
    ours.calibration = NULL;
    remat_status status = create_ranks(model, ours, out);
    remat_text_free(steps);
    if (!status && config->device && !strcmp(config->device, "cuda")) out->context_bytes = first_only(out);
    return status ? status : rm_pipeline_times(out->session, n, RM_MESSAGE_ROOM, cut->node_ns, out->time);
}

void rm_plan_pipeline_free(rm_plan_pipeline *p) {
    for (int r = 1; r < p->n; r++) remat_session_free(p->session[r]);
    rm_free(p->session);
    rm_free(p->time);
    *p = (rm_plan_pipeline){0};
}

/* The share of the ranks' time in which they wait. */
static double bubble(const rm_plan_pipeline *p) {
    double waits = 0, all = 0;
    for (int r = 0; r < p->n; r++) {
        waits += (double)p->time[r].wait_ns;
        all += (double)(p->time[r].wait_ns + p->time[r].compute_ns);
    }
    return all > 0 ? waits / all : 0;
}

static double step_ns(const rm_plan_pipeline *p) { return (double)(p->time[0].compute_ns + p->time[0].wait_ns); }

static const char *times_text(const rm_plan_pipeline *p) {
    return p->cut->node_ns ? "measured times of the layers" : "the layers' counted work";
}

static void print_cut(const rm_plan_pipeline *p) {
    const rm_cut_choice *cut = p->cut;
    char needed[RM_TEXT];
    printf("\nPipeline: %d ranks; the layers of those after the first start with %s\n", p->n, cut->cut);
    if (!cut->told) printf("The slowest rank takes the least time with this cut, by %s.\n", times_text(p));
    if (cut->n_ruled_out)
        printf("%d faster cut%s ruled out by the budget: with %s, rank %d needs %s.\n", cut->n_ruled_out,
               cut->n_ruled_out == 1 ? " is" : "s are", cut->fastest, cut->rank, rm_bytes_text(cut->bytes, needed));
    putchar('\n');
}

void rm_plan_pipeline_print(const rm_plan_pipeline *p) {
    char total[RM_TEXT], activations[RM_TEXT], sent[RM_TEXT];
    double alone = 0;
    for (int r = 0; r < p->n; r++) alone += (double)p->time[r].compute_ns;
    print_cut(p);
    printf("  %-5s %12s %12s %13s %9s %10s\n", "rank", "activations", "total", "compute [ms]", "waits", "sends");
    for (int r = 0; r < p->n; r++) {
        const remat_plan_summary plan = rm_plan_summary_of(p->session[r]);
        printf("  %-5d %12s %12s %13.1f %7.1f %% %10s\n", r, rm_bytes_text(plan.activations_peak_bytes, activations),
               rm_bytes_text(total_bytes(p, r), total), 1e-6 * (double)p->time[r].compute_ns,
               100 * (double)p->time[r].wait_ns / step_ns(p), rm_bytes_text(p->time[r].sent_bytes, sent));
    }
    printf("\nA step takes %.1f ms, %.2f times as fast as one rank (%.1f ms); ranks wait for %.1f %% of it. Times are\n"
           "predicted by %s, without the update, for a machine that runs all ranks at once.\n",
           1e-6 * step_ns(p), alone / step_ns(p), 1e-6 * alone, 100 * bubble(p), times_text(p));
}

json_t *rm_plan_pipeline_json(const rm_plan_pipeline *p) {
    json_t *ranks = json_array();
    for (int r = 0; r < p->n; r++) {
        const remat_plan_summary plan = rm_plan_summary_of(p->session[r]);
        json_array_append_new(
            ranks,
            json_pack("{s:I, s:I, s:I, s:I, s:I}", "activations_peak_bytes", (json_int_t)plan.activations_peak_bytes,
                      "budgeted_bytes", (json_int_t)total_bytes(p, r), "compute_ns", (json_int_t)p->time[r].compute_ns,
                      "wait_ns", (json_int_t)p->time[r].wait_ns, "sent_bytes", (json_int_t)p->time[r].sent_bytes));
    }
    return json_pack("{s:s, s:b, s:i, s:f, s:f, s:o}", "cut", p->cut->cut, "cut_by_measured_times", p->cut->measured,
                     "cuts_ruled_out", p->cut->n_ruled_out, "step_ns", step_ns(p), "bubble", bubble(p), "ranks", ranks);
}
