/* tensor.h: shapes and tensors (dtype, shape, pointer) as ops see them. Owns no memory; every folder may use it. */
#ifndef RM_TENSOR_H
#define RM_TENSOR_H

#include "engine/remat_op.h"
#include "memory/bytes.h"

static inline uint64_t rm_dtype_bytes(remat_dtype dtype) { return dtype == REMAT_F64 ? 8 : 4; }

remat_desc rm_desc_make(remat_dtype dtype, int rank, const int64_t *dim);
int64_t rm_desc_count(const remat_desc *desc); /* elements; a scalar has 1 */
uint64_t rm_desc_bytes(const remat_desc *desc);
bool rm_desc_equal(const remat_desc *a, const remat_desc *b);
/* Elements / last dim: the rows that an op loops over. A scalar has one row of one. */
int64_t rm_desc_rows(const remat_desc *desc);
int64_t rm_desc_last(const remat_desc *desc);
/* Writes "f32 (331,4,64)" into a buffer of at least REMAT_DESC_TEXT bytes. */
const char *rm_desc_text(const remat_desc *desc, char *buffer);
/* INVALID: a dimension is < 1, or the byte count is too large. `what` names the tensor. */
remat_status rm_desc_check(const remat_desc *desc, const char *what);

#endif
