/* test_null.c: NULL for every pointer of every public function (remat.h, "NULL"). Functions with a status return
 * INVALID and name themselves in the message; all others do nothing and return an empty value. */
#include <check.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remat_op.h"
#include "tests/suite.h"

static remat_graph *graph;
static remat_value loss;
static remat_session *session;
static remat_job *job;
static remat_sampler *sampler;
static remat_config config;

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

static void set_up(void) {
    config = REMAT_CONFIG_INIT;
    config.threads = 1;
    CHECKED(remat_graph_create(&graph));
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){4, 2, 3});
    remat_value w = remat_param(graph, "w", 2, (int64_t[]){3, 3}, remat_init_uniform(1));
    loss = remat_mse(graph, remat_linear(graph, x, w, REMAT_NONE), x);
    CHECKED(remat_session_create(graph, loss, &config, &session));
    CHECKED(remat_sampler_create(
        &(remat_sampler_config){.struct_bytes = sizeof(remat_sampler_config), .n = 5, .replicas = 1}, &sampler));
    CHECKED(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .world_size = 1}, &job));
}
static void tear_down(void) {
    remat_leave(job);
    remat_sampler_free(sampler);
    remat_session_free(session);
    remat_graph_free(graph);
}

static float data[9];
static int64_t count;
static double number;
static remat_value none;
static remat_array array;
static void *memory;
static remat_plan_summary plan;
static remat_products products;
static remat_recordings recordings;
static remat_bucket bucket;
static remat_pareto_point *points;
static remat_live_point *live;
static remat_session *made;
static remat_timeline *timeline;
static remat_graph *graph_made;
static const int64_t dim[] = {4, 2, 3};
static remat_op op;
static remat_desc desc;
static remat_value_info value_info;
static char text[REMAT_DESC_TEXT];

#define STATUS_CALLS(X)                                                                                                \
    X(remat_graph_create(NULL))                                                                                        \
    X(remat_graph_resized(NULL, 4, 2, 0, 0, &graph_made))                                                              \
    X(remat_graph_resized(graph, 4, 2, 0, 0, NULL))                                                                    \
    X(remat_value_describe(NULL, loss, &value_info))                                                                   \
    X(remat_value_describe(graph, loss, NULL))                                                                         \
    X(remat_graph_check(NULL))                                                                                         \
    X(remat_session_create(NULL, loss, &config, &made))                                                                \
    X(remat_session_create(graph, loss, NULL, &made))                                                                  \
    X(remat_session_create(graph, loss, &config, NULL))                                                                \
    X(remat_train_only(NULL, "w"))                                                                                     \
    X(remat_set_dropout(NULL, 0))                                                                                      \
    X(remat_save(NULL, "x", REMAT_WEIGHTS))                                                                            \
    X(remat_save(session, NULL, REMAT_WEIGHTS))                                                                        \
    X(remat_load(NULL, "x", REMAT_WEIGHTS))                                                                            \
    X(remat_load(session, NULL, REMAT_WEIGHTS))                                                                        \
    X(remat_copy_parameters(NULL, session))                                                                            \
    X(remat_copy_parameters(session, NULL))                                                                            \
    X(remat_config_defaults(NULL))                                                                                     \
    X(remat_session_plan(NULL, &plan))                                                                                 \
    X(remat_session_plan(session, NULL))                                                                               \
    X(remat_session_products(NULL, &products))                                                                         \
    X(remat_session_products(session, NULL))                                                                           \
    X(remat_session_recordings(NULL, &recordings))                                                                     \
    X(remat_session_recordings(session, NULL))                                                                         \
    X(remat_bucket_info(NULL, 0, &bucket))                                                                             \
    X(remat_bucket_info(session, 0, NULL))                                                                             \
    X(remat_builder_info(0, NULL))                                                                                     \
    X(remat_build(NULL))                                                                                               \
    X(remat_plan_pareto(NULL, &points, &count))                                                                        \
    X(remat_plan_pareto(session, NULL, &count))                                                                        \
    X(remat_plan_pareto(session, &points, NULL))                                                                       \
    X(remat_plan_timeline(NULL, &live, &count))                                                                        \
    X(remat_plan_timeline(session, NULL, &count))                                                                      \
    X(remat_plan_timeline(session, &live, NULL))                                                                       \
    X(remat_trace_next(NULL))                                                                                          \
    X(remat_traced_timeline(NULL, &live, &count))                                                                      \
    X(remat_traced_timeline(session, NULL, &count))                                                                    \
    X(remat_traced_timeline(session, &live, NULL))                                                                     \
    X(remat_join(NULL, &job))                                                                                          \
    X(remat_join(&(remat_job_config){.struct_bytes = sizeof(remat_job_config), .world_size = 1}, NULL))                \
    X(remat_job_begin(NULL, session))                                                                                  \
    X(remat_job_begin(job, NULL))                                                                                      \
    X(remat_job_share_buffers(NULL, session))                                                                          \
    X(remat_job_share_buffers(job, NULL))                                                                              \
    X(remat_job_sum(NULL, &number, 1))                                                                                 \
    X(remat_job_sum(job, NULL, 1))                                                                                     \
    X(remat_sampler_create(NULL, &sampler))                                                                            \
    X(remat_sampler_create(                                                                                            \
        &(remat_sampler_config){.struct_bytes = sizeof(remat_sampler_config), .n = 5, .replicas = 1}, NULL))           \
    X(remat_array_info(NULL, REMAT_PARAM, 0, &array))                                                                  \
    X(remat_array_info(session, REMAT_PARAM, 0, NULL))                                                                 \
    X(remat_array_memory(NULL, REMAT_PARAM, 0, &memory))                                                               \
    X(remat_array_memory(session, REMAT_PARAM, 0, NULL))                                                               \
    X(remat_write(NULL, REMAT_PARAM, 0, data, sizeof data))                                                            \
    X(remat_write(session, REMAT_PARAM, 0, NULL, sizeof data))                                                         \
    X(remat_read(NULL, REMAT_PARAM, 0, data, sizeof data))                                                             \
    X(remat_read(session, REMAT_PARAM, 0, NULL, sizeof data))                                                          \
    X(remat_write_part(NULL, REMAT_PARAM, 0, 0, data, 4))                                                              \
    X(remat_write_part(session, REMAT_PARAM, 0, 0, NULL, 4))                                                           \
    X(remat_read_part(NULL, REMAT_PARAM, 0, 0, data, 4))                                                               \
    X(remat_read_part(session, REMAT_PARAM, 0, 0, NULL, 4))                                                            \
    X(remat_timeline_open(NULL, &timeline))                                                                            \
    X(remat_timeline_open(&(remat_timeline_config){.struct_bytes = sizeof(remat_timeline_config), .path = "x"}, NULL)) \
    X(remat_pipeline_read(NULL, REMAT_PARAM, 0, 0, data, 4))                                                           \
    X(remat_pipeline_read(session, REMAT_PARAM, 0, 0, NULL, 4))                                                        \
    X(remat_forward(NULL))                                                                                             \
    X(remat_backward(NULL, NULL))                                                                                      \
    X(remat_gradients(NULL, NULL))                                                                                     \
    X(remat_update(NULL, 0.1, NULL))                                                                                   \
    X(remat_step(NULL, 0.1, NULL))                                                                                     \
    X(remat_evaluate(NULL, NULL))                                                                                      \
    X(remat_set_external(NULL, REMAT_INPUT, 0, text, 4))                                                               \
    X(remat_set_external(session, REMAT_INPUT, 0, NULL, 4))                                                            \
    X(remat_set_sequence_end(NULL, 8, 4))                                                                              \
    X(remat_device_check(NULL))                                                                                        \
    X(remat_refuse(NULL))                                                                                              \
    X(remat_op_check(NULL, &op, NULL))                                                                                 \
    X(remat_op_check(&op, NULL, NULL))                                                                                 \
    X(remat_apply(NULL, &op, &loss, 1, NULL, &none))                                                                   \
    X(remat_apply(graph, NULL, &loss, 1, NULL, &none))                                                                 \
    X(remat_apply(graph, &op, NULL, 1, NULL, &none))                                                                   \
    X(remat_apply(graph, &op, &loss, 1, NULL, NULL))

/* Calls that return 0, -1 or NULL; the comparison says which. */
#define OTHER_CALLS(X)                                                                                                 \
    X(remat_input(NULL, "y", REMAT_F32, REMAT_SEQUENCE, 3, dim).id == 0)                                               \
    X(remat_input(graph, NULL, REMAT_F32, REMAT_SEQUENCE, 3, dim).id == 0)                                             \
    X(remat_input(graph, "y", REMAT_F32, REMAT_SEQUENCE, 3, NULL).id == 0)                                             \
    X(remat_param(NULL, "y", 1, dim, remat_init_zero()).id == 0)                                                       \
    X(remat_param(graph, NULL, 1, dim, remat_init_zero()).id == 0)                                                     \
    X(remat_param(graph, "y", 1, NULL, remat_init_zero()).id == 0)                                                     \
    X(remat_requires_grad(NULL, none).id == 0)                                                                         \
    X(remat_embedding(NULL, none, none).id == 0)                                                                       \
    X(remat_linear(NULL, none, none, none).id == 0)                                                                    \
    X(remat_lstm(NULL, none, none, none, none, none).id == 0)                                                          \
    X(remat_gru(NULL, none, none, none, none, none).id == 0)                                                           \
    X(remat_rnn_tanh(NULL, none, none, none, none, none).id == 0)                                                      \
    X(remat_rnn_relu(NULL, none, none, none, none, none).id == 0)                                                      \
    X(remat_buffer(NULL, "y", 1, dim, remat_init_zero()).id == 0)                                                      \
    X(remat_batch_norm(NULL, none, none, none, none, none, 0.1, 1e-5, true).id == 0)                                   \
    X(remat_conv2d(NULL, none, none, none, NULL, NULL, NULL, 1).id == 0)                                               \
    X(remat_conv_transpose2d(NULL, none, none, none, NULL, NULL, NULL, 1, NULL).id == 0)                               \
    X(remat_conv1d(NULL, none, none, none, 1, 0, 1, 1).id == 0)                                                        \
    X(remat_max_pool2d(NULL, none, dim, NULL, NULL).id == 0)                                                           \
    X(remat_avg_pool2d(NULL, none, NULL, NULL, NULL).id == 0)                                                          \
    X(remat_matmul(NULL, none, none, none).id == 0)                                                                    \
    X(remat_batched_matmul(NULL, none, none, false).id == 0)                                                           \
    X(remat_positions(NULL, none, none).id == 0)                                                                       \
    X(remat_gelu_tanh(NULL, none).id == 0)                                                                             \
    X(remat_silu(NULL, none).id == 0)                                                                                  \
    X(remat_mean(NULL, none, 1).id == 0)                                                                               \
    X(remat_as_sequence(NULL, none).id == 0)                                                                           \
    X(remat_reshape(NULL, none, 1, dim).id == 0)                                                                       \
    X(remat_reshape(graph, remat_input(graph, "z", REMAT_F32, REMAT_STATIC, 1, dim), 1, NULL).id == 0)                 \
    X(remat_linear_scan(NULL, none, none, none).id == 0)                                                               \
    X(remat_reset_states(NULL, none, none).id == 0)                                                                    \
    X(remat_step_at(NULL, none, none).id == 0)                                                                         \
    X(remat_upsample2d(NULL, none, NULL, REMAT_NEAREST).id == 0)                                                       \
    X(remat_pad2d(NULL, none, NULL, NULL).id == 0)                                                                     \
    X(remat_transpose(NULL, none, 0, 1).id == 0)                                                                       \
    X(remat_group_norm(NULL, none, 1, none, none, 1e-5).id == 0)                                                       \
    X(remat_min_gru(NULL, none).id == 0)                                                                               \
    X(remat_delta_scan(NULL, none, none, none, none, none, none, none, 0, false).id == 0)                              \
    X(remat_headwise_linear(NULL, none, none, none).id == 0)                                                           \
    X(remat_shift(NULL, none, 1).id == 0)                                                                              \
    X(remat_ssd(NULL, none, none, none, none, none, none, none, 1).id == 0)                                            \
    X(remat_mlstm(NULL, none, none, none, none, none).id == 0)                                                         \
    X(remat_rwkv7(NULL, none, none, none, none, none, none, 1).id == 0)                                                \
    X(remat_rg_lru(NULL, none, none, none, none, none).id == 0)                                                        \
    X(remat_m2rnn(NULL, none, none, none, none, none).id == 0)                                                         \
    X(remat_ndm(NULL, none, none, none, none).id == 0)                                                                 \
    X(remat_slstm(NULL, none, none, none).id == 0)                                                                     \
    X(remat_min_lstm(NULL, none).id == 0)                                                                              \
    X(remat_selective_scan(NULL, none, none, none, none, none, none, none, none).id == 0)                              \
    X(remat_lstm_projected(NULL, none, none, none, none, none, none).id == 0)                                          \
    X(remat_causal_conv(NULL, none, none, none).id == 0)                                                               \
    X(remat_rms_norm(NULL, none, none, 1e-5).id == 0)                                                                  \
    X(remat_layer_norm(NULL, none, none, none, 1e-5).id == 0)                                                          \
    X(remat_rotary(NULL, none, 1, 10000).id == 0)                                                                      \
    X(remat_attention(NULL, none, none, none, 1, true).id == 0)                                                        \
    X(remat_cross_attention(NULL, none, none, none, 1, none).id == 0)                                                  \
    X(remat_dropout(NULL, none, 0.5).id == 0)                                                                          \
    X(remat_add(NULL, none, none).id == 0)                                                                             \
    X(remat_mul(NULL, none, none).id == 0)                                                                             \
    X(remat_scale(NULL, none, 2).id == 0)                                                                              \
    X(remat_sigmoid(NULL, none).id == 0)                                                                               \
    X(remat_tanh(NULL, none).id == 0)                                                                                  \
    X(remat_relu(NULL, none).id == 0)                                                                                  \
    X(remat_gelu(NULL, none).id == 0)                                                                                  \
    X(remat_concat(NULL, &none, 2).id == 0)                                                                            \
    X(remat_concat(graph, NULL, 2).id == 0)                                                                            \
    X(remat_concat_axis(NULL, &none, 2, 0).id == 0)                                                                    \
    X(remat_concat_axis(graph, NULL, 2, 0).id == 0)                                                                    \
    X(remat_sub(NULL, none, none).id == 0)                                                                             \
    X(remat_window_attention(NULL, none, none, none, 1, 2).id == 0)                                                    \
    X(remat_local_attention(NULL, none, none, none, 1, 2, 0, 1).id == 0)                                               \
    X(remat_attention_dropout(NULL, none, none, none, 1, false, none, 0.1).id == 0)                                    \
    X(remat_biased_attention(NULL, none, none, none, 1, false, none, none, 0.1).id == 0)                               \
    X(remat_exp(NULL, none).id == 0)                                                                                   \
    X(remat_softplus(NULL, none).id == 0)                                                                              \
    X(remat_log(NULL, none).id == 0)                                                                                   \
    X(remat_sqrt(NULL, none).id == 0)                                                                                  \
    X(remat_norm_root(NULL, none).id == 0)                                                                             \
    X(remat_rsqrt(NULL, none).id == 0)                                                                                 \
    X(remat_reciprocal(NULL, none).id == 0)                                                                            \
    X(remat_sin(NULL, none).id == 0)                                                                                   \
    X(remat_cos(NULL, none).id == 0)                                                                                   \
    X(remat_erf(NULL, none).id == 0)                                                                                   \
    X(remat_log1p(NULL, none).id == 0)                                                                                 \
    X(remat_stop_gradient(NULL, none).id == 0)                                                                         \
    X(remat_expm1(NULL, none).id == 0)                                                                                 \
    X(remat_div(NULL, none, none).id == 0)                                                                             \
    X(remat_masked(NULL, none, none).id == 0)                                                                          \
    X(remat_pick(NULL, none, none).id == 0)                                                                            \
    X(remat_clamp(NULL, none, 0, 1).id == 0)                                                                           \
    X(remat_hardtanh(NULL, none, 0, 1).id == 0)                                                                        \
    X(remat_slice(NULL, none, 0, 1).id == 0)                                                                           \
    X(remat_scan(NULL, NULL, NULL, NULL).id == 0)                                                                      \
    X(remat_reverse(NULL, none).id == 0)                                                                               \
    X(remat_initial_state(NULL, none, 0, none).id == 0)                                                                \
    X(remat_final_state(NULL, none, 0).id == 0)                                                                        \
    X(remat_last_step(NULL, none).id == 0)                                                                             \
    X(remat_mean_over_time(NULL, none).id == 0)                                                                        \
    X(remat_sum_over_time(NULL, none).id == 0)                                                                         \
    X(remat_sum(NULL, none, 1).id == 0)                                                                                \
    X(remat_max_over_time(NULL, none).id == 0)                                                                         \
    X(remat_running_max(NULL, none).id == 0)                                                                           \
    X(remat_softmax_cross_entropy(NULL, none, none).id == 0)                                                           \
    X(remat_softmax_cross_entropy_smoothed(NULL, none, none, 0.1).id == 0)                                             \
    X(remat_softmax_cross_entropy_weighted(NULL, none, none, none, -100, 0).id == 0)                                   \
    X(remat_dice(NULL, none, none, -1, false).id == 0)                                                                 \
    X(remat_mae(NULL, none, none).id == 0)                                                                             \
    X(remat_bce_with_logits(NULL, none, none).id == 0)                                                                 \
    X(remat_mse_padded(NULL, none, none, none).id == 0)                                                                \
    X(remat_mae_padded(NULL, none, none, none).id == 0)                                                                \
    X(remat_huber_padded(NULL, none, none, none, 1).id == 0)                                                           \
    X(remat_bce_with_logits_padded(NULL, none, none, none).id == 0)                                                    \
    X(remat_softmax(NULL, none).id == 0)                                                                               \
    X(remat_log_softmax(NULL, none).id == 0)                                                                           \
    X(remat_huber(NULL, none, none, 1).id == 0)                                                                        \
    X(remat_ctc(NULL, none, none, none, none, 0, false).id == 0)                                                       \
    X(remat_mse(NULL, none, none).id == 0)                                                                             \
    X(remat_plan_describe(NULL) == NULL)                                                                               \
    X(remat_plan_stages_json(NULL) == NULL)                                                                            \
    X(remat_plan_peak_json(NULL) == NULL)                                                                              \
    X(remat_plan_convolutions_json(NULL) == NULL)                                                                      \
    X(remat_plan_steps_text(NULL) == NULL)                                                                             \
    X(remat_plan_problem_text(NULL) == NULL)                                                                           \
    X(remat_settings_text(NULL) == NULL)                                                                               \
    X(remat_bucket_count(NULL) == 0)                                                                                   \
    X(remat_job_rank(NULL) == 0)                                                                                       \
    X(remat_job_size(NULL) == 0)                                                                                       \
    X(remat_job_ranks(NULL) == NULL)                                                                                   \
    X(remat_job_pipeline(NULL) == NULL)                                                                                \
    X(remat_sampler_count(NULL) == 0)                                                                                  \
    X(remat_sampler_at(NULL, 0) == -1)                                                                                 \
    X(remat_count(NULL, REMAT_PARAM) == 0)                                                                             \
    X(remat_find(NULL, REMAT_PARAM, "w") == -1)                                                                        \
    X(remat_find(session, REMAT_PARAM, NULL) == -1)                                                                    \
    X(remat_last_lr(NULL) == 0)                                                                                        \
    X(remat_step_count(NULL) == 0)                                                                                     \
    X(remat_desc_count(NULL) == 0)                                                                                     \
    X(remat_desc_bytes(NULL) == 0)                                                                                     \
    X(remat_desc_text(NULL, text) == NULL)                                                                             \
    X(remat_desc_text(&desc, NULL) == NULL)                                                                            \
    X(remat_correct(NULL, &(int32_t){0}, 1, 2, 1) == 0)                                                                \
    X(remat_correct(&(float){0}, NULL, 1, 2, 1) == 0)                                                                  \
    X(remat_pipeline_parts(NULL) == 0)                                                                                 \
    X(remat_pipeline_part(NULL, 0) == REMAT_INVALID)                                                                   \
    X(remat_pipeline_cut(NULL) == NULL)                                                                                \
    X(remat_timeline_observer(NULL) == NULL)                                                                           \
    X(remat_timeline_close(NULL) == REMAT_OK)                                                                          \
    X(remat_random(NULL, 0, 0) == 0)                                                                                   \
    X((remat_sum_over_ranks(NULL, NULL, 0), true))                                                                     \
    X(remat_cuda_stream(NULL) == NULL)                                                                                 \
    X((remat_graph_free(NULL), true))                                                                                  \
    X((remat_graph_forget_mistake(NULL), true))                                                                        \
    X((remat_session_free(NULL), true))                                                                                \
    X((remat_text_free(NULL), true))                                                                                   \
    X((remat_leave(NULL), true))                                                                                       \
    X((remat_sampler_free(NULL), true))                                                                                \
    X((remat_sampler_set_epoch(NULL, 1), true))                                                                        \
    X((remat_set_step_count(NULL, 1), true))                                                                           \
    X((remat_set_last_lr(NULL, 0.1), true))

#define TEXT_OF(call) #call,
static const char *const status_calls[] = {STATUS_CALLS(TEXT_OF)}, *const other_calls[] = {OTHER_CALLS(TEXT_OF)};
enum { N_STATUS = sizeof status_calls / sizeof *status_calls, N_OTHER = sizeof other_calls / sizeof *other_calls };

/* The message starts with the function, or with the array to be copied. */
static void expect_invalid(remat_status status, const char *call) {
    const char *said = remat_last_error();
    size_t length = strcspn(call, "(");
    ck_assert_msg(status == REMAT_INVALID, "%s: %s", call, remat_status_text(status));
    ck_assert_msg(strstr(said, "NULL") && (!strncmp(said, call, length) || !strncmp(said, "w: ", 3)), "%s says \"%s\"",
                  call, said);
}

START_TEST(null_gives_status_invalid) {
#define EXPECT_INVALID(call) expect_invalid(call, #call);
    STATUS_CALLS(EXPECT_INVALID)
}
END_TEST

START_TEST(null_gives_an_empty_value) {
#define EXPECT_NOTHING(call) ck_assert_msg(call, "%s", #call);
    OTHER_CALLS(EXPECT_NOTHING)
}
END_TEST

/* Optional pointers may be NULL. */
START_TEST(null_results_are_allowed) {
    float x[24] = {0};
    CHECKED(remat_write(session, REMAT_INPUT, 0, x, sizeof x));
    CHECKED(remat_gradients(session, NULL));
    CHECKED(remat_evaluate(session, NULL));
    CHECKED(remat_write_part(session, REMAT_PARAM, 0, 0, NULL, 0));
    CHECKED(remat_job_sum(job, NULL, 0));
}
END_TEST

static bool is_tried(const char *name) {
    for (int i = 0; i < N_STATUS + N_OTHER; i++) {
        const char *call = i < N_STATUS ? status_calls[i] : other_calls[i - N_STATUS];
        while (*call == '(') call++;
        size_t length = strlen(name);
        if (!strncmp(call, name, length) && call[length] == '(') return true;
    }
    return false;
}

/* The headers' text without comments. The caller frees it. */
static char *read_headers(void) {
    static const char *const path[] = {RM_SOURCE_DIR "/engine/remat/graph.h",   RM_SOURCE_DIR "/engine/remat/layers.h",
                                       RM_SOURCE_DIR "/engine/remat/observe.h", RM_SOURCE_DIR "/engine/remat/ranks.h",
                                       RM_SOURCE_DIR "/engine/remat/report.h",  RM_SOURCE_DIR "/engine/remat/session.h",
                                       RM_SOURCE_DIR "/engine/remat_op.h"};
    enum { FILES = sizeof path / sizeof *path };
    char *text = calloc(FILES, 1 << 20), *end_of_text = text;
    for (int i = 0; i < FILES; i++) {
        FILE *file = fopen(path[i], "r");
        ck_assert_ptr_nonnull(file);
        size_t length = fread(end_of_text, 1, (1 << 20) - 1, file);
        ck_assert_uint_gt(length, 0);
        end_of_text += length;
        fclose(file);
    }
    for (char *at = text; (at = strstr(at, "/*"));) {
        char *end = strstr(at, "*/") + 2;
        memset(at, ' ', (size_t)(end - at));
    }
    return text;
}

/* The number of functions called above. Calls of one function are adjacent. */
static int count_tried(void) {
    int n = 0;
    const char *last = "";
    for (int i = 0; i < N_STATUS + N_OTHER; i++) {
        const char *call = i < N_STATUS ? status_calls[i] : other_calls[i - N_STATUS];
        while (*call == '(') call++;
        size_t length = strcspn(call, "(") + 1;
        n += strncmp(call, last, length) != 0;
        last = call;
    }
    return n;
}

/* A prototype is a name that starts with remat_, followed by parameters, one of them a pointer. */
START_TEST(every_public_function_is_called) {
    char *header = read_headers();
    int found = 0;
    for (const char *at = header; (at = strstr(at, "remat_"));) {
        char name[64];
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
        const char *begin = at;
        at += length;
        bool within = begin > header && (isalnum((unsigned char)begin[-1]) || begin[-1] == '_');
        within |= begin - header > 13 && !strncmp(begin - 13, "typedef void ", 13);
        const char *end = strchr(at, ')');
        if (*at != '(' || within || !end || end[1] != ';' || !memchr(at, '*', (size_t)(end - at))) continue;
        ck_assert_uint_lt(length, sizeof name);
        snprintf(name, sizeof name, "%.*s", (int)length, begin);
        ck_assert_msg(is_tried(name), "%s takes a pointer, but is not called above", name);
        found++;
    }
    ck_assert_int_eq(found, count_tried());
    free(header);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("null");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, null_gives_status_invalid);
    tcase_add_test(tests, null_gives_an_empty_value);
    tcase_add_test(tests, null_results_are_allowed);
    tcase_add_test(tests, every_public_function_is_called);
    return run_cases("null", tests);
}
