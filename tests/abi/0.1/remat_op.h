/* remat_op.h of Remat 0.1, without its comments. */
#ifndef REMAT_OP_H
#define REMAT_OP_H 
#include "remat.h"
#ifdef __cplusplus
extern "C" {
#endif
#define REMAT_MAX_INPUTS 9
#define REMAT_MAX_STATES 2
typedef struct {
    remat_dtype dtype;
    int32_t rank;
    int64_t dim[REMAT_MAX_RANK];
} remat_desc;
typedef struct {
    remat_desc desc;
    void *data;
} remat_tensor;
int64_t remat_desc_count(const remat_desc *);
uint64_t remat_desc_bytes(const remat_desc *);
#define REMAT_DESC_TEXT 192
const char *remat_desc_text(const remat_desc *, char *buffer);
typedef enum { REMAT_FORWARD, REMAT_BACKWARD, REMAT_REBUILD, REMAT_FACT } remat_pass;
typedef enum { REMAT_ON_CPU, REMAT_ON_CUDA, REMAT_DEVICE_KINDS } remat_device_kind;
typedef enum {
    REMAT_TIME_POINTWISE,
    REMAT_TIME_RECURRENT,
    REMAT_TIME_SUM,
    REMAT_TIME_LAST,
    REMAT_TIME_REVERSE,
    REMAT_TIME_WHOLE,
    REMAT_TIME_BEGIN,
} remat_time;
typedef struct {
    uint64_t seed, step;
    uint32_t node;
} remat_key;
uint32_t remat_random(const remat_key *, int64_t timestep, uint64_t element);
typedef struct {
    const void *attr;
    remat_tensor x[REMAT_MAX_INPUTS];
    remat_tensor y;
    remat_tensor state_in[REMAT_MAX_STATES];
    remat_tensor state_out[REMAT_MAX_STATES];
    remat_tensor dy, dx[REMAT_MAX_INPUTS];
    remat_tensor dstate_out[REMAT_MAX_STATES];
    remat_tensor dstate_in[REMAT_MAX_STATES];
    void *aux;
    void *scratch;
    void *fixed;
    const void *packed;
    void *fact;
    const void *ranks;
    remat_key key;
    int64_t t0, t_total;
    bool training;
    int threads;
    void *queue;
} remat_call;
typedef void remat_kernel(const remat_call *call);
void *remat_cuda_stream(const remat_call *);
void remat_sum_over_ranks(const remat_call *call, double *values, int64_t count);
typedef struct {
    double flops;
    double moved_bytes;
    uint64_t scratch_bytes;
} remat_cost;
typedef struct {
    const char *name;
    remat_desc x[REMAT_MAX_INPUTS];
    bool sequence;
    const void *attr;
} remat_sample;
typedef struct {
    remat_kernel *forward, *backward, *rebuild;
    uint64_t (*scratch_bytes)(const remat_desc *x, const void *attr, remat_pass pass, bool aux);
    uint64_t (*fixed_bytes)(const remat_desc *x, const void *attr);
    uint64_t (*packed_bytes)(const remat_desc *x, const void *attr, int threads);
    void (*pack)(const remat_call *call, void *packed);
    remat_kernel *fact;
} remat_op_device;
typedef struct {
    size_t struct_bytes;
    const char *name, *doc;
    int n_in, n_state;
    const char *state_name[REMAT_MAX_STATES];
    uint32_t optional;
    uint32_t weights;
    uint32_t discrete;
    uint32_t buffers;
    uint32_t resets;
    size_t attr_bytes;
    remat_time time;
    struct {
        uint32_t in;
        bool out;
        bool state;
    } saves;
    remat_status (*infer)(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state);
    void (*cost)(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out);
    uint64_t (*aux_bytes)(const remat_desc *x, const void *attr);
    uint64_t (*fact_bytes)(const remat_desc *x, const void *attr);
    bool (*talks)(const void *attr);
    int64_t (*bound)(const remat_desc *x, const void *attr, int input);
    int64_t (*ignored)(const void *attr, int input);
    remat_op_device on[REMAT_DEVICE_KINDS];
    remat_kernel *define_forward, *define_backward, *define_rebuild, *define_fact;
    bool (*rebuilds)(const remat_desc *x, const void *attr);
    bool cheap;
    int n_samples;
    const remat_sample *samples;
    uint64_t first_for;
} remat_op;
__attribute__((format(printf, 1, 2))) remat_status remat_refuse(const char *format, ...);
remat_status remat_apply(remat_graph *, const remat_op *op, const remat_value *inputs, int n_inputs, const void *attr,
                         remat_value *results);
typedef struct {
    bool same_across_threads;
    double gradient_error;
    double float_error;
} remat_op_report;
static inline remat_status remat_op_check(const remat_op *op, const remat_op *op_f64, remat_op_report *report);
remat_status remat_op_check_sized(const remat_op *op, const remat_op *op_f64, remat_op_report *report,
                                  size_t report_bytes);
static inline remat_status remat_op_check(const remat_op *op, const remat_op *op_f64, remat_op_report *report) {
    return remat_op_check_sized(op, op_f64, report, sizeof(remat_op_report));
}
#ifdef __cplusplus
}
#endif
#endif
