/* real.h: the type `real`. An op file is compiled twice, as float and as double (op.h, "Two precisions"), and includes
 * this header first. RM_FAST: what its descriptor says where the two differ: fast kernels are float only. */
#ifndef RM_REAL_H
#define RM_REAL_H

#include <math.h>

#ifdef RM_REAL_DOUBLE
typedef double real;
#define RM_REAL REMAT_F64
#define RM_OP(name) rm_op_##name##_f64
#define real_exp exp
#define real_log log
#define real_log1p log1p
#define real_tanh tanh
#define real_erfc erfc
#define real_fma fma
#define RM_FAST(fast, definition) definition
#else
typedef float real;
#define RM_REAL REMAT_F32
#define RM_OP(name) rm_op_##name
#define real_exp expf
#define real_log logf
#define real_log1p log1pf
#define real_tanh tanhf
#define real_erfc erfcf
#define real_fma fmaf
#define RM_FAST(fast, definition) fast
#endif

#endif
