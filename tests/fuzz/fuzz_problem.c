/* fuzz_problem.c: any bytes as the text of a problem. An accepted problem must pass its own check and read back
 * unchanged from its own text, and the judge must accept every strategy's plan for it. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/place.h"
#include "memory/strategy.h"

static const char tiles[] =
    "problem 2\nresident 4096 parameters\ntier save 3000 load 18446744073709551615 latency 50 "
    "cost 900000000 host 7\nstages 3\nstates 3\npieces 5\n"
    "piece 0 bytes 64\npiece 1 bytes 128\npiece 2 bytes 0\npiece 3 bytes 64\npiece 4 bytes 64\n"
    "stage 0 drop time 90 scratch 512\n"
    "stage 0 keep all saved 1024 forward time 100 scratch 5 backward time 200 scratch 1024\n"
    "stage 0 keep lean saved 256 forward time 95 scratch 512 backward time 230 scratch 128\n"
    "stage 1 drop time 90 scratch 512\n"
    "stage 1 keep all saved 1024 forward time 100 scratch 64 backward time 200 scratch 0\n"
    "stage 2 drop time 1 scratch 0\n"
    "stage 2 keep boundary saved 0 forward time 1 scratch 0 backward time 2 scratch 0\n"
    "state 0 of 0 pieces 2\nstate 1 of 1 pieces 1\nstate 2 of 1 pieces 0\ndstate 0 pieces 1\ndstate 1 pieces 1\n"
    "reads 1 states 0\nreads 2 states 0 1\nkeeps 1 states 0 1\nkeeps 2 states 1\nadds 1 states 0\nadds 2 states 0 1\n";
static const char one[] = "# one stage\nproblem 2\nstages 1\nstates 0\npieces 0\nstage 0 drop time 10 scratch 64\n"
                          "stage 0 keep all saved 640 forward time 11 scratch 64 backward time 20 scratch 128\n";

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    static const fuzz_seed seeds[] = {{tiles, sizeof tiles - 1}, {one, sizeof one - 1}};
    *count = 2;
    return seeds;
}

static void require(bool fact) {
    if (!fact) {
        fprintf(stderr, "%s\n", remat_last_error());
        abort();
    }
}

static char *text_of(const rm_problem *problem) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    require(file && rm_problem_write(problem, file) == REMAT_OK);
    fclose(file);
    return text;
}

static void reads_back(const rm_problem *problem) {
    char *text = text_of(problem);
    rm_problem again;
    require(rm_problem_read(&again, text, strlen(text)) == REMAT_OK);
    char *second = text_of(&again);
    require(!strcmp(text, second));
    rm_problem_free(&again);
    free(text);
    free(second);
}

static void is_planned(const rm_problem *problem, const rm_strategy *strategy) {
    rm_plan plan = {0};
    rm_proposal proposal;
    rm_verdict verdict;
    rm_lifetimes lifetimes = {0};
    rm_placement placement;
    require(strategy->propose(problem, &(rm_plan_request){.segments = 2}, &plan, &proposal) == REMAT_OK);
    require(rm_plan_check(problem, &plan, &verdict, &lifetimes) == REMAT_OK);
    require(rm_place(&lifetimes, &placement) == REMAT_OK);
    require(rm_placement_check(&lifetimes, &placement) == REMAT_OK);
    require(placement.floor_bytes == verdict.peak_bytes);
    rm_placement_free(&placement);
    rm_lifetimes_free(&lifetimes);
    rm_plan_free(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_problem problem;
    if (rm_problem_read(&problem, (const char *)data, size)) {
        require(!problem.stage && remat_last_error()[0]);
        return 0;
    }
    require(rm_problem_check(&problem) == REMAT_OK);
    reads_back(&problem);
    for (int i = 0; i < rm_n_strategies; i++) is_planned(&problem, rm_strategies[i]);
    rm_problem_free(&problem);
    return 0;
}
