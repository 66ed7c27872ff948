/* command_predict.c: `remat predict`: predictions of saved weights, one row per sample, in the order of the data. classify: the
 * probability of each class (for each timestep if timesteps have labels; the likeliest class if pixels have labels). regress and adding:
 * the values (for each timestep in turn; with --loss=bce probabilities). transcribe: the labels, padded with -1. The data need no
 * labels. Writes float32 .npy or CSV. If classes have names, CSV starts with a line of them; with .npy they are printed. */
#include "train/commands/commands.h"

#include "memory/host.h"
#include "train/data/npy.h"
#include "train/file.h"
#include "train/models/loss.h"
#include "train/run/evaluator.h"
#include "train/run/outputs.h"
#include "train/tasks/task.h"
#include "train/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CELL = 16 }; /* "-1.17549435e-38," */

typedef struct {
    rm_saved_evaluator saved;
    rm_file_writer writer;
    bool npy, probabilities, yes_or_no; /* softmax over classes; a sigmoid for each label */
    int64_t sample;                     /* the next one */
    rm_class_names classes;             /* empty if classes have no names */
    float *row;
    char *text; /* NULL: npy */
} prediction;

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

static void softmax(const float *logit, int64_t classes, float *out) {
    double largest, sum = rm_softmax_sum(logit, classes, &largest);
    for (int64_t k = 0; k < classes; k++) out[k] = (float)(exp((double)logit[k] - largest) / sum);
}

static void likeliest(const float *logit, int64_t answers, int64_t classes, float *out) {
    for (int64_t i = 0; i < answers; i++) out[i] = (float)rm_likeliest(logit + i * classes, classes);
}

static remat_status write_row(prediction *p, int64_t width) {
    if (p->npy) return rm_file_write(&p->writer, p->row, (size_t)width * sizeof(float));
    size_t n = 0;
    for (int64_t k = 0; k < width; k++)
        n += (size_t)snprintf(p->text + n, CELL + 1, "%.9g%c", (double)p->row[k], k + 1 < width ? ',' : '\n');
    return rm_file_write(&p->writer, p->text, n);
}

/* The numbers per row. */
static int64_t row_width(const prediction *p) {
    const rm_evaluator *e = &p->saved.evaluator;
    return p->saved.dataset->shape.pixels ? e->answers : e->answers * e->width;
}

static void fill_row(const prediction *p, const float *outputs) {
    int64_t width = p->saved.evaluator.width, answers = p->saved.evaluator.answers, n = answers * width;
    if (p->saved.dataset->shape.pixels)
        likeliest(outputs, answers, width, p->row);
    else if (p->probabilities)
        for (int64_t k = 0; k < n; k += width) softmax(outputs + k, width, p->row + k);
    else if (p->yes_or_no)
        for (int64_t k = 0; k < n; k++) p->row[k] = (float)(1 / (1 + exp(-(double)outputs[k])));
    else
        memcpy(p->row, outputs, (size_t)n * sizeof(float));
}

/* Pads past the end of the sample with 0, as PyTorch's pad_packed_sequence does. */
static void end_row(prediction *p, int64_t width) {
    const rm_dataset *d = p->saved.dataset;
    int64_t T = d->shape.timesteps;
    if (!d->shape.every_step || d->shape.labels || !d->kind->length) return;
    int64_t first = d->kind->length(d, p->sample) * (width / T);
    memset(p->row + first, 0, (size_t)(width - first) * sizeof(float));
}

static remat_status take(void *context, const float *outputs, int64_t n) {
    prediction *p = context;
    int64_t each = p->saved.evaluator.answers * p->saved.evaluator.width;
    for (int64_t i = 0; i < n; i++, p->sample++) {
        fill_row(p, outputs + i * each);
        end_row(p, row_width(p));
        TRY(write_row(p, row_width(p)));
    }
    return REMAT_OK;
}

/* ---- The file --------------------------------------------------------------------------------------------------- */

static bool is_stdout(const rm_options *o) { return !o->out || !strcmp(o->out, "-"); }

static remat_status check_name(const rm_options *o) {
    REQUIRE(is_stdout(o) || rm_text_ends(o->out, ".npy") || rm_text_ends(o->out, ".csv"), INVALID,
            "--out=%s: give a name that ends in .npy or .csv, or - for CSV on standard output", o->out);
    return REMAT_OK;
}

static remat_status create(prediction *p, const rm_options *o) {
    if (!is_stdout(o)) return rm_file_replace(o->out, &p->writer);
    p->writer = (rm_file_writer){.fd = dup(STDOUT_FILENO), .path = "standard output"};
    REQUIRE(p->writer.fd >= 0, IO, "cannot write to standard output: %s", strerror(errno));
    return REMAT_OK;
}

static remat_status write_header(prediction *p) {
    uint8_t header[RM_NPY_HEADER];
    if (!p->npy) return REMAT_OK;
    const rm_dataset *d = p->saved.dataset;
    if (d->shape.pixels)
        rm_npy_make_header(3, (int64_t[]){d->count, d->shape.height, d->shape.width}, header);
    else if (d->shape.every_step && !d->shape.labels)
        rm_npy_make_header(3, (int64_t[]){d->count, d->shape.timesteps, rm_data_outputs(&d->shape)}, header);
    else
        rm_npy_make_header(2, (int64_t[]){d->count, p->saved.evaluator.width}, header);
    return rm_file_write(&p->writer, header, sizeof header);
}

/* CSV quotes a name that contains a separator, a quote or a line end. */
static remat_status write_name(prediction *p, const char *name, bool last) {
    bool quoted = name[strcspn(name, ",\"\r\n")];
    if (quoted) TRY(rm_file_write(&p->writer, "\"", 1));
    for (; *name; name++) TRY(rm_file_write(&p->writer, *name == '"' ? "\"\"" : name, *name == '"' ? 2 : 1));
    if (quoted) TRY(rm_file_write(&p->writer, "\"", 1));
    return rm_file_write(&p->writer, last ? "\n" : ",", 1);
}

/* The header of rows with one number per class. */
static remat_status write_class_names(prediction *p) {
    int64_t n = p->classes.count;
    if (!n || n != row_width(p)) return REMAT_OK;
    for (int64_t i = 0; i < n && !p->npy; i++) TRY(write_name(p, p->classes.name[i], i + 1 == n));
    for (int64_t i = 0; i < n && p->npy; i++)
        printf("%s%s%s", i ? ", " : "columns: ", p->classes.name[i], i + 1 == n ? "\n" : "");
    return p->npy ? rm_file_flush_output() : REMAT_OK;
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

static remat_status predict(prediction *p, rm_options *o) {
    rm_eval_event event;
    TRY(check_name(o));
    TRY(rm_saved_evaluator_open(o, RM_PREDICT, &p->saved));
    if (*p->saved.named) TRY(rm_state_class_names(p->saved.named, &p->classes));
    rm_evaluator *evaluator = &p->saved.evaluator;
    p->probabilities = rm_task_find(o->task)->row == RM_ROW_CLASSES;
    p->yes_or_no = rm_loss_is(o->model.loss, "shares");
    p->npy = !is_stdout(o) && rm_text_ends(o->out, ".npy");
    size_t row = (size_t)row_width(p);
    p->row = rm_calloc(row, sizeof *p->row);
    p->text = rm_malloc(row * CELL + 1);
    REQUIRE(p->row && p->text, MEMORY, "no memory for a row of %zu numbers", row);
    TRY(create(p, o));
    TRY(write_header(p));
    TRY(write_class_names(p));
    evaluator->sink = take;
    evaluator->sink_context = p;
    TRY(rm_evaluator_run(evaluator, rm_evaluator_session(evaluator), &event));
    return rm_file_finish(&p->writer);
}

remat_status rm_command_predict(rm_options *options, int *exit_status) {
    (void)exit_status;
    prediction p = {.writer.fd = -1};
    remat_status status = predict(&p, options);
    rm_file_abandon(&p.writer);
    rm_class_names_free(&p.classes);
    rm_free(p.row);
    rm_free(p.text);
    rm_saved_evaluator_free(&p.saved);
    return status;
}
