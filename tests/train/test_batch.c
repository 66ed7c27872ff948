/* test_batch.c: the fields of a batch: which data have which fields, their bytes, and that models read no others. */
#include "train/data/batch.h"
#include "train/models/model.h"

#include <string.h>

#include "memory/host.h"
#include "tests/train/train_test.h"

enum { T = 6, B = 3 };

/* "length ends": the fields beside input and target, and the bytes of all but class weights. */
static const struct {
    const char *fields;
    int64_t bytes;
    rm_data_shape shape;
} cases[] = {
    {"", 4 * (2 * T * B), {.timesteps = T, .vocabulary = 9, .classes = 9, .every_step = true}},
    {"begins", 4 * (3 * T * B), {.timesteps = T, .vocabulary = 9, .classes = 9, .every_step = true, .documents = true}},
    {"", 4 * (T * B * 2 + B), {.timesteps = T, .features = 2, .classes = 4}},
    {"class_weights", 4 * (T * B * 2 + B), {.timesteps = T, .features = 2, .classes = 4, .weighted = true}},
    {"last length ends",
     4 * (T * B * 2 + B + 2 * B + T * B),
     {.timesteps = T, .features = 2, .classes = 4, .lengths = true}},
    {"last length ends",
     4 * (T * B * 2 + 5 * B + 2 * B + T * B),
     {.timesteps = T, .features = 2, .classes = 4, .labels = 5, .every_step = true, .lengths = true}},
    {"last length ends padding",
     4 * (T * B * 2 + T * B * 3 + 2 * B + 2 * T * B),
     {.timesteps = T, .features = 2, .values = 3, .every_step = true, .lengths = true}},
    {"begins padding previous",
     4 * (3 * T * B + 2 * 4 * B),
     {.timesteps = T, .answer_steps = 4, .vocabulary = 9, .classes = 8, .every_step = true}},
    {"",
     4 * (B * 3 * 4 * 4 + B * 16),
     {.timesteps = 1, .features = 48, .classes = 2, .pixels = 16, .channels = 3, .height = 4, .width = 4}},
};
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(fields_follow_from_the_shape) {
    char names[160] = "";
    rm_field field[RM_FIELDS];
    rm_dataset data = {.shape = cases[_i].shape};
    rm_batch batch;
    uint64_t sum = 0;
    data.class_weights = data.shape.weighted ? rm_calloc(4, sizeof(float)) : NULL;
    rm_data_fields(&data.shape, T, B, field);
    ck_ok(rm_batch_create(&data, B, &batch));
    for (int i = 0; i < RM_FIELDS; i++) {
        ck_assert((field[i].name != NULL) == (batch.data[i] != NULL));
        if (i >= RM_LAST && field[i].name) sprintf(names + strlen(names), "%s%s", *names ? " " : "", field[i].name);
        if (i != RM_CLASS_WEIGHTS) sum += rm_field_bytes(&field[i]);
    }
    ck_assert_str_eq(names, cases[_i].fields);
    ck_assert(data.shape.channels || sum == (uint64_t)cases[_i].bytes);
    ck_assert_uint_eq(batch.bytes, (uint64_t)cases[_i].bytes);
    uint64_t weights = data.shape.weighted ? 4 * sizeof(float) : 0;
    ck_assert_uint_eq(rm_data_batch_bytes(&data.shape, B, 2), 2 * batch.bytes + weights);
    ck_assert_ptr_eq(batch.data[RM_CLASS_WEIGHTS], data.class_weights);
    rm_batch_free(&batch);
    rm_free(data.class_weights);
}
END_TEST

START_TEST(too_large_batches_are_refused) {
    rm_dataset data = {.shape = {.timesteps = INT64_C(1) << 40, .features = 1 << 20, .values = 1}};
    rm_batch batch;
    ck_fails(rm_batch_create(&data, 1 << 20, &batch), REMAT_MEMORY, "memory|batch|1048576 samples");
    rm_batch_free(&batch);
}
END_TEST

/* Inputs of a graph have names, types and shapes of fields. */
START_TEST(models_read_only_fields) {
    rm_model_spec spec = {.name = "lstm", .layers = 1, .hidden = 4, .embed = 4, .data = cases[_i].shape};
    rm_field field[RM_FIELDS];
    rm_model model;
    remat_session *session;
    remat_config config = REMAT_CONFIG_INIT;
    config.plan_only = true;
    if (spec.data.channels) spec.name = "unet", spec.hidden = 2;
    rm_data_fields(&spec.data, T, B, field);
    ck_ok(rm_model_build(&spec, B, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &session));
    for (int64_t i = 0; i < remat_count(session, REMAT_INPUT); i++) {
        remat_array info;
        int at = 0;
        ck_ok(remat_array_info(session, REMAT_INPUT, i, &info));
        while (at < RM_FIELDS && !(field[at].name && !strcmp(field[at].name, info.name))) at++;
        ck_assert_msg(at < RM_FIELDS, "%s is no field", info.name);
        ck_assert_uint_eq(info.bytes, rm_field_bytes(&field[at]));
        ck_assert(i > 1 || at == (i ? RM_TARGET : RM_INPUT));
    }
    remat_session_free(session);
    rm_model_free(&model);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("batch");
    tcase_add_loop_test(tests, fields_follow_from_the_shape, 0, CASES);
    tcase_add_test(tests, too_large_batches_are_refused);
    tcase_add_loop_test(tests, models_read_only_fields, 0, CASES);
    return run_suite("train/batch", tests);
}
