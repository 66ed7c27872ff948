/* trainer_introduce.c: the lines before the first step: model, data, batch, plan, ranks, learning rate, budget. See
 * trainer.h. */
#include "train/run/trainer.h"

#include "train/ranks/ranks_debug.h"
#include "train/run/budget.h"
#include "train/run/setup.h"
#include "train/text.h"

#include <stdio.h>
#include <string.h>

/* "batch 16"; "2 ranks over local, batch 2 x 16 = 32". */
static const char *batch_text(const rm_trainer *t, char *text, size_t bytes) {
    const rm_options *o = t->options;
    char ranks[96] = "";
    int64_t global = t->loader.global;
    if (t->ranks.parts > 1)
        snprintf(ranks, sizeof ranks, "%d ranks over %s, %d for each network, ", t->ranks.size,
                 rm_group_engine(t->ranks.group), t->ranks.parts);
    else if (t->ranks.size > 1)
        snprintf(ranks, sizeof ranks, "%d ranks over %s, ", t->ranks.size,
                 rm_group_engine(t->ranks.gpus ? t->ranks.gpus : t->ranks.group));
    if (o->order.shards)
        snprintf(text, bytes, "%sbatch %lld in %lld shards of %lld", ranks, (long long)global,
                 (long long)o->order.shards, (long long)t->loader.batch.batch);
    else if (o->order.micro_steps > 1)
        snprintf(text, bytes, "%sbatch %lld = %d x %lld micro steps x %lld", ranks, (long long)global,
                 t->ranks.replicas, (long long)o->order.micro_steps, (long long)o->order.batch);
    else if (t->ranks.replicas > 1)
        snprintf(text, bytes, "%sbatch %d x %lld = %lld", ranks, t->ranks.replicas, (long long)o->order.batch,
                 (long long)global);
    else
        snprintf(text, bytes, "%sbatch %lld", ranks, (long long)global);
    return text;
}

/* "lstm, 2 x 256"; "lstm, 2 x 256, projected to 64"; "resnet18". */
static const char *model_text(const rm_options *o, char *text, size_t bytes) {
    bool sized = rm_model_is(o->model.name, "hidden") && !rm_model_is(o->model.name, "pixels");
    int n = snprintf(text, bytes, "%s", o->model.name);
    if (sized)
        snprintf(text + n, bytes - (size_t)n, ", %lld x %lld", (long long)o->model.layers, (long long)o->model.hidden);
    n = (int)strlen(text);
    if (o->model.projection)
        snprintf(text + n, bytes - (size_t)n, ", projected to %lld", (long long)o->model.projection);
    return text;
}

static const char *sample_text(const rm_data_shape *shape, char *text, size_t bytes) {
    if (shape->channels && !shape->classes)
        snprintf(text, bytes, "%lld numbers", (long long)shape->features);
    else if (shape->channels)
        snprintf(text, bytes, "%lld x %lld x %lld, %lld classes", (long long)shape->channels, (long long)shape->height,
                 (long long)shape->width, (long long)shape->classes);
    else
        snprintf(text, bytes, "%lld timesteps", (long long)shape->timesteps);
    return text;
}

/* "13 tiles of 32"; "42 stages". */
static const char *stages_text(const rm_trainer *t, char text[64]) {
    const remat_plan_summary *plan = &t->plan;
    if (t->dataset->shape.channels)
        snprintf(text, 64, "%lld stage%s", (long long)plan->n_stages, plan->n_stages == 1 ? "" : "s");
    else
        snprintf(text, 64, "%lld tile%s of %lld", (long long)plan->n_tiles, plan->n_tiles == 1 ? "" : "s",
                 (long long)plan->tile);
    return text;
}

/* Counts elements without the padding between arrays. */
static double count_parameters(const remat_session *session) {
    double all = 0;
    for (int64_t i = 0; i < remat_count(session, REMAT_PARAM); i++) {
        remat_array array;
        double count = remat_array_info(session, REMAT_PARAM, i, &array) ? 0 : 1;
        for (int d = 0; d < array.rank && count > 0; d++) count *= (double)array.dim[d];
        all += count;
    }
    return all;
}

static void introduce_ranks(rm_trainer *t) {
    char a[RM_TEXT], b[RM_TEXT], word[32];
    const rm_options *o = t->options;
    const remat_plan_summary *plan = &t->plan;
    if (o->ddp.shard_optimizer && t->ranks.size == 1)
        rm_progress_say(&t->progress,
                        "note: --zero=1 divides the optimizer's state among ranks and has no effect with one rank");
    if (t->ranks.size == 1) return;
    if (t->ranks.parts > 1)
        rm_progress_say(&t->progress, "pipeline: the layers of the ranks after the first start with %s",
                        remat_pipeline_cut(t->session));
    if (remat_pipeline_parts(t->session) > 1)
        rm_progress_say(&t->progress,
                        "pipeline: %d micro steps are in flight together; batch norm uses the statistics of each",
                        remat_pipeline_parts(t->session));
    rm_progress_say(&t->progress, "%s: gradients %s in %lld bucket%s%s%s; optimizer's state %s%s; %d thread%s",
                    t->ranks.parts > 1 ? "rank 0" : "each rank", rm_bytes_text(plan->gradients_bytes, a),
                    (long long)plan->n_buckets, plan->n_buckets == 1 ? "" : "s", o->ddp.compress ? ", sent as " : "",
                    o->ddp.compress ? rm_options_text_of(o, "grad-compress", word, sizeof word) : "",
                    rm_bytes_text(plan->optimizer_bytes, b), o->ddp.shard_optimizer ? ", its share" : "", plan->threads,
                    plan->threads == 1 ? "" : "s");
    rm_ranks_debug_buckets(&t->ranks, t->session);
}

/* Describes truncation and stateful rows. */
static void introduce_states(rm_trainer *t) {
    const rm_options *o = t->options;
    int64_t windows = rm_setup_windows(o), rows = t->loader.config.batch * t->loader.config.size;
    if (windows > 1)
        rm_progress_say(&t->progress, "truncated: gradients %s %lld timesteps, in %lld windows per sample",
                        o->tbptt.step < o->tbptt.length ? "reach back" : "end every", (long long)o->tbptt.length,
                        (long long)windows);
    if (o->order.stateful)
        rm_progress_say(&t->progress, "stateful: %lld row%s of %lld samples each; states continue within an epoch",
                        (long long)rows, rows == 1 ? "" : "s", (long long)(t->dataset->count / rows));
}

void rm_trainer_introduce(rm_trainer *t) {
    char a[RM_TEXT], b[RM_TEXT], c[RM_TEXT], batch[160], rate[RM_LR_SCHEDULE_TEXT], model[80], sample[80], stages[64];
    const rm_options *o = t->options;
    remat_plan_summary plan = t->plan;
    rm_progress_say(&t->progress, "%s: %s parameters; %s: %lld samples of %s, %s", model_text(o, model, sizeof model),
                    rm_count_text(count_parameters(t->session), a), o->data.data ? o->data.data : o->task,
                    (long long)t->dataset->count, sample_text(&t->dataset->shape, sample, sizeof sample),
                    batch_text(t, batch, sizeof batch));
    if (*t->new_head)
        rm_progress_say(&t->progress, "--init=%s: all but %s*, which is initialised randomly", o->init, t->new_head);
    if (!*t->state && t->ranks.rank == 0) rm_setup_say_assumed(o);
    rm_progress_say(&t->progress,
                    "plan: %s, %lld segment%s, %s; arena %s, of which activations %s; device "
                    "%s%s%s, %d thread%s",
                    plan.strategy, (long long)plan.segments, plan.segments == 1 ? "" : "s", stages_text(t, stages),
                    rm_bytes_text(plan.planned_peak_bytes, b), rm_bytes_text(plan.activations_peak_bytes, c),
                    plan.device, strcmp(plan.precision, "fp32") ? ", products in " : "",
                    strcmp(plan.precision, "fp32") ? plan.precision : "", plan.threads, plan.threads == 1 ? "" : "s");
    if (*t->tuned) rm_progress_say(&t->progress, "%s", t->tuned);
    introduce_ranks(t);
    introduce_states(t);
    if (*rm_lr_schedule_text(&t->rate, rate)) rm_progress_say(&t->progress, "%s", rate);
    if (plan.segments_requested > plan.segments)
        rm_progress_say(&t->progress, "note: %lld segments were requested, but there %s %s%s",
                        (long long)plan.segments_requested, strncmp(stages_text(t, stages), "1 ", 2) ? "are" : "is",
                        stages, t->dataset->shape.channels ? "" : " (give a smaller --tile for more)");
    if (plan.memory_budget)
        rm_progress_say(&t->progress, "budget: %s of %s for the session, %s for data%s",
                        rm_bytes_text(plan.budgeted_bytes, a), rm_bytes_text(plan.memory_budget, b),
                        rm_bytes_text(rm_budget_given(o) - plan.memory_budget, c),
                        t->eval_dataset ? " and evaluation" : "");
    if (t->goes_on)
        rm_progress_say(&t->progress, "%d rank%s on from step %lld, which was held in memory", t->ranks.size,
                        t->ranks.size == 1 ? " goes" : "s go", (long long)t->start.step);
    if (*t->state)
        rm_progress_say(&t->progress, "resumed from %s: step %lld, epoch %lld, batch %lld of %lld", t->state,
                        (long long)t->start.step, (long long)t->start.epoch,
                        (long long)(t->start.consumed / t->loader.global), (long long)t->loader.per_epoch);
    if (*t->state && t->start.update != t->loader.global)
        rm_progress_say(&t->progress, "note: an update has %lld samples from now on; it had %lld before",
                        (long long)t->loader.global, (long long)t->start.update);
    if (*t->state && strcmp(t->start.precision, plan.precision))
        rm_progress_say(&t->progress, "note: products are computed in %s from now on; they were computed in %s before",
                        plan.precision, t->start.precision);
    if (*t->state && !o->save)
        rm_progress_say(&t->progress, "note: no training states will be saved; give --save=DIR to save them");
}
