/* test_minimal.c: the memory of minimal recurrent layers. Their gates do not depend on the state, so if every tile is a
 * segment, a sequence costs only the carried states at the cuts. */
#include <check.h>
#include <stdlib.h>

#include "engine/abi.h"
#include "engine/remat.h"
#include "tests/suite.h"

enum { B = 3, C = 5, H = 7, TILE = 4 };

static uint64_t activations(int64_t tiles, bool lstm, bool convolved) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    ck_assert_int_eq(remat_graph_create(&g), REMAT_OK);
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){tiles * TILE, B, C});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){tiles * TILE, B, H});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){(lstm ? 3 : 2) * H, C}, remat_init_uniform(1));
    remat_value filter = remat_param(g, "filter", 3, (int64_t[]){H, 1, 3}, remat_init_uniform(1));
    remat_value y = (lstm ? remat_min_lstm : remat_min_gru)(g, remat_linear(g, x, w, REMAT_NONE));
    if (convolved) y = remat_causal_conv(g, y, filter, REMAT_NONE);
    config.strategy = "segments";
    config.segments = tiles;
    config.tile = TILE;
    config.threads = 1;
    ck_assert_msg(!remat_session_create(g, remat_mse(g, y, target), &config, &s), "%s", remat_last_error());
    uint64_t bytes = rm_plan_summary_of(s).activations_peak_bytes;
    remat_session_free(s);
    remat_graph_free(g);
    return bytes;
}

static uint64_t aligned(uint64_t floats) { return (floats * sizeof(float) + 63) / 64 * 64; }

/* Each cut carries h (B,H), and the rows (B,2,H) that a convolution after it reads back. */
START_TEST(a_cut_costs_only_the_carried_state) {
    bool lstm = _i % 2, convolved = _i / 2;
    uint64_t cut = aligned(B * H) + (convolved ? aligned(B * 2 * H) : 0);
    ck_assert_uint_eq(activations(200, lstm, convolved) - activations(100, lstm, convolved), 100 * cut);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("minimal");
    tcase_add_loop_test(tests, a_cut_costs_only_the_carried_state, 0, 4);
    return run_cases("minimal", tests);
}
