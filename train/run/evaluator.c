/* evaluator.c: see evaluator.h. */
#include "engine/abi.h"
#include "train/run/evaluator.h"

#include "memory/host.h"
#include "train/run/setup.h"
#include "train/run/outputs.h"
#include "train/state/weights.h"
#include "train/tasks/task.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Answers are classes that are compared with the targets. */
static bool has_accuracy(const rm_data_shape *shape) { return rm_answer_has(rm_data_answer(shape), "accuracy"); }

static int64_t outputs_of(const rm_data_shape *shape) {
    switch (rm_data_answer(shape)) {
    case RM_ANSWER_ROW:
        return shape->timesteps;
    case RM_ANSWER_TOKENS:
        return 0;
    case RM_ANSWER_VALUES:
        return shape->every_step ? shape->timesteps * shape->values : shape->values;
    default:
        return shape->classes;
    }
}

static remat_status create_part(const rm_options *options, const rm_model_spec *spec, rm_dataset *dataset,
                                int64_t batch, bool plan_only, rm_eval_part *part) {
    rm_model_spec plain = *spec;
    plain.data.weighted = false;
    remat_config config = rm_setup_inference_config(options);
    config.plan_only = plan_only;
    TRY(rm_batch_create(dataset, batch, &part->batch));
    TRY(rm_model_build(&plain, batch, true, &part->model));
    if (outputs_of(&dataset->shape)) {
        config.outputs = &part->model.logits;
        config.n_outputs = 1;
    }
    return remat_session_create(part->model.graph, part->model.loss, &config, &part->session);
}

static void free_part(rm_eval_part *part) {
    remat_session_free(part->session);
    rm_model_free(&part->model);
    rm_batch_free(&part->batch);
    *part = (rm_eval_part){0};
}

static remat_status make_room(rm_evaluator *e, size_t count, size_t bytes, void *out) {
    void *room = rm_calloc(count, bytes);
    REQUIRE(room, MEMORY, "no memory for the outputs of an evaluation");
    e->held_bytes += count * bytes;
    memcpy(out, &room, sizeof room);
    return REMAT_OK;
}

remat_status rm_evaluator_create(const rm_options *options, const rm_model_spec *spec, rm_dataset *dataset,
                                 int64_t batch, bool plan_only, rm_evaluator *out) {
    *out = (rm_evaluator){.dataset = dataset,
                          .width = outputs_of(&dataset->shape),
                          .answers = rm_data_answers(&dataset->shape),
                          .bytes_per_target = (double)dataset->target_bytes /
                                              ((double)dataset->count * (double)dataset->shape.timesteps),
                          .tokens = rm_task_find(options->task)->next_token};
    if (!batch) batch = options->order.batch;
    const rm_data_shape *shape = &dataset->shape;
    int64_t outputs = shape->labels ? out->width * shape->classes : out->width;
    if (shape->pixels) TRY(make_room(out, 2 * (size_t)shape->classes, sizeof *out->overlap, &out->overlap));
    int64_t full = batch < dataset->count ? batch : dataset->count, rest = dataset->count % full;
    int64_t rows = (full + (shape->every_step && !shape->labels)) * out->answers;
    if (outputs) TRY(make_room(out, (size_t)(rows * outputs), sizeof(float), &out->outputs));
    if (shape->labels) {
        TRY(make_room(out, (size_t)shape->timesteps, sizeof *out->reading, &out->reading));
        TRY(make_room(out, (size_t)shape->timesteps, sizeof *out->row, &out->row));
        TRY(make_room(out, (size_t)shape->labels + 1, sizeof *out->distance, &out->distance));
    }
    TRY(create_part(options, spec, dataset, full, plan_only, &out->full));
    if (rest) TRY(create_part(options, spec, dataset, rest, plan_only, &out->rest));
    return options->data.threads && dataset->kind->threads && !plan_only
               ? rm_workers_create(options->data.threads, &out->workers)
               : REMAT_OK;
}

static remat_status check_images(const rm_options *o, const rm_data_shape *a, const rm_data_shape *b) {
    REQUIRE(a->channels == b->channels && a->height == b->height && a->width == b->width, INVALID,
            "--eval-data=%s has images of %lld x %lld x %lld, but --data=%s has %lld x %lld x %lld: give images of the "
            "same size, or --image-size=S",
            o->held_out.data, (long long)a->channels, (long long)a->height, (long long)a->width, o->data.data,
            (long long)b->channels, (long long)b->height, (long long)b->width);
    REQUIRE(a->class_names == b->class_names, INVALID,
            "the folders in --eval-data=%s and --data=%s have different names (or their masks other grey values), but "
            "sorted names number the classes: give both the same folders, which may be empty, or the same values",
            o->held_out.data, o->data.data);
    return REMAT_OK;
}

static remat_status check_metric(const rm_options *o, const char *flag, const rm_evaluator *e, rm_score_name metric) {
    char list[160] = "";
    if (metric == RM_SCORES || rm_evaluator_has(e, metric)) return REMAT_OK;
    for (int i = 0; i < RM_SCORES; i++)
        if (rm_evaluator_has(e, i))
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", rm_scores[i].name);
    FAIL(INVALID, "--%s=%s: evaluations with --task=%s do not compute it; use one of %s", flag, rm_scores[metric].name,
         o->task, list);
}

remat_status rm_evaluator_open(const rm_options *o, const rm_model_spec *training, const rm_dataset *trained,
                               int64_t batch, bool plan_only, rm_dataset **dataset, rm_evaluator *out) {
    rm_model_spec spec = *training;
    spec.window = 0; /* a forward pass needs no truncation */
    bool named = o->held_out.data || rm_setup_splits(o);
    if (!o->eval_every && !named) return REMAT_OK;
    REQUIRE(named || rm_setup_generates(o), INVALID,
            "--eval-every needs data to evaluate on: give --eval-data=FILE, or --eval-split=0.1 for a tenth of --data");
    TRY(rm_setup_held_out(o, trained, dataset));
    TRY(check_images(o, &(*dataset)->shape, &spec.data));
    REQUIRE((*dataset)->shape.features == spec.data.features, INVALID,
            "--eval-data=%s has %lld features per timestep, but --data=%s has %lld: give data with the same features",
            o->held_out.data, (long long)(*dataset)->shape.features, o->data.data ? o->data.data : "",
            (long long)spec.data.features);
    spec.data = (*dataset)->shape;
    TRY(rm_evaluator_create(o, &spec, *dataset, batch, plan_only, out));
    TRY(check_metric(o, "metric", out, o->metric));
    return check_metric(o, "keep-best", out, rm_score_find(o->keep_best));
}

void rm_evaluator_free(rm_evaluator *evaluator) {
    free_part(&evaluator->full);
    free_part(&evaluator->rest);
    rm_workers_free(evaluator->workers);
    evaluator->workers = NULL;
    rm_free(evaluator->outputs);
    rm_free(evaluator->reading);
    rm_free(evaluator->row);
    rm_free(evaluator->distance);
    rm_free(evaluator->overlap);
    evaluator->outputs = evaluator->row = NULL;
    evaluator->reading = NULL;
    evaluator->distance = evaluator->overlap = NULL;
}

static uint64_t part_bytes(const rm_eval_part *part) {
    if (!part->session) return 0;
    return rm_plan_summary_of(part->session).budgeted_bytes + part->batch.bytes;
}

uint64_t rm_evaluator_bytes(const rm_evaluator *e) {
    return part_bytes(&e->full) + part_bytes(&e->rest) + e->held_bytes + (e->dataset ? e->dataset->held_bytes : 0);
}

remat_session *rm_evaluator_session(rm_evaluator *evaluator) { return evaluator->full.session; }

/* Counts of: answers; answers with the right class first, or among the first five; pairs with all tokens right.
 * Transcripts: wrong labels, and labels. Dice scores are added as integers, so that their sum does not depend on the order. */
enum { ALL, FIRST, FIVE, EXACT, SUMS, WRONG = FIRST, LABELS = FIVE, DICE = EXACT };
#define DICE_UNIT 0x1p-30
typedef struct {
    int64_t of[SUMS];
} right;

static void confuse(rm_evaluator *e, const int32_t *target, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (target[i] >= 0) e->confusion[target[i] * e->width + rm_likeliest(e->outputs + i * e->width, e->width)]++;
}

static void count(rm_evaluator *e, const int32_t *target, int64_t n, right *sum) {
    sum->of[FIRST] += remat_correct(e->outputs, target, n, e->width, 1);
    sum->of[FIVE] += remat_correct(e->outputs, target, n, e->width, 5);
    if (e->dataset->shape.answer_steps)
        sum->of[EXACT] += rm_count_exact(e->outputs, target, e->answers, n / e->answers, e->width);
    if (e->confusion) confuse(e, target, n);
    const int64_t pixels = e->dataset->shape.pixels, K = e->width;
    for (int64_t i = 0; pixels && i < n; i += pixels)
        sum->of[DICE] += llround(rm_dice(e->outputs + i * K, target + i, pixels, K, e->overlap) / DICE_UNIT);
}

/* Transposes (T,B,V) and passes one sample at a time to the sink. V: values, or logits of the classes. */
static remat_status sink_sequences(rm_evaluator *e, int64_t B) {
    int64_t T = e->dataset->shape.timesteps, V = rm_data_outputs(&e->dataset->shape);
    float *row = e->outputs + B * T * V;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t t = 0; t < T; t++) memcpy(row + t * V, e->outputs + (t * B + b) * V, (size_t)V * sizeof *row);
        TRY(e->sink(e->sink_context, row, 1));
    }
    return REMAT_OK;
}

/* Decodes each sample and compares it with its labels. */
static remat_status take_transcripts(rm_evaluator *e, rm_eval_part *part, right *sum) {
    const rm_data_shape *shape = &e->dataset->shape;
    const int32_t *lengths = part->batch.data[RM_LENGTH];
    int64_t B = part->batch.batch, T = shape->timesteps, K = shape->classes;
    TRY(remat_read(part->session, REMAT_OUTPUT, 0, e->outputs, (uint64_t)(T * B * K) * sizeof(float)));
    for (int64_t b = 0; b < B; b++) {
        const int32_t *target = (const int32_t *)part->batch.data[RM_TARGET] + b * shape->labels;
        int64_t length = lengths ? lengths[b] : T;
        int64_t n = rm_transcript_read(e->outputs + b * K, length, B * K, K, e->reading);
        for (int64_t t = length; t < T; t++) e->reading[t] = RM_NO_LABEL;
        int64_t m = rm_transcript_length(target, shape->labels);
        sum->of[WRONG] += rm_edit_distance(e->reading, n, target, m, e->distance);
        sum->of[LABELS] += m;
        for (int64_t t = 0; t < T; t++) e->row[t] = (float)e->reading[t];
        if (e->sink) TRY(e->sink(e->sink_context, e->row, 1));
    }
    return REMAT_OK;
}

static remat_status take_outputs(rm_evaluator *e, rm_eval_part *part, right *sum) {
    int64_t B = part->batch.batch, n = B * e->answers;
    remat_array output;
    TRY(remat_array_info(part->session, REMAT_OUTPUT, 0, &output));
    if (!output.count) return REMAT_OK; /* another rank of the pipeline has it */
    if (e->reading) return take_transcripts(e, part, sum);
    TRY(remat_read(part->session, REMAT_OUTPUT, 0, e->outputs, (uint64_t)(n * e->width) * sizeof(float)));
    if (has_accuracy(&e->dataset->shape)) count(e, part->batch.data[RM_TARGET], n, sum);
    if (!e->sink) return REMAT_OK;
    return e->dataset->shape.every_step ? sink_sequences(e, B) : e->sink(e->sink_context, e->outputs, B);
}

/* ---- A run, shared out ------------------------------------------------------------------------------------------ */

/* Batches between two sums over ranks, which limits how far ranks drift apart. */
enum { WINDOW = 1024 };

/* A batch of the samples from `first` on. */
typedef struct {
    rm_batch *batch;
    int64_t first;
} stretch;

static remat_status put_row(void *context, int64_t i) {
    const stretch *s = context;
    return rm_batch_put(s->batch, i, s->first + i);
}

static remat_status fill_batch(rm_evaluator *e, stretch s) {
    if (e->workers) {
        rm_workers_start(e->workers, put_row, &s, s.batch->batch);
        return rm_workers_wait(e->workers);
    }
    for (int64_t i = 0; i < s.batch->batch; i++) TRY(put_row(&s, i));
    return REMAT_OK;
}

/* The number of terms in the mean loss of a batch: answers that are not ignored, timesteps without padding, or
 * samples. */
static int64_t counted_in(const rm_evaluator *e, const rm_batch *batch) {
    const rm_data_shape *shape = &e->dataset->shape;
    int64_t sum = 0;
    if (has_accuracy(shape)) return rm_count_targets(batch->data[RM_TARGET], batch->batch * e->answers);
    if (!rm_data_pads(shape)) return batch->batch;
    for (int64_t i = 0; i < batch->batch; i++) sum += ((const int32_t *)batch->data[RM_LENGTH])[i];
    return sum;
}

/* Evaluates the samples first .. first+B-1; *loss is the sum over all terms. */
static remat_status run_part(rm_evaluator *e, rm_eval_part *part, int64_t first, double *loss, right *sum) {
    remat_step_result result;
    TRY(fill_batch(e, (stretch){&part->batch, first}));
    TRY(rm_batch_write(&part->batch, rm_batch_whole(&part->batch), part->session));
    TRY(remat_evaluate(part->session, &result));
    const int64_t n = counted_in(e, &part->batch);
    if (e->part == 0) {
        *loss = result.loss * (double)n;
        sum->of[ALL] += n;
    }
    return e->width ? take_outputs(e, part, sum) : REMAT_OK;
}

/* Evaluates batches first .. end-1. Each rank contributes its own batches and zeros for the others. A sum of one number
 * and zeros is exact, so only the order of the additions here determines the result. */
static remat_status run_window(rm_evaluator *e, int64_t first, int64_t end, double *loss_sum, right *sum) {
    double value[WINDOW + SUMS] = {0};
    right here = {0};
    int64_t n = end - first, full = e->full.batch.batch, size = e->ranks ? e->ranks->size : 1;
    for (int64_t i = first; i < end; i++) {
        if (e->ranks && i % size != e->ranks->rank) continue;
        rm_eval_part *part = (i + 1) * full <= e->dataset->count ? &e->full : &e->rest;
        TRY(run_part(e, part, i * full, &value[i - first], &here));
    }
    for (int k = 0; k < SUMS; k++) value[n + k] = (double)here.of[k];
    if (e->ranks) TRY(e->ranks->sum(e->ranks->context, value, n + SUMS));
    for (int64_t i = 0; i < n; i++) *loss_sum += value[i];
    for (int k = 0; k < SUMS; k++) sum->of[k] += (int64_t)value[n + k];
    return REMAT_OK;
}

/* The loss of any answers, and what the data and the task add to it. */
bool rm_evaluator_has(const rm_evaluator *e, rm_score_name metric) {
    if (metric == RM_LOSS) return true;
    if (metric == RM_BITS_PER_BYTE) return e->bytes_per_target > 0;
    if (metric == RM_PERPLEXITY) return e->tokens;
    const bool few = metric == RM_TOP5_ACCURACY && e->width <= 5;
    return !few && rm_answer_has(rm_data_answer(&e->dataset->shape), rm_scores[metric].name);
}

static void score(const rm_evaluator *e, double loss, const right *sum, int64_t samples, rm_eval_event *out) {
    const double all = (double)sum->of[ALL];
    const double value[RM_SCORES] = {[RM_LOSS] = loss,
                                     [RM_BITS_PER_BYTE] = loss / e->bytes_per_target / M_LN2,
                                     [RM_PERPLEXITY] = exp(loss),
                                     [RM_ACCURACY] = (double)sum->of[FIRST] / all,
                                     [RM_TOP5_ACCURACY] = (double)sum->of[FIVE] / all,
                                     [RM_DICE] = (double)sum->of[DICE] * DICE_UNIT / (double)samples,
                                     [RM_EXACT_MATCH] = (double)sum->of[EXACT] / (double)samples,
                                     [RM_LABEL_ERROR_RATE] = (double)sum->of[WRONG] / (double)sum->of[LABELS]};
    for (int i = 0; i < RM_SCORES; i++) {
        bool nothing_counts = i == RM_ACCURACY || i == RM_TOP5_ACCURACY ? !sum->of[ALL] : false;
        out->has[i] = rm_evaluator_has(e, i) && !nothing_counts;
        out->score[i] = out->has[i] ? value[i] : NAN;
    }
}

remat_status rm_evaluator_run(rm_evaluator *e, remat_session *weights, rm_eval_event *out) {
    double loss_sum = 0;
    right sum = {0};
    int64_t full = e->full.batch.batch, count = e->dataset->count, batches = (count + full - 1) / full;
    if (weights != e->full.session) TRY(rm_weights_copy(weights, e->full.session));
    if (e->rest.session) TRY(rm_weights_copy(weights, e->rest.session));
    for (int64_t first = 0; first < batches; first += WINDOW) {
        int64_t end = first + WINDOW < batches ? first + WINDOW : batches;
        TRY(run_window(e, first, end, &loss_sum, &sum));
    }
    out->samples = e->answers > 1 || e->dataset->shape.every_step ? count : sum.of[ALL];
    score(e, loss_sum / (double)sum.of[ALL], &sum, count, out);
    return REMAT_OK;
}
