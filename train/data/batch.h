/* batch.h: samples side by side, as the fields that a session reads: each an array with a name, which is that of the graph's input.
 * Which fields there are, and how large, follows from the data's shape; whoever makes, counts, describes to a graph or writes a
 * batch loops over them.
 *
 *     input                 the samples, time-major
 *     target                their answers
 *     last, length (B)      of samples that end early: the last timestep, and how many there are
 *     ends (T,B)            ... 1 at the last timestep
 *     begins (T,B)          1 where documents, or inputs of pairs, begin
 *     padding (T,B)         of pairs, and of numbers at each timestep: 1 after a sample's end
 *     previous (A,B)        of pairs: the token before each target
 *     class_weights (K)     what each class counts: one array for all batches
 */
#ifndef RM_BATCH_H
#define RM_BATCH_H

#include "train/data/dataset.h"

#include "engine/remat.h"

typedef enum {
    RM_INPUT,
    RM_TARGET,
    RM_LAST,
    RM_LENGTH,
    RM_ENDS,
    RM_BEGINS,
    RM_PADDING,
    RM_PREVIOUS,
    RM_CLASS_WEIGHTS,
    RM_FIELDS
} rm_field_name;

typedef struct {
    const char *name; /* NULL: the data have no such field */
    remat_dtype dtype;
    remat_axis axis;
    int rank; /* 1 to 4 */
    int64_t dim[4];
    int32_t fill; /* after a sample's end: 1 for padding, -1 for targets that do not count */
} rm_field;

/* The fields of a batch of so many samples, of `timesteps` timesteps each. */
void rm_data_fields(const rm_data_shape *shape, int64_t timesteps, int64_t batch, rm_field out[RM_FIELDS]);
uint64_t rm_field_bytes(const rm_field *field);
/* Of so many batches; they share class weights. */
uint64_t rm_data_batch_bytes(const rm_data_shape *shape, int64_t batch, int64_t batches);

struct rm_batch {
    rm_dataset *dataset; /* borrowed */
    int64_t batch;
    rm_field field[RM_FIELDS];
    void *data[RM_FIELDS]; /* NULL: no such field */
    uint64_t bytes;        /* of these, but for class weights */
};

/* MEMORY when there is not enough. Free in any case. */
remat_status rm_batch_create(rm_dataset *dataset, int64_t batch, rm_batch *out);
void rm_batch_free(rm_batch *batch);
remat_status rm_batch_put(rm_batch *batch, int64_t column, int64_t sample);
/* For kinds of data whose samples end early: the fields of one that has `length` timesteps. */
void rm_batch_put_length(rm_batch *batch, int64_t column, int64_t length);

/* A stretch of a batch's timesteps, first..first+count-1, of which the targets of from..from+counted-1 count. */
typedef struct {
    int64_t first, count, from, counted;
} rm_window;
rm_window rm_batch_whole(const rm_batch *batch);
/* Into the inputs of a session of window.count timesteps. Less than all is for targets at every timestep; of those that do not count
 * classes are -1. A graph need not have inputs for fields after the first two. */
remat_status rm_batch_write(const rm_batch *batch, rm_window window, remat_session *session);

#endif
