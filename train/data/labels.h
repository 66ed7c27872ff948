/* labels.h: the file of --labels: what each sample's answer is, as the kind of data asks for it. */
#ifndef RM_LABELS_H
#define RM_LABELS_H

#include "train/data/array.h"
#include "train/data/dataset.h"

/* The samples that they belong to. Of sequences `most` timesteps are in the file, and the first `timesteps` of them used. */
typedef struct {
    int64_t count, most, timesteps;
    int64_t height, width;  /* of images */
    const int32_t *lengths; /* where samples end, (count), maybe after `timesteps`; NULL: none does */
} rm_labelled;

typedef struct {
    void *item;           /* (count,steps,width), int32_t or float, in row-major order; NULL: there are none */
    int64_t steps, width; /* answers of a sample, and numbers of an answer */
    bool every_step;      /* each timestep has one */
    int64_t classes;      /* before reading: their bound; 0: becomes the largest label + 1 */
} rm_labels;

/* What an array of labels is read as: one of those below. */
typedef remat_status rm_labels_as(const rm_array *, const rm_data_source *, const rm_labelled *, rm_labels *);

/* source->labels. INVALID where they do not fit the samples or the source. Free in any case. */
remat_status rm_labels_read(const rm_data_source *source, const rm_labelled *samples, rm_labels_as *as,
                            rm_labels *labels);
void rm_labels_free(rm_labels *labels);

/* Whole numbers, of whatever type; -1 for what is ignored. */
rm_labels_as rm_labels_as_classes; /* (N), one a sample */
rm_labels_as
    rm_labels_as_steps; /* the same, or (N,T), one a timestep, as steps_known and every_step allow; -1 after its end */
rm_labels_as rm_labels_as_pixels; /* (N,H,W) */
/* (N,S) for CTC: class 0 is the blank and no label, -1 fills up rows. Each has to fit into the timesteps of its sample. */
rm_labels_as rm_labels_as_rows;
/* Numbers: (N), (N,V), one answer a sample; (N,T,V), one a timestep, and (N,T) where --every-step says so; 0 after its end. */
rm_labels_as rm_labels_as_values;

/* Of `count` samples. */
static inline uint64_t rm_labels_bytes(const rm_labels *labels, int64_t count) {
    return labels->item ? 4 * (uint64_t)(count * labels->steps * labels->width) : 0;
}
/* Zeros, (count,steps,width). */
remat_status rm_labels_make_room(rm_labels *labels, int64_t count, int64_t steps, int64_t width);

/* source->lengths: of each sample a number from 1 to samples->most. *lengths is the caller's, freed with rm_free. */
remat_status rm_lengths_read(const rm_data_source *source, const rm_labelled *samples, int32_t **lengths);

#endif
