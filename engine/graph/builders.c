/* builders.c: the table of builders and their arguments (builders.def), for bindings. Main entry: remat_builder_info. */
#include "engine/abi.h"

/* The table's prototypes: one that differs from the header's does not compile. */
#define BUILDER(name, ...) remat_value remat_##name(remat_graph *graph __VA_ARGS__);
#define VALUE(name) , remat_value name
#define OPTIONAL_VALUE(name) , remat_value name
#define VALUES(name, length) , const remat_value *name
#define PAIR(name) , const int64_t name[2]
#define OPTIONAL_PAIR(name) , const int64_t name[2]
#define DIMS(name, length) , const int64_t *name
#define INT(name) , int name
#define INT64(name) , int64_t name
#define DOUBLE(name) , double name
#define BOOL(name) , bool name
#define TEXT(name) , const char *name
#define INIT(name) , remat_init name
#define DTYPE(name) , remat_dtype name
#define AXIS(name) , remat_axis name
#define UPSAMPLE(name) , remat_upsample name
#define CELL(name) , const remat_cell *name
#include "engine/graph/builders.def"

#define BUILDER(name, ...) static const remat_argument name##_arguments[] = {__VA_ARGS__};
#define VALUE(n) {.name = #n, .kind = REMAT_ARGUMENT_VALUE},
#define OPTIONAL_VALUE(n) {.name = #n, .kind = REMAT_ARGUMENT_VALUE, .optional = true},
#define VALUES(n, l) {.name = #n, .kind = REMAT_ARGUMENT_VALUES, .length_is = #l},
#define PAIR(n) {.name = #n, .kind = REMAT_ARGUMENT_INT64S, .length = 2},
#define OPTIONAL_PAIR(n) {.name = #n, .kind = REMAT_ARGUMENT_INT64S, .length = 2, .optional = true},
#define DIMS(n, l) {.name = #n, .kind = REMAT_ARGUMENT_INT64S, .length_is = #l},
#define INT(n) {.name = #n, .kind = REMAT_ARGUMENT_INT},
#define INT64(n) {.name = #n, .kind = REMAT_ARGUMENT_INT64},
#define DOUBLE(n) {.name = #n, .kind = REMAT_ARGUMENT_DOUBLE},
#define BOOL(n) {.name = #n, .kind = REMAT_ARGUMENT_BOOL},
#define TEXT(n) {.name = #n, .kind = REMAT_ARGUMENT_TEXT},
#define INIT(n) {.name = #n, .kind = REMAT_ARGUMENT_INIT},
#define DTYPE(n) {.name = #n, .kind = REMAT_ARGUMENT_DTYPE},
#define AXIS(n) {.name = #n, .kind = REMAT_ARGUMENT_AXIS},
#define UPSAMPLE(n) {.name = #n, .kind = REMAT_ARGUMENT_UPSAMPLE},
#define CELL(n) {.name = #n, .kind = REMAT_ARGUMENT_CELL},
#include "engine/graph/builders.def"

static const remat_builder builders[] = {
#define BUILDER(n, ...)                                                                                                \
    {.name = "remat_" #n, .arguments = n##_arguments, .n_arguments = sizeof n##_arguments / sizeof *n##_arguments},
#include "engine/graph/builders.def"
};

int64_t remat_builder_count(void) { return sizeof builders / sizeof *builders; }

remat_status remat_builder_info(int64_t index, remat_builder *out) {
    NEED(out, "a place for the result");
    REQUIRE(index >= 0 && index < remat_builder_count(), INVALID, "there is no builder %lld; there are 0 to %lld",
            (long long)index, (long long)remat_builder_count() - 1);
    *out = builders[index];
    return REMAT_OK;
}
