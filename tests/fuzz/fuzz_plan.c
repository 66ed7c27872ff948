/* fuzz_plan.c: any bytes as the text of a plan for a fixed problem; if the first byte is 0, any bytes as steps in
 * memory. Accepted text must read back unchanged. The judge must return, and plans that it accepts must be placed. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/place.h"
#include "memory/strategy.h"

static const char chain[] =
    "problem 2\ntier save 3000000000 load 2000000000 latency 50 cost 900000000 host 0\nstages 3\nstates 3\npieces 5\n"
    "piece 0 bytes 64\npiece 1 bytes 128\npiece 2 bytes 0\npiece 3 bytes 64\npiece 4 bytes 64\n"
    "stage 0 drop time 90 scratch 512\n"
    "stage 0 keep all saved 1024 forward time 100 scratch 5 backward time 200 scratch 1024\n"
    "stage 0 keep lean saved 256 forward time 95 scratch 512 backward time 230 scratch 128\n"
    "stage 1 drop time 90 scratch 512\n"
    "stage 1 keep all saved 1024 forward time 100 scratch 64 backward time 200 scratch 0\n"
    "stage 2 drop time 1 scratch 0\n"
    "stage 2 keep all saved 64 forward time 1 scratch 0 backward time 2 scratch 0\n"
    "state 0 of 0 pieces 2\nstate 1 of 1 pieces 1\nstate 2 of 1 pieces 0\ndstate 0 pieces 1\ndstate 1 pieces 1\n"
    "reads 1 states 0\nreads 2 states 0 1\nkeeps 1 states 0 1\nkeeps 2 states 1\nadds 1 states 0\nadds 2 states 0 1\n";

static void require(bool fact) {
    if (!fact) {
        fprintf(stderr, "%s\n", remat_last_error());
        abort();
    }
}

static char *text_of(const rm_problem *problem, const rm_plan *plan) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    require(file && rm_plan_write(problem, plan, file) == REMAT_OK);
    fclose(file);
    return text;
}

static const rm_problem *the_problem(void) {
    static rm_problem problem;
    if (!problem.stage) require(rm_problem_read(&problem, chain, sizeof chain - 1) == REMAT_OK);
    return &problem;
}

static const char spilled[] = "run forward 0 all\nsave saved 0\nrun forward 1 all\nfree saved 0\nfree state 2\n"
                              "run forward 2 all\nsave state 0\nfree state 0\nrun backward 2\nload state 0\n"
                              "free saved 2\nrun backward 1\nload saved 0\nfree saved 1\nfree state 0\nfree state 1\n"
                              "free dstate 1\nrun backward 0\nfree saved 0\nfree dstate 0\n";

/* The plans of all strategies as text, one plan as raw steps, and one that uses the second tier. */
const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    static fuzz_seed seeds[16];
    static size_t made;
    bool first = made == 0;
    for (int i = 0; made == (size_t)i && i < rm_n_strategies && i < 14; i++) {
        rm_plan plan = {0};
        rm_proposal proposal;
        require(!rm_strategies[i]->propose(the_problem(), &(rm_plan_request){.segments = 3}, &plan, &proposal));
        char *text = text_of(the_problem(), &plan);
        seeds[made++] = (fuzz_seed){text, strlen(text)};
        if (i == rm_n_strategies - 1) {
            size_t size = (size_t)plan.n_steps * sizeof *plan.step;
            uint8_t *raw = calloc(1, size + 1);
            memcpy(raw + 1, plan.step, size);
            seeds[made++] = (fuzz_seed){raw, size + 1};
        }
        rm_plan_free(&plan);
    }
    if (first) seeds[made++] = (fuzz_seed){spilled, sizeof spilled - 1};
    *count = made;
    return seeds;
}

static void is_judged(const rm_plan *plan) {
    rm_verdict verdict;
    rm_lifetimes lifetimes = {0};
    remat_status status = rm_plan_check(the_problem(), plan, &verdict, &lifetimes);
    if (status) {
        require(status == REMAT_INTERNAL && !lifetimes.item);
        return;
    }
    rm_placement placement;
    require(rm_place(&lifetimes, &placement) == REMAT_OK);
    require(rm_placement_check(&lifetimes, &placement) == REMAT_OK);
    require(placement.floor_bytes == verdict.peak_bytes);
    rm_placement_free(&placement);
    rm_lifetimes_free(&lifetimes);
}

static void reads_back(const rm_plan *plan) {
    char *text = text_of(the_problem(), plan);
    rm_plan again = {0};
    require(rm_plan_read(the_problem(), &again, text, strlen(text)) == REMAT_OK);
    char *second = text_of(the_problem(), &again);
    require(again.n_steps == plan->n_steps && !strcmp(text, second));
    rm_plan_free(&again);
    free(text);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_plan plan = {0};
    if (size > 0 && data[0] == 0) {
        for (size_t at = 1; at + sizeof(rm_step) <= size; at += sizeof(rm_step)) {
            rm_step step;
            memcpy(&step, data + at, sizeof step);
            require(rm_plan_add(&plan, step) == REMAT_OK);
        }
    } else if (rm_plan_read(the_problem(), &plan, (const char *)data, size)) {
        require(!plan.step && remat_last_error()[0]);
        return 0;
    } else {
        reads_back(&plan);
    }
    is_judged(&plan);
    rm_plan_free(&plan);
    return 0;
}
