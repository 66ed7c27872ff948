/* tensor.h: a dtype, a shape, and a pointer: what an op sees. Shared floor; owns no memory. */
#ifndef RM_TENSOR_H
#define RM_TENSOR_H

#include "engine/remat_op.h"
#include "memory/bytes.h"

typedef remat_desc rm_desc;
typedef remat_tensor rm_tensor;

static inline uint64_t rm_dtype_bytes(remat_dtype dtype) { return dtype == REMAT_F64 ? 8 : 4; }

rm_desc rm_desc_make(remat_dtype dtype, int rank, const int64_t *dim);
int64_t rm_desc_count(const rm_desc *desc); /* elements; a scalar has 1 */
uint64_t rm_desc_bytes(const rm_desc *desc);
bool rm_desc_equal(const rm_desc *a, const rm_desc *b);
/* Elements / last dim: how many rows a pointwise-in-time op loops over. A scalar has one row of one. */
int64_t rm_desc_rows(const rm_desc *desc);
int64_t rm_desc_last(const rm_desc *desc);
/* "f32 (331,4,64)", into a buffer of at least RM_DESC_TEXT bytes. */
#define RM_DESC_TEXT REMAT_DESC_TEXT
const char *rm_desc_text(const rm_desc *desc, char *buffer);
/* INVALID when a dim is < 1 or the byte count does not fit 63 bits; `what` names the tensor. */
remat_status rm_desc_check(const rm_desc *desc, const char *what);

#endif
