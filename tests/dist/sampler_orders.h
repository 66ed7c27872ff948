/* sampler_orders.h: made by make_sampler_orders.py with PyTorch 2.15.0. */
static const struct {
    remat_sampler_config config;
    int64_t epoch, count;
    uint64_t checksum;
    int64_t head[10]; /* the first of them */
} orders[] = {
    {{sizeof(remat_sampler_config), 4, 2, 0, true, false, 0}, 0, 2, 3u, {0, 3}},
    {{sizeof(remat_sampler_config), 4, 2, 1, true, false, 0}, 0, 2, 1000005u, {1, 2}},
    {{sizeof(remat_sampler_config), 4, 2, 0, true, false, 0}, 1, 2, 1000005u, {1, 2}},
    {{sizeof(remat_sampler_config), 4, 2, 1, true, false, 0}, 1, 2, 3000009u, {3, 0}},
    {{sizeof(remat_sampler_config), 1, 1, 0, true, false, 0}, 0, 1, 0u, {0}},
    {{sizeof(remat_sampler_config), 1, 3, 2, true, false, 5}, 2, 1, 0u, {0}},
    {{sizeof(remat_sampler_config), 2, 1, 0, true, false, 7}, 0, 2, 1000003u, {1, 0}},
    {{sizeof(remat_sampler_config), 2, 5, 4, true, false, 0}, 3, 1, 0u, {0}},
    {{sizeof(remat_sampler_config), 7, 1, 0, true, false, 0}, 0, 7, 6032714805321997615u, {4, 0, 5, 3, 2, 6, 1}},
    {{sizeof(remat_sampler_config), 7, 1, 0, true, false, 0}, 9, 7, 15515594248494706593u, {4, 5, 6, 0, 2, 1, 3}},
    {{sizeof(remat_sampler_config), 7, 3, 1, true, false, 123}, 4, 3, 3000023000043u, {3, 5, 1}},
    {{sizeof(remat_sampler_config), 7, 3, 2, true, true, 123}, 4, 2, 2000012u, {2, 6}},
    {{sizeof(remat_sampler_config), 10, 4, 3, false, false, 42}, 0, 3, 3000025000049u, {3, 7, 1}},
    {{sizeof(remat_sampler_config), 10, 4, 3, false, true, 42}, 0, 2, 3000016u, {3, 7}},
    {{sizeof(remat_sampler_config), 10, 4, 0, true, false, 2147483648}, 1, 3, 8000048000077u, {8, 0, 5}},
    {{sizeof(remat_sampler_config), 13, 2, 1, true, false, 4294967295}, 1, 7, 5163640939614288917u, {4, 2, 8, 5, 6, 1, 3}},
    {{sizeof(remat_sampler_config), 13, 2, 1, true, false, 4294967301}, 0, 7, 18090958820900356446u, {7, 8, 11, 4, 9, 10, 1}},
    {{sizeof(remat_sampler_config), 3, 8, 7, true, false, 1}, 1, 1, 2u, {2}},
    {{sizeof(remat_sampler_config), 1000, 1, 0, true, false, 0}, 0, 1000, 8170802712893681804u, {44, 37, 675, 775, 947, 209, 719, 500, 561, 264}},
    {{sizeof(remat_sampler_config), 1000, 7, 6, true, false, 99}, 12, 143, 17124637772134985264u, {567, 102, 966, 563, 144, 842, 582, 602, 151, 783}},
    {{sizeof(remat_sampler_config), 100003, 1, 0, true, false, 1}, 1, 100003, 10319125452670541603u, {27673, 5590, 51190, 37547, 5970, 53394, 51539, 64802, 56243, 76122}},
};
static const struct {
    remat_sampler_config config;
    int64_t epoch, batch;
    bool drop_last;
    int64_t batches, last; /* how many; length of the last one */
    uint64_t checksum; /* of indices, and n after each batch */
} cuts[] = {
    {{sizeof(remat_sampler_config), 4, 2, 0, true, false, 0}, 0, 2, false, 1, 2, 3000013u},
    {{sizeof(remat_sampler_config), 4, 2, 1, true, false, 0}, 1, 2, true, 1, 2, 3000018000031u},
    {{sizeof(remat_sampler_config), 7, 2, 1, true, false, 3}, 2, 2, true, 2, 2, 16560960337140242070u},
    {{sizeof(remat_sampler_config), 7, 2, 1, true, true, 3}, 2, 2, false, 2, 1, 2000025000101000139u},
    {{sizeof(remat_sampler_config), 7, 2, 1, true, true, 3}, 2, 2, true, 1, 2, 2000013u},
    {{sizeof(remat_sampler_config), 10, 3, 2, false, false, 1}, 0, 3, false, 2, 1, 14691878471416533370u},
    {{sizeof(remat_sampler_config), 10, 3, 2, false, false, 1}, 0, 3, true, 1, 3, 2000023000092000133u},
    {{sizeof(remat_sampler_config), 3, 1, 0, true, false, 0}, 0, 5, true, 0, 0, 0u},
    {{sizeof(remat_sampler_config), 3, 1, 0, true, false, 0}, 0, 5, false, 1, 3, 2000018000055000060u},
    {{sizeof(remat_sampler_config), 1000, 7, 6, true, false, 99}, 12, 16, false, 9, 15, 11444618376829975164u},
    {{sizeof(remat_sampler_config), 1000, 7, 6, true, true, 99}, 12, 16, true, 8, 16, 17966100428216193073u},
    {{sizeof(remat_sampler_config), 1000, 8, 3, true, true, 5}, 1, 25, true, 5, 25, 6847589125028084700u},
    {{sizeof(remat_sampler_config), 1000, 6, 5, true, true, 5}, 1, 1, true, 166, 1, 16774637852884118234u},
};
