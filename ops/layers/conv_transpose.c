/* conv_transpose.c: the op `conv_transpose`, PyTorch's ConvTranspose2d. Its kernels are in conv_kernels.h.
 *
 * In memory x is (images, channels, h, w); the leading axes count images. */
#include "ops/layers/conv_kernels.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    static const char *const axis[] = {"height", "width"};
    const rm_conv_attr *a = attr;
    char x_text[REMAT_DESC_TEXT], w_text[REMAT_DESC_TEXT];
    TRY(rm_want_real("conv_transpose", "x", &x[X]));
    TRY(rm_want_real("conv_transpose", "w", &x[W]));
    TRY(rm_want_rank("conv_transpose", "w", &x[W], 4, 4));
    TRY(rm_want_rank("conv_transpose", "x", &x[X], 4, REMAT_MAX_RANK));
    TRY(check_attr("conv_transpose", a, 0));
    int64_t channels = x[X].dim[x[X].rank - 3];
    rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text);
    REQUIRE(channels == x[W].dim[0] && channels % a->groups == 0, INVALID,
            "conv_transpose: x is %s, with %lld channels, w is %s, and groups is %lld; w must be (channels, outputs / "
            "groups, h, w), and groups must divide the channels",
            x_text, (long long)channels, w_text, (long long)a->groups);
    for (int d = 0; d < 2; d++)
        REQUIRE(a->output_padding[d] >= 0 &&
                    (a->output_padding[d] < a->stride[d] || a->output_padding[d] < a->dilation[d]),
                INVALID,
                "conv_transpose: along the %s, output_padding is %lld; it must be 0 or more, and less than the stride, "
                "%lld, or the dilation, %lld",
                axis[d], (long long)a->output_padding[d], (long long)a->stride[d], (long long)a->dilation[d]);
    if (x[B].rank >= 0) TRY(rm_want_vector("conv_transpose", "b", &x[B], x[W].dim[1] * a->groups));
    rm_conv_shape s = rm_conv_shape_of(&x[X], &x[W], a);
    for (int d = 0; d < 2; d++)
        REQUIRE(s.in[d] > 0, INVALID,
                "conv_transpose: along the %s, a padding of %lld at both ends leaves nothing of the result of %lld; "
                "lower the padding",
                axis[d], (long long)s.padding[d], (long long)(s.in[d] + 2 * s.padding[d]));
    *y = x[X];
    y->dim[x[X].rank - 3] = s.groups * s.channels, y->dim[x[X].rank - 2] = s.in[0], y->dim[x[X].rank - 1] = s.in[1];
    return REMAT_OK;
}

#define TRANSPOSED .transposed = 1
static const rm_conv_attr twice = {{2, 2}, {0, 0}, {1, 1}, 1, TRANSPOSED},
                          same = {{1, 1}, {1, 1}, {1, 1}, 1, TRANSPOSED},
                          mixed = {{2, 1}, {1, 2}, {1, 2}, 2, TRANSPOSED, {1, 1}},
                          sparse = {{3, 4}, {0, 1}, {1, 2}, 1, TRANSPOSED, {2, 3}},
                          plain = {{1, 1}, {0, 0}, {2, 1}, 1, TRANSPOSED, {1, 0}},
                          single = {{1, 1}, {0, 0}, {1, 1}, 1, TRANSPOSED},
                          thin = {{2, 1}, {1, 0}, {1, 2}, 3, TRANSPOSED, {1, 0}};
static const remat_sample samples[] = {
    {.name = "twice the size",
     .attr = &twice,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 3, 4), RM_SHAPE4(RM_REAL, 3, 2, 2, 2), RM_SHAPE1(RM_REAL, 2)}},
    {.name = "groups, strides, dilations, output padding, no bias",
     .attr = &mixed,
     .x = {RM_SHAPE4(RM_REAL, 2, 4, 3, 4), RM_SHAPE4(RM_REAL, 4, 3, 3, 2), RM_ABSENT}},
    {.name = "pixels of bias alone",
     .attr = &sparse,
     .x = {RM_SHAPE4(RM_REAL, 1, 3, 3, 2), RM_SHAPE4(RM_REAL, 3, 4, 2, 2), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "filters of one pixel",
     .attr = &plain,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 2, 3), RM_SHAPE4(RM_REAL, 3, 5, 1, 1), RM_SHAPE1(RM_REAL, 5)}},
    {.name = "filters of one pixel, no output padding",
     .attr = &single,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 2, 3), RM_SHAPE4(RM_REAL, 3, 5, 1, 1), RM_SHAPE1(RM_REAL, 5)}},
    {.name = "depthwise, many taps",
     .attr = &thin,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 3), RM_SHAPE4(RM_REAL, 3, 1, 3, 4), RM_SHAPE1(RM_REAL, 3)}},
    {.name = "a sequence of images",
     .sequence = true,
     .attr = &same,
     .x = {{RM_REAL, 5, {4, 2, 2, 3, 3, 1, 1, 1}}, RM_SHAPE4(RM_REAL, 2, 3, 3, 3), RM_SHAPE1(RM_REAL, 3)}},
    {.name = "large enough for threads, blocks and the library",
     .attr = &same,
     .x = {RM_SHAPE4(RM_REAL, 1, 64, 21, 23), RM_SHAPE4(RM_REAL, 64, 5, 3, 3), RM_SHAPE1(RM_REAL, 5)}},
};

const remat_op RM_OP(conv_transpose) = {
    .struct_bytes = sizeof(remat_op),
    .name = "conv_transpose",
    .doc = "y (N,O,H',W') = x (N,C,H,W) transposed convolution with w (C,O/groups,h,w) + optional b (O)",
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
           {.forward = RM_CUDA(conv_transpose, forward),
            .backward = RM_CUDA(conv_transpose, backward),
            .scratch_bytes = RM_FAST(scratch_bytes_cuda, NULL)}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .first_for = 1u << W,
};
