/* labels.h: reads the file of --labels: each sample's answer, in the form that the kind of data needs. */
#ifndef RM_LABELS_H
#define RM_LABELS_H

#include "train/data/array.h"
#include "train/data/dataset.h"

/* The samples that the labels belong to. Sequences have `most` timesteps in the file; the first `timesteps` of them are used. */
typedef struct {
    int64_t count, most, timesteps;
    int64_t height, width;  /* of images */
    const int32_t *lengths; /* (count), may exceed `timesteps`; NULL: no sample ends early */
} rm_labelled;

typedef struct {
    void *item;           /* (count,steps,width), int32_t or float, in row-major order; NULL: no labels */
    int64_t steps, width; /* answers per sample, and numbers per answer */
    bool every_step;      /* each timestep has an answer */
    int64_t classes;      /* set before reading: labels must be less; 0: becomes the largest label + 1 */
} rm_labels;

/* Converts an array of labels; one of the functions below. */
typedef remat_status rm_labels_as(const rm_array *, const rm_data_source *, const rm_labelled *, rm_labels *);

/* Reads source->labels. INVALID when they do not fit the samples or the source. Free even after an error. */
remat_status rm_labels_read(const rm_data_source *source, const rm_labelled *samples, rm_labels_as *as,
                            rm_labels *labels);
void rm_labels_free(rm_labels *labels);

/* Integers of any type; ignored labels become -1. */
rm_labels_as rm_labels_as_classes; /* (N), one per sample */
/* (N), one per sample, or (N,T), one per timestep, as steps_known and every_step allow; -1 after a sample's end. */
rm_labels_as rm_labels_as_steps;
rm_labels_as rm_labels_as_pixels; /* (N,H,W) */
/* (N,S) for CTC: class 0 is the blank and not a label; -1 is padding. Each row must fit into the timesteps of its sample. */
rm_labels_as rm_labels_as_rows;
/* Numbers: (N) or (N,V), one answer per sample; (N,T,V), or (N,T) with --every-step, one per timestep; 0 after a sample's end. */
rm_labels_as rm_labels_as_values;

/* For `count` samples. */
static inline uint64_t rm_labels_bytes(const rm_labels *labels, int64_t count) {
    return labels->item ? 4 * (uint64_t)(count * labels->steps * labels->width) : 0;
}
/* Allocates zeros, (count,steps,width). */
remat_status rm_labels_make_room(rm_labels *labels, int64_t count, int64_t steps, int64_t width);

/* Reads source->lengths: a number from 1 to samples->most per sample. Free *lengths with rm_free. */
remat_status rm_lengths_read(const rm_data_source *source, const rm_labelled *samples, int32_t **lengths);

#endif
