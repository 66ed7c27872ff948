/* test_problem.c: problems read back from their text, and errors name the line. */
#include "memory/problem.h"

#include "memory/host.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"

static void reads_back(const char *what, const rm_problem *problem) {
    char *text = text_of(file, rm_problem_write(problem, file));
    rm_problem again;
    ck_ok(rm_problem_read(&again, text, strlen(text)));
    char *second = text_of(file, rm_problem_write(&again, file));
    ck_assert_msg(!strcmp(text, second), "%s changes when it is written and read", what);
    ck_assert_int_eq(again.n_stages, problem->n_stages);
    ck_assert_mem_eq(&again.tier, &problem->tier, sizeof again.tier);
    ck_assert_uint_eq(rm_problem_resident_bytes(&again), rm_problem_resident_bytes(problem));
    rm_problem_free(&again);
    free(text);
    free(second);
}

START_TEST(text_round_trips) {
    each_problem(reads_back);
    for (uint64_t seed = 0; seed < 40; seed++) {
        chain c = {1 + (int64_t)seed * 3, seed % 2,      320,           4000,         999,
                   (int)(seed % 4),       seed % 3 == 0, seed % 5 == 0, seed % 4 == 1};
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        if (seed % 2) problem.tier = (rm_tier){1 + seed, UINT64_MAX - seed, seed, seed * 3, seed * 5};
        reads_back("a made-up chain", &problem);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(text_is_parsed_to_the_right_numbers) {
    rm_problem p;
    read_problem(RM_SOURCE_DIR "/tests/problems/four_tiles.problem", &p);
    ck_assert_int_eq(p.n_stages, 4);
    ck_assert_int_eq(p.n_states, 4);
    ck_assert_int_eq(p.n_pieces, 7);
    ck_assert_uint_eq(rm_problem_resident_bytes(&p), 8192);
    ck_assert_str_eq(p.resident[1].name, "gradients");
    ck_assert_uint_eq(p.piece[5].bytes, 128);
    ck_assert_uint_eq(p.stage[3].drop.time_ns, 30);
    ck_assert_uint_eq(p.stage[3].drop.scratch_bytes, 192);
    const rm_stage_option *lean = &p.stage[2].option[1];
    ck_assert_ptr_eq(lean->name, rm_option_names[1]);
    ck_assert_uint_eq(lean->saved_bytes, 256);
    ck_assert_uint_eq(lean->forward.time_ns, 95);
    ck_assert_uint_eq(lean->backward.time_ns, 230);
    ck_assert_uint_eq(lean->backward.scratch_bytes, 1280);
    ck_assert_int_eq(p.made[3], 3);
    ck_assert_int_eq(rm_state_maker(&p, 3), 3);
    ck_assert_int_eq(p.state[3], 3);
    ck_assert_int_eq(p.dstate[0], 4);
    ck_assert_int_eq(p.dstate[4], 7); /* dstate 3 has no line */
    ck_assert(rm_in_list(&p.reads, 2, 1) && !rm_in_list(&p.reads, 2, 2) && !rm_in_list(&p.adds, 0, 0));
    rm_problem_free(&p);
}
END_TEST

#define HEAD "problem 2\nstages 1\nstates 1\npieces 1\npiece 0 bytes 64\n"
#define DROP "stage 0 drop time 1 scratch 0\n"
#define KEEP "stage 0 keep all saved 64 forward time 1 scratch 0 backward time 2 scratch 0\n"
#define STATE "state 0 of 0 pieces 1\n"

START_TEST(wrong_text_is_refused_with_the_reason) {
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"", "ends before"},
        {"problem 2\n", "ends before"},
        {"stages 1\n", "line 1"},
        {"problem 1\n", "line 1"},
        {"problem 2\nproblem 2\n", "line 2"},
        {"problem 2\nstages 1 2\n", "line 2"},
        {"problem 2\nstages -1\nstates 0\npieces 0\n", "line 2"},
        {"problem 2\nstages 99999999999999999999\nstates 0\npieces 0\n", "line 2"},
        {"problem 2\nstages 18446744073709551615\nstates 0\npieces 0\n", "line 2"},
        {"problem 2\nstages 1000000\nstates 0\npieces 1\n", "line 2"}, /* more stages than lines */
        {"problem 2\nstages 1\nstates 1000000\npieces 1\n", "line 3"},
        {"problem 2\nstages 0\nstates 0\npieces 0\n", "0 stages"},
        {"problem 2\npieces 0\nstages 1\n", "line 2"},
        {"problem 2\nstages 1\npieces 0\n", "line 3"},
        {"problem 2\nresident 64 \nstages 1\nstates 0\npieces 0\n" DROP KEEP, "needs a name"},
        {HEAD DROP STATE, "has 0 options"},
        {HEAD KEEP, "line 6"},
        {HEAD DROP KEEP KEEP STATE, "two options called 'all'"},
        {HEAD DROP DROP KEEP, "line 7"},
        {HEAD DROP "stage 0 keep most saved 64\n", "line 7"},
        {HEAD DROP KEEP "state 1 of 0 pieces 1\n", "line 8"},
        {HEAD DROP KEEP "state 0 of 1 pieces 1\n", "line 8"},
        {HEAD DROP KEEP "state 0 of 0 pieces 2\n", "line 8"},
        {HEAD DROP KEEP "state 0 of 0\n", "line 8"},
        {HEAD DROP KEEP STATE "state 0 of 0 pieces 0\n", "line 9"},
        {HEAD DROP KEEP "state 0 of 0 pieces 0\ndstate 0 pieces 1\n", "dstate 0 has bytes"},
        {HEAD DROP KEEP "dstate 0 pieces 1\n" STATE, "line 8"},
        {HEAD DROP KEEP "state 0 of 0 pieces 0\n", "does not end at 1"},
        {HEAD DROP KEEP, "1 states"},
        {HEAD DROP KEEP STATE "reads 0 states 0\n", "the stage itself makes"},
        {HEAD DROP KEEP STATE "reads 1 states 0\n", "line 9"},
        {HEAD DROP KEEP STATE "keeps 0 states 1\n", "line 9"},
        {HEAD DROP KEEP STATE "keeps 0 states 0 0\n", "keeps 0 has state 0 twice"},
        {HEAD DROP KEEP STATE "keeps 0 states 0\nkeeps 0 states 0\n", "line 10"},
        {HEAD DROP KEEP STATE "adds 0 states 0\n", "the stage itself makes"},
        {HEAD DROP KEEP STATE "adds 0 states\n", "line 9"},
        {HEAD DROP KEEP "piece 0 bytes 64\n", "line 8"},
        {HEAD DROP KEEP "what\n", "line 8 of the problem ('what')"},
        {"problem 2\nstages 1\nstates 1\npieces 1\npiece 0 bytes 65\n" DROP KEEP STATE, "not a multiple of 64"},
        {"problem 2\nstages 1\nstates 1\npieces 2\npiece 0 bytes 64\n" DROP KEEP STATE, "2 pieces"},
        {"problem 2\nstages 2\nstates 1\npieces 1\npiece 0 bytes 64\n" DROP KEEP STATE, "2 stages"},
        {"problem 2\nstages 1\nstates 1\npieces 1\npiece 0 bytes 1152921504606846976\n" DROP KEEP STATE, "2^60"},
        {"problem 2\nresident 1152921504606846976 a\nstages 1\nstates 0\npieces 0\n" DROP KEEP, "2^60"},
        {"problem 2\ntier save 5 load 5 latency 0\n", "line 2"},
        {"problem 2\ntier save 0 load 5 latency 0 cost 0 host 0\n", "line 2"},
        {"problem 2\ntier save 5 load 5 latency 0 cost 0 host 0\ntier save 5 load 5 latency 0 cost 0 host 0\n",
         "line 3"},
        {"problem 2\ntier save 5 load 0 latency 0 cost 0 host 0\nstages 1\nstates 0\npieces 0\n" DROP KEEP,
         "saves 5 and loads 0 bytes"},
        {"problem 2\ntier save 5 load 5 latency 1152921504606846976 cost 0 host 0\nstages 1\nstates 0\npieces 0\n" DROP
             KEEP,
         "2^60"},
        {HEAD "tier save 5 load 5 latency 0 cost 0 host 0\n", "line 6"},
        {"problem 2\nresident 1 a-name-that-is-far-too-long-to-be-kept\n", "line 2"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rm_problem problem;
        ck_fails(rm_problem_read(&problem, wrong[i].text, strlen(wrong[i].text)), INVALID, wrong[i].words);
        ck_assert_ptr_null(problem.stage);
    }
}
END_TEST

START_TEST(every_prefix_of_a_text_is_read_safely) {
    char *text = file_text(RM_SOURCE_DIR "/tests/problems/skip.problem");
    for (size_t length = 0; length < strlen(text); length++) {
        char *part = malloc(length + 1); /* a block of its own, so that a sanitizer detects a read past its end */
        memcpy(part, text, length);
        rm_problem problem;
        if (rm_problem_read(&problem, part, length) == REMAT_OK) rm_problem_free(&problem);
        ck_assert_ptr_null(problem.stage);
        free(part);
    }
    free(text);
}
END_TEST

/* Replaces one number of a valid problem by a bad one. */
START_TEST(contradictory_numbers_are_refused) {
    chain c = {.n_stages = 3, .state_bytes = 128, .saved_bytes = 256, .scratch_bytes = 64, .lean = true};
    rm_problem p;
    ck_ok(chain_problem(&c, 1, &p));
#define WITH(place, value, words)                                                                                      \
    do {                                                                                                               \
        __typeof__(place) good_ = (place);                                                                             \
        (place) = (value);                                                                                             \
        ck_fails(rm_problem_check(&p), INVALID, words);                                                                \
        (place) = good_;                                                                                               \
        ck_ok(rm_problem_check(&p));                                                                                   \
    } while (0)
    WITH(p.n_stages, 0, "0 stages");
    WITH(p.n_stages, INT64_MAX, "stages");
    WITH(p.n_pieces, -1, "-1 pieces");
    WITH(p.piece[1].bytes, 100, "piece 1");
    WITH(p.piece[1].bytes, (uint64_t)1 << 63, "2^60");
    WITH(p.stage[1].n_options, 0, "stage 1");
    WITH(p.stage[1].n_options, RM_MAX_OPTIONS + 1, "stage 1");
    WITH(p.stage[2].option[0].name, NULL, "stage 2");
    WITH(p.stage[2].option[0].name, "some", "'some'");
    WITH(p.stage[2].option[0].name, "lean", "two options called 'lean'");
    WITH(p.stage[0].option[1].saved_bytes, UINT64_MAX, "2^60");
    WITH(p.stage[0].option[1].backward.time_ns, UINT64_MAX, "2^60");
    WITH(p.stage[0].drop.scratch_bytes, UINT64_MAX - 5, "2^60");
    WITH(p.n_states, -1, "-1 states");
    WITH(p.made[1], 3, "made");
    WITH(p.made[3], 2, "made");
    WITH(p.state[0], 1, "state");
    WITH(p.state[2], 0, "state");
    WITH(p.dstate[0], 2, "state");
    WITH(p.dstate[3], 3, "dstate");
    WITH(p.reads.start[2], -1, "reads");
    WITH(p.reads.item[1], 1000, "reads 2 has state 1000");
    WITH(p.reads.item[0], -1, "reads 1 has state -1");
    WITH(p.reads.item[0], 1, "the stage itself makes");
    WITH(p.keeps.item[0], 2, "keeps");
    WITH(p.adds.start[2], 3, "adds");
    WITH(p.tier.save_bytes_per_s, 1, "saves 1 and loads 0");
    WITH(p.tier.load_bytes_per_s, 1, "saves 0 and loads 1");
    WITH(p.tier.latency_ns, 1, "loads 0");
    WITH(p.tier.cost_ns_per_mib, 1, "loads 0");
    WITH(p.tier.host_bytes, 1, "loads 0");
    WITH(p.n_resident, 17, "17 resident");
    WITH(p.resident[0].name[0], '\n', "printable");
    WITH(p.resident[0].name[0], 0, "printable");
    rm_problem_free(&p);
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
    const char *text = HEAD DROP KEEP STATE;
    rm_problem problem;
    for (int n = 1;; n++) {
        rm_host_fail_at(n);
        remat_status status = rm_problem_read(&problem, text, strlen(text));
        rm_host_fail_at(0);
        if (!status) {
            ck_assert_int_gt(n, 5);
            break;
        }
        ck_assert_int_eq(status, REMAT_MEMORY);
        ck_assert_ptr_null(problem.stage);
    }
    rm_problem_free(&problem);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(full_disk_is_an_error) {
    rm_problem p;
    read_problem(RM_SOURCE_DIR "/tests/problems/four_tiles.problem", &p);
    FILE *full = fopen("/dev/full", "w");
    ck_fails(rm_problem_write(&p, full), IO, "cannot write");
    fclose(full);
    rm_problem_free(&p);
}
END_TEST

RUN_TESTS("memory/problem", text_round_trips, text_is_parsed_to_the_right_numbers,
          wrong_text_is_refused_with_the_reason, every_prefix_of_a_text_is_read_safely,
          contradictory_numbers_are_refused, every_failed_allocation_is_handled, full_disk_is_an_error)
