/* remat.h of Remat 0.1, without its comments. */
#ifndef REMAT_H
#define REMAT_H 
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define REMAT_VERSION "0.1.0"
#define REMAT_MAX_RANK 8
#define REMAT_STATUS_MAP(X) \
    X(OK, "success") \
    X(INVALID, "the caller passed something that cannot work") \
    X(MEMORY, "the host or the device is out of memory") \
    X(INFEASIBLE, "no plan fits the budget") \
    X(MISSING, "this build or device lacks the requested feature") \
    X(DEVICE, "the device reported a failure") \
    X(PEER, "another rank failed, or disagrees about the plan") \
    X(IO, "a file could not be read or written") \
    X(INTERNAL, "a bug in Remat: please report it")
typedef enum {
#define REMAT_STATUS_ENUM(name,text) REMAT_ ##name,
    REMAT_STATUS_MAP(REMAT_STATUS_ENUM)
#undef REMAT_STATUS_ENUM
} remat_status;
const char *remat_status_text(remat_status status);
const char *remat_last_error(void);
typedef struct remat_graph remat_graph;
typedef struct remat_session remat_session;
typedef struct {
    int32_t id;
} remat_value;
#ifdef __cplusplus
#define REMAT_NONE (remat_value())
#else
#define REMAT_NONE ((remat_value){0})
#endif
typedef enum { REMAT_F32, REMAT_F64, REMAT_I32 } remat_dtype;
typedef enum { REMAT_WHOLE, REMAT_SEQUENCE } remat_axis;
typedef enum { REMAT_INIT_ZERO, REMAT_INIT_CONSTANT, REMAT_INIT_NORMAL, REMAT_INIT_UNIFORM } remat_init_kind;
typedef struct {
    remat_init_kind kind;
    double scale;
} remat_init;
remat_init remat_init_of(remat_init_kind, double scale);
remat_init remat_init_zero(void);
remat_init remat_init_constant(double value);
remat_init remat_init_normal(double deviation);
remat_init remat_init_uniform(double bound);
remat_status remat_graph_create(remat_graph **out);
void remat_graph_free(remat_graph *graph);
remat_status remat_graph_check(const remat_graph *graph);
remat_value remat_input(remat_graph *, const char *name, remat_dtype, remat_axis, int rank, const int64_t *dim);
remat_value remat_param(remat_graph *, const char *name, int rank, const int64_t *dim, remat_init);
remat_value remat_buffer(remat_graph *, const char *name, int rank, const int64_t *dim, remat_init);
remat_value remat_requires_grad(remat_graph *, remat_value input);
remat_value remat_embedding(remat_graph *, remat_value tokens, remat_value weight);
remat_value remat_linear(remat_graph *, remat_value x, remat_value w, remat_value b );
remat_value remat_lstm(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,
                       remat_value b_ih , remat_value b_hh );
remat_value remat_gru(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,
                      remat_value b_ih , remat_value b_hh );
remat_value remat_rnn_tanh(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,
                           remat_value b_ih , remat_value b_hh );
remat_value remat_linear_scan(remat_graph *, remat_value a, remat_value b, remat_value reset );
remat_value remat_min_gru(remat_graph *, remat_value hidden_and_gate);
remat_value remat_min_lstm(remat_graph *, remat_value hidden_and_f_i_gate);
remat_value remat_causal_conv(remat_graph *, remat_value x, remat_value w, remat_value b );
remat_value remat_lstm_projected(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,
                                 remat_value b_ih , remat_value b_hh , remat_value w_hr);
remat_value remat_matmul(remat_graph *, remat_value x, remat_value w, remat_value b );
remat_value remat_positions(remat_graph *, remat_value x, remat_value w);
remat_value remat_rotary(remat_graph *, remat_value x, int64_t heads, double base);
remat_value remat_conv2d(remat_graph *, remat_value x, remat_value w, remat_value b , const int64_t stride[2],
                         const int64_t padding[2], const int64_t dilation[2], int64_t groups);
remat_value remat_conv1d(remat_graph *, remat_value x, remat_value w, remat_value b , int64_t stride,
                         int64_t padding, int64_t dilation, int64_t groups);
remat_value remat_max_pool2d(remat_graph *, remat_value x, const int64_t window[2], const int64_t stride[2],
                             const int64_t padding[2]);
remat_value remat_avg_pool2d(remat_graph *, remat_value x, const int64_t window[2], const int64_t stride[2],
                             const int64_t padding[2]);
remat_value remat_mean(remat_graph *, remat_value x, int axes);
typedef enum { REMAT_NEAREST, REMAT_BILINEAR, REMAT_BILINEAR_CORNERS } remat_upsample;
remat_value remat_upsample2d(remat_graph *, remat_value x, const int64_t scale[2], remat_upsample mode);
remat_value remat_pad2d(remat_graph *, remat_value x, const int64_t before[2], const int64_t behind[2]);
remat_value remat_transpose(remat_graph *, remat_value x, int one, int other);
remat_value remat_initial_state(remat_graph *, remat_value y, int state, remat_value initial);
remat_value remat_final_state(remat_graph *, remat_value y, int state);
remat_value remat_reset_states(remat_graph *, remat_value y, remat_value reset);
remat_value remat_layer_norm(remat_graph *, remat_value x, remat_value gain, remat_value bias, double epsilon);
remat_value remat_rms_norm(remat_graph *, remat_value x, remat_value gain, double epsilon);
remat_value remat_group_norm(remat_graph *, remat_value x, int64_t groups, remat_value gain, remat_value bias, double epsilon);
remat_value remat_batch_norm(remat_graph *, remat_value x, remat_value gain , remat_value bias ,
                             remat_value running_mean, remat_value running_var, double momentum, double epsilon, bool sync);
remat_value remat_attention(remat_graph *, remat_value q, remat_value k, remat_value v, int64_t heads, bool causal);
remat_value remat_cross_attention(remat_graph *, remat_value q, remat_value k, remat_value v, int64_t heads,
                                  remat_value padding );
remat_value remat_softmax(remat_graph *, remat_value x);
remat_value remat_log_softmax(remat_graph *, remat_value x);
remat_value remat_dropout(remat_graph *, remat_value x, double probability);
remat_value remat_add(remat_graph *, remat_value a, remat_value b);
remat_value remat_mul(remat_graph *, remat_value a, remat_value b);
remat_value remat_scale(remat_graph *, remat_value x, double factor);
remat_value remat_sigmoid(remat_graph *, remat_value x);
remat_value remat_tanh(remat_graph *, remat_value x);
remat_value remat_relu(remat_graph *, remat_value x);
remat_value remat_gelu(remat_graph *, remat_value x);
remat_value remat_gelu_tanh(remat_graph *, remat_value x);
remat_value remat_silu(remat_graph *, remat_value x);
remat_value remat_concat(remat_graph *, const remat_value *x, int n);
remat_value remat_slice(remat_graph *, remat_value x, int64_t first, int64_t count);
remat_value remat_as_sequence(remat_graph *, remat_value x);
remat_value remat_reshape(remat_graph *, remat_value x, int rank, const int64_t *dim);
remat_value remat_reverse(remat_graph *, remat_value x);
remat_value remat_last_step(remat_graph *, remat_value x);
remat_value remat_step_at(remat_graph *, remat_value x, remat_value index);
remat_value remat_mean_over_time(remat_graph *, remat_value x);
typedef struct {
    const char *name;
    const remat_graph *body;
    const remat_value *inputs;
    int n_inputs;
    const remat_value *weights;
    int n_weights;
    const remat_value *states, *next_states;
    int n_states;
    remat_value output;
} remat_cell;
static inline remat_value remat_scan(remat_graph *, const remat_cell *cell, const remat_value *sequences,
                                     const remat_value *weights);
remat_value remat_softmax_cross_entropy(remat_graph *, remat_value logits, remat_value targets);
remat_value remat_softmax_cross_entropy_smoothed(remat_graph *, remat_value logits, remat_value targets,
                                                 double smoothing);
remat_value remat_softmax_cross_entropy_weighted(remat_graph *, remat_value logits, remat_value targets,
                                                 remat_value class_weights , int64_t ignored, double smoothing);
remat_value remat_mse(remat_graph *, remat_value x, remat_value target);
remat_value remat_bce_with_logits(remat_graph *, remat_value logits, remat_value targets);
remat_value remat_mae(remat_graph *, remat_value x, remat_value target);
remat_value remat_huber(remat_graph *, remat_value x, remat_value target, double delta);
remat_value remat_ctc(remat_graph *, remat_value logits, remat_value targets, remat_value input_lengths ,
                      remat_value target_lengths , int64_t blank, bool zero_infinity);
typedef struct {
    remat_value value;
    void *memory;
} remat_lent;
typedef struct {
    const char *device;
    const char *precision;
    const char *rnn_kernels;
    int threads;
    uint64_t seed;
    const char *strategy;
    int64_t segments;
    const char *plan_steps;
    uint64_t memory_budget;
    const char *recompute;
    const char *spill_dir;
    bool verify_recompute;
    const char *calibration;
    double assume_flops, assume_bandwidth;
    int64_t tile;
    bool fold_embedding;
    bool plan_only;
    bool inference;
    bool stateful;
    const remat_value *outputs;
    int n_outputs;
    int n_differentiated;
    const remat_lent *lent;
    int n_lent;
    const char *optimizer;
    double momentum;
    bool nesterov;
    double beta1, beta2, epsilon;
    double weight_decay;
    double alpha;
    double clip_grad_norm;
    double clip_grad_value;
    double trust_coefficient;
    bool momentum_correction;
    bool adapt_vectors;
    bool decay_vectors;
    double norm_limit;
    const char *train_only;
    int micro_steps;
    bool pairwise;
    const struct remat_ranks *ranks;
    const char *groups;
    int64_t carry_after;
} remat_config;
static inline remat_config remat_config_init(void);
#define REMAT_CONFIG_INIT (remat_config_init())
static inline remat_status remat_session_create(const remat_graph *, remat_value loss, const remat_config *,
                                                remat_session **out);
uint64_t remat_smallest_budget(void);
void remat_session_free(remat_session *);
typedef struct {
    const char *strategy, *device, *precision;
    const char *rnn_kernels;
    int threads;
    int64_t timesteps, batch, tile, n_tiles, n_stages;
    int64_t segments;
    int64_t segments_requested;
    uint64_t params_bytes, gradients_bytes, optimizer_bytes, inputs_bytes, packed_bytes, other_bytes;
    uint64_t activations_peak_bytes;
    uint64_t activations_floor_bytes;
    uint64_t planned_peak_bytes;
    uint64_t workspace_bytes;
    uint64_t tables_bytes;
    uint64_t budgeted_bytes;
    uint64_t memory_budget;
    uint64_t spill_bytes;
    int64_t peak_step;
    uint64_t forward_ns, recompute_ns, backward_ns;
    uint64_t transfer_ns, wait_ns;
    uint64_t step_ns;
    uint64_t fixed_ns;
    bool measured_times;
    bool measured_busy;
    double recompute_factor;
    int64_t n_steps;
    int64_t n_buckets;
} remat_plan_summary;
static inline remat_plan_summary remat_session_plan(const remat_session *);
typedef struct {
    int64_t shapes, in_fp32;
    int64_t by_cublas;
    int64_t split;
    int64_t alone, whole, batched, blocks;
} remat_products;
static inline remat_products remat_session_products(const remat_session *);
typedef struct {
    int64_t calls, graphs;
    uint64_t bytes,
        limit_bytes;
    const char *ended;
} remat_recordings;
static inline remat_recordings remat_session_recordings(const remat_session *);
char *remat_plan_describe(const remat_session *);
char *remat_plan_stages_json(const remat_session *);
char *remat_plan_peak_json(const remat_session *);
char *remat_plan_steps_text(const remat_session *);
char *remat_plan_problem_text(const remat_session *);
void remat_text_free(char *text);
typedef struct {
    const char *strategy;
    int64_t segments;
    uint64_t activations_peak_bytes, budgeted_bytes, spill_bytes;
    uint64_t step_ns;
    double recompute_factor;
    bool frontier;
} remat_pareto_point;
static inline remat_status remat_plan_pareto(const remat_session *, remat_pareto_point **points, int64_t *count);
typedef enum {
    REMAT_LIVE_STATES,
    REMAT_LIVE_SAVED,
    REMAT_LIVE_GRADIENTS,
    REMAT_LIVE_SCRATCH,
    REMAT_LIVE_KINDS
} remat_live;
typedef struct {
    int64_t step;
    uint64_t begin_ns;
    uint64_t bytes[REMAT_LIVE_KINDS];
    uint64_t resident_bytes;
} remat_live_point;
static inline remat_status remat_plan_timeline(const remat_session *, remat_live_point **points, int64_t *count);
remat_status remat_trace_next(remat_session *);
static inline remat_status remat_traced_timeline(const remat_session *, remat_live_point **points, int64_t *count);
typedef struct {
    int32_t index;
    float *parameters, *gradients;
    int64_t count;
    const char *first;
    void *ready;
} remat_bucket;
typedef struct remat_ranks {
    size_t struct_bytes;
    void *context;
    int rank, size;
    uint64_t first_bucket_bytes, bucket_bytes;
    double weight;
    bool shard_optimizer;
    bool fused_update;
    const char *device;
    bool heeds_events;
    uint64_t device_bytes;
    int wire_bytes;
    remat_status (*agree)(void *context, int32_t *order, uint8_t *used, int64_t n_parameters);
    remat_status (*map)(void *context, void *address, uint64_t bytes);
    void (*unmap)(void *context, void *address);
    remat_status (*prepare)(void *context, const remat_bucket *bucket);
    remat_status (*reduce)(void *context, const remat_bucket *bucket);
    remat_status (*wait)(void *context, const remat_bucket *bucket);
    remat_status (*gather)(void *context, const remat_bucket *bucket);
    remat_status (*gathered)(void *context, const remat_bucket *bucket);
    remat_status (*sum)(void *context, double *values, int64_t count);
    remat_status (*poll)(void *context);
} remat_ranks;
char *remat_settings_text(const remat_session *);
int64_t remat_bucket_count(const remat_session *);
static inline remat_bucket remat_bucket_info(const remat_session *, int64_t index);
void remat_parameters_changed(remat_session *);
int64_t remat_micro_shard(int64_t t, int64_t micro_steps, bool pairwise);
typedef struct remat_job remat_job;
typedef struct {
    int64_t rows;
    const char *backend;
    const char *init_method;
    int world_size, rank;
    int64_t timeout_ms;
    const char *grad_compress;
    bool pairwise;
    bool shard_optimizer, fused_update;
    uint64_t first_bucket_bytes, bucket_bytes;
} remat_job_config;
static inline remat_status remat_join(const remat_job_config *, remat_job **out);
void remat_leave(remat_job *);
int remat_job_rank(const remat_job *);
int remat_job_size(const remat_job *);
const remat_ranks *remat_job_ranks(const remat_job *);
remat_status remat_job_begin(remat_job *, remat_session *);
remat_status remat_job_share_buffers(remat_job *, remat_session *);
remat_status remat_job_sum(remat_job *, double *values, int64_t count);
typedef struct remat_sampler remat_sampler;
typedef struct {
    int64_t n;
    int64_t replicas, rank;
    bool shuffle, drop_last;
    int64_t seed;
} remat_sampler_config;
static inline remat_status remat_sampler_create(const remat_sampler_config *, remat_sampler **out);
void remat_sampler_free(remat_sampler *);
void remat_sampler_set_epoch(remat_sampler *, int64_t epoch);
int64_t remat_sampler_count(const remat_sampler *);
int64_t remat_sampler_at(const remat_sampler *, int64_t k);
typedef enum {
    REMAT_INPUT,
    REMAT_PARAM,
    REMAT_GRADIENT,
    REMAT_OPTIMIZER,
    REMAT_OUTPUT,
    REMAT_CARRIED,
    REMAT_OUTPUT_GRADIENT,
    REMAT_BUFFER
} remat_kind;
typedef struct {
    const char *name;
    remat_dtype dtype;
    int rank;
    int64_t dim[REMAT_MAX_RANK];
    uint64_t bytes;
    int64_t first, count;
} remat_array;
int64_t remat_count(const remat_session *, remat_kind);
static inline remat_status remat_array_info(const remat_session *, remat_kind, int64_t index, remat_array *out);
int64_t remat_find(const remat_session *, remat_kind, const char *name);
remat_status remat_write(remat_session *, remat_kind, int64_t index, const void *data, uint64_t bytes);
remat_status remat_read(remat_session *, remat_kind, int64_t index, void *data, uint64_t bytes);
remat_status remat_write_part(remat_session *, remat_kind, int64_t index, uint64_t first, const void *data,
                              uint64_t bytes);
remat_status remat_read_part(remat_session *, remat_kind, int64_t index, uint64_t first, void *data, uint64_t bytes);
remat_status remat_lend(remat_session *, remat_kind, int64_t index, void *memory);
remat_status remat_set_sequence_end(remat_session *, int64_t timesteps, int64_t end);
typedef struct {
    double loss;
    double grad_norm;
    uint64_t arena_peak_bytes;
    uint64_t recomputed_stages;
} remat_step_result;
static inline remat_status remat_gradients(remat_session *, remat_step_result *);
static inline remat_status remat_update(remat_session *, double lr, remat_step_result *);
static inline remat_status remat_step(remat_session *, double lr, remat_step_result *);
static inline remat_status remat_evaluate(remat_session *, remat_step_result *);
remat_status remat_forward(remat_session *);
static inline remat_status remat_backward(remat_session *, remat_step_result *);
int64_t remat_step_count(const remat_session *);
void remat_set_step_count(remat_session *, int64_t steps);
void remat_set_last_lr(remat_session *, double lr);
typedef struct {
    const char *version, *compiler, *instruction_set, *gemm_library, *host_allocator;
    int threads;
    const char *devices;
    uint64_t host_allocated_bytes, host_resident_bytes;
} remat_build_info;
static inline remat_build_info remat_build(void);
remat_status remat_device_check(const char *device);
remat_value remat_scan_sized(remat_graph *, const remat_cell *cell, size_t cell_bytes, const remat_value *sequences,
                             const remat_value *weights);
static inline remat_value remat_scan(remat_graph *graph, const remat_cell *cell, const remat_value *sequences,
                                     const remat_value *weights) {
    return remat_scan_sized(graph, cell, sizeof(remat_cell), sequences, weights);
}
void remat_config_init_sized(remat_config *out, size_t out_bytes);
static inline remat_config remat_config_init(void) {
    remat_config config;
    remat_config_init_sized(&config, sizeof config);
    return config;
}
remat_status remat_session_create_sized(const remat_graph *, remat_value loss, const remat_config *, size_t config_bytes,
                                        remat_session **out);
static inline remat_status remat_session_create(const remat_graph *graph, remat_value loss, const remat_config *config,
                                                remat_session **out) {
    return remat_session_create_sized(graph, loss, config, sizeof(remat_config), out);
}
void remat_session_plan_sized(const remat_session *, remat_plan_summary *out, size_t out_bytes);
static inline remat_plan_summary remat_session_plan(const remat_session *session) {
    remat_plan_summary plan;
    remat_session_plan_sized(session, &plan, sizeof plan);
    return plan;
}
void remat_session_products_sized(const remat_session *, remat_products *out, size_t out_bytes);
static inline remat_products remat_session_products(const remat_session *session) {
    remat_products products;
    remat_session_products_sized(session, &products, sizeof products);
    return products;
}
void remat_session_recordings_sized(const remat_session *, remat_recordings *out, size_t out_bytes);
static inline remat_recordings remat_session_recordings(const remat_session *session) {
    remat_recordings recordings;
    remat_session_recordings_sized(session, &recordings, sizeof recordings);
    return recordings;
}
remat_status remat_plan_pareto_sized(const remat_session *, remat_pareto_point **points, size_t point_bytes, int64_t *count);
static inline remat_status remat_plan_pareto(const remat_session *session, remat_pareto_point **points, int64_t *count) {
    return remat_plan_pareto_sized(session, points, sizeof(remat_pareto_point), count);
}
remat_status remat_plan_timeline_sized(const remat_session *, remat_live_point **points, size_t point_bytes, int64_t *count);
static inline remat_status remat_plan_timeline(const remat_session *session, remat_live_point **points, int64_t *count) {
    return remat_plan_timeline_sized(session, points, sizeof(remat_live_point), count);
}
remat_status remat_traced_timeline_sized(const remat_session *, remat_live_point **points, size_t point_bytes, int64_t *count);
static inline remat_status remat_traced_timeline(const remat_session *session, remat_live_point **points, int64_t *count) {
    return remat_traced_timeline_sized(session, points, sizeof(remat_live_point), count);
}
void remat_bucket_info_sized(const remat_session *, int64_t index, remat_bucket *out, size_t out_bytes);
static inline remat_bucket remat_bucket_info(const remat_session *session, int64_t index) {
    remat_bucket bucket;
    remat_bucket_info_sized(session, index, &bucket, sizeof bucket);
    return bucket;
}
remat_status remat_join_sized(const remat_job_config *, size_t config_bytes, remat_job **out);
static inline remat_status remat_join(const remat_job_config *config, remat_job **out) {
    return remat_join_sized(config, sizeof(remat_job_config), out);
}
remat_status remat_sampler_create_sized(const remat_sampler_config *, size_t config_bytes, remat_sampler **out);
static inline remat_status remat_sampler_create(const remat_sampler_config *config, remat_sampler **out) {
    return remat_sampler_create_sized(config, sizeof(remat_sampler_config), out);
}
remat_status remat_array_info_sized(const remat_session *, remat_kind, int64_t index, remat_array *out, size_t out_bytes);
static inline remat_status remat_array_info(const remat_session *session, remat_kind kind, int64_t index,
                                            remat_array *out) {
    return remat_array_info_sized(session, kind, index, out, sizeof(remat_array));
}
remat_status remat_gradients_sized(remat_session *, remat_step_result *, size_t result_bytes);
static inline remat_status remat_gradients(remat_session *session, remat_step_result *result) {
    return remat_gradients_sized(session, result, sizeof(remat_step_result));
}
remat_status remat_update_sized(remat_session *, double lr, remat_step_result *, size_t result_bytes);
static inline remat_status remat_update(remat_session *session, double lr, remat_step_result *result) {
    return remat_update_sized(session, lr, result, sizeof(remat_step_result));
}
remat_status remat_step_sized(remat_session *, double lr, remat_step_result *, size_t result_bytes);
static inline remat_status remat_step(remat_session *session, double lr, remat_step_result *result) {
    return remat_step_sized(session, lr, result, sizeof(remat_step_result));
}
remat_status remat_evaluate_sized(remat_session *, remat_step_result *, size_t result_bytes);
static inline remat_status remat_evaluate(remat_session *session, remat_step_result *result) {
    return remat_evaluate_sized(session, result, sizeof(remat_step_result));
}
remat_status remat_backward_sized(remat_session *, remat_step_result *, size_t result_bytes);
static inline remat_status remat_backward(remat_session *session, remat_step_result *result) {
    return remat_backward_sized(session, result, sizeof(remat_step_result));
}
void remat_build_sized(remat_build_info *out, size_t out_bytes);
static inline remat_build_info remat_build(void) {
    remat_build_info build;
    remat_build_sized(&build, sizeof build);
    return build;
}
#ifdef __cplusplus
}
#endif
#endif
