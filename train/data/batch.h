/* batch.h: a batch of samples as named fields, one array per graph input of the same name. The data's shape determines which
 * fields exist and how large they are. Code that creates a batch, counts its bytes, declares graph inputs or writes to a session
 * loops over the fields.
 *
 *     input                 the samples, time-major
 *     target                their targets
 *     last, length (B)      of samples that end early: the last timestep, and the number of timesteps
 *     ends (T,B)            ... 1 at the last timestep
 *     begins (T,B)          1 where documents, or inputs of pairs, begin
 *     padding (T,B)         of pairs, and of numbers at each timestep: 1 after a sample's end
 *     previous (A,B)        of pairs: the token before each target
 *     class_weights (K)     the loss weight of each class: one array shared by all batches
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
    int32_t fill; /* value after a sample's end: 1 for padding, -1 for ignored targets */
} rm_field;

/* The fields of a batch of `batch` samples with `timesteps` timesteps each. */
void rm_data_fields(const rm_data_shape *shape, int64_t timesteps, int64_t batch, rm_field out[RM_FIELDS]);
uint64_t rm_field_bytes(const rm_field *field);
/* Bytes of `batches` batches, which share one array of class weights. */
uint64_t rm_data_batch_bytes(const rm_data_shape *shape, int64_t batch, int64_t batches);

struct rm_batch {
    rm_dataset *dataset; /* borrowed */
    int64_t batch;
    rm_field field[RM_FIELDS];
    void *data[RM_FIELDS]; /* NULL: no such field */
    uint64_t bytes;        /* of `data`, without class weights */
};

/* MEMORY when allocation fails. Free *out even after an error. */
remat_status rm_batch_create(rm_dataset *dataset, int64_t batch, rm_batch *out);
void rm_batch_free(rm_batch *batch);
remat_status rm_batch_put(rm_batch *batch, int64_t column, int64_t sample);
/* Fills the length fields of one sample of `length` timesteps, for data whose samples may end early. */
void rm_batch_put_length(rm_batch *batch, int64_t column, int64_t length);

/* A window of a batch's timesteps, first..first+count-1. Only targets at from..from+counted-1 contribute to the loss. */
typedef struct {
    int64_t first, count, from, counted;
} rm_window;
rm_window rm_batch_whole(const rm_batch *batch);
/* Writes the window to the inputs of a session of window.count timesteps. A partial window requires targets at every timestep;
 * ignored class targets become -1. The graph may lack inputs for all fields but the first two. */
remat_status rm_batch_write(const rm_batch *batch, rm_window window, remat_session *session);

#endif
