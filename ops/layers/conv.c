/* conv.c: the op `conv`, PyTorch's Conv1d and Conv2d (cross-correlation). Its kernels are in conv_kernels.h.
 *
 * In memory x is (images, channels, h, w); the leading axes count images, and 1D convolutions have h = 1. */
#include "ops/layers/conv_kernels.h"

#ifndef RM_REAL_DOUBLE
int64_t rm_conv_most_columns = 1 << 15;
#endif

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    static const char *const axis[] = {"height", "width"};
    const rm_conv_attr *a = attr;
    char x_text[REMAT_DESC_TEXT], w_text[REMAT_DESC_TEXT];
    TRY(rm_want_real("conv", "x", &x[X]));
    TRY(rm_want_real("conv", "w", &x[W]));
    TRY(rm_want_rank("conv", "w", &x[W], 3, 4));
    TRY(rm_want_rank("conv", "x", &x[X], x[W].rank, REMAT_MAX_RANK));
    TRY(check_attr("conv", a, x[W].rank == 3));
    int64_t channels = x[X].dim[x[X].rank - x[W].rank + 1];
    rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text);
    REQUIRE(channels == x[W].dim[1] * a->groups && x[W].dim[0] % a->groups == 0, INVALID,
            "conv: x is %s, with %lld channels, w is %s, and groups is %lld; w must be (outputs, channels / groups, "
            "...), and groups must divide both outputs and channels",
            x_text, (long long)channels, w_text, (long long)a->groups);
    if (x[B].rank >= 0) TRY(rm_want_vector("conv", "b", &x[B], x[W].dim[0]));
    rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], a);
    for (int d = x[W].rank == 3; d < 2; d++)
        REQUIRE(s.out[d] > 0, INVALID,
                "conv: along the %s, a filter of %lld with dilation %lld does not fit into %lld with a padding of %lld "
                "at both ends",
                axis[d], (long long)s.filter[d], (long long)s.dilation[d], (long long)s.in[d], (long long)s.padding[d]);
    *y = x[X];
    y->dim[x[X].rank - x[W].rank + 1] = x[W].dim[0];
    if (x[W].rank == 4) y->dim[x[X].rank - 2] = s.out[0];
    y->dim[x[X].rank - 1] = s.out[1];
    return REMAT_OK;
}

static const rm_conv_attr plain = {{1, 1}, {0, 0}, {1, 1}, .groups = 1}, same = {{1, 1}, {1, 1}, {1, 1}, .groups = 1},
                          mixed = {{2, 1}, {1, 2}, {1, 2}, .groups = 2}, deep = {{1, 2}, {2, 1}, {2, 1}, .groups = 4},
                          thin = {{2, 1}, {1, 2}, {1, 1}, .groups = 3}, along = {{1, 2}, {0, 3}, {1, 2}, .groups = 1};
#define SHAPE5(a, b, c, d, e)                                                                                          \
    {                                                                                                                  \
        RM_REAL, 5, { a, b, c, d, e, 1, 1, 1 }                                                                         \
    }
static const remat_sample samples[] = {
    {.name = "images",
     .attr = &same,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 5, 4), RM_SHAPE4(RM_REAL, 4, 3, 3, 3), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "groups, strides, dilations, no bias",
     .attr = &mixed,
     .x = {RM_SHAPE4(RM_REAL, 2, 4, 6, 7), RM_SHAPE4(RM_REAL, 6, 2, 3, 2), RM_ABSENT}},
    {.name = "depthwise",
     .attr = &deep,
     .x = {RM_SHAPE4(RM_REAL, 1, 4, 5, 5), RM_SHAPE4(RM_REAL, 4, 1, 3, 3), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "depthwise, two outputs per channel, many taps",
     .attr = &thin,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 6, 7), RM_SHAPE4(RM_REAL, 6, 1, 3, 4), RM_ABSENT}},
    {.name = "filters of one pixel",
     .attr = &plain,
     .x = {RM_SHAPE4(RM_REAL, 2, 5, 2, 3), RM_SHAPE4(RM_REAL, 3, 5, 1, 1), RM_ABSENT}},
    {.name = "one dimension",
     .attr = &along,
     .x = {RM_SHAPE3(RM_REAL, 2, 3, 11), RM_SHAPE3(RM_REAL, 4, 3, 3), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "a sequence of images",
     .sequence = true,
     .attr = &same,
     .x = {SHAPE5(4, 2, 2, 3, 3), RM_SHAPE4(RM_REAL, 3, 2, 3, 3), RM_SHAPE1(RM_REAL, 3)}},
    {.name = "large enough for threads, blocks and the library",
     .attr = &same,
     .x = {RM_SHAPE4(RM_REAL, 1, 64, 21, 23), RM_SHAPE4(RM_REAL, 5, 64, 3, 3), RM_SHAPE1(RM_REAL, 5)}},
};

const remat_op RM_OP(conv) = {
    .struct_bytes = sizeof(remat_op),
    .name = "conv",
    .doc = "y (N,O,H',W') = x (N,C,H,W) * filters w (O,C/groups,h,w) + optional b (O); or (N,C,L), (O,C/groups,l)",
    .n_in = 3,
    .optional = 1u << B,
    .shared = 1u << W | 1u << B,
    .attr_bytes = sizeof(rm_conv_attr),
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << W},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = FAST(forward), .backward = FAST(backward)},
           {.forward = RM_CUDA(conv, forward),
            .backward = RM_CUDA(conv, backward),
            .scratch_bytes = RM_FAST(scratch_bytes_cuda, NULL)}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .first_for = 1u << W,
};
