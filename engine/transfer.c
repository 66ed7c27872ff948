/* transfer.c: the executor's SAVE and LOAD, and the waits between them and everything else. run.c runs the stages; where
 * copies lie and which steps wait was decided beforehand (memory/transfers.h). */
#include "engine/run.h"

static const rm_lists *lists_of(const rm_problem *problem, rm_step step) {
    return step.object == RM_STATE ? &problem->state : &problem->saved;
}

static uint64_t block_bytes(const rm_runner *runner, const rm_problem *problem, rm_step step) {
    if (step.object != RM_SAVED) return 0;
    return rm_align_up(problem->stage[step.index].option[runner->kept[step.index]].saved_bytes);
}

/* What is loaded is what begins to live at this step; the rest of the object is there already, in another object. */
static bool begins(const rm_lifetimes *lifetimes, int64_t first, int64_t step, int32_t piece) {
    for (int64_t i = first; i < lifetimes->count && lifetimes->item[i].first == step; i++)
        if (lifetimes->item[i].kind == RM_BUFFER_PIECE && lifetimes->item[i].index == piece) return true;
    return false;
}

/* The next part of the transfer. */
static void give(const rm_runner *runner, rm_verb verb, void *address, uint64_t bytes, rm_part *part) {
    part->address = address;
    part->bytes = bytes;
    (verb == RM_SAVE ? runner->api->tier_save : runner->api->tier_load)(runner->queue, runner->tier, part);
    part->at += bytes;
    part->left -= bytes;
}

void rm_run_transfer(const rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule, int64_t number,
                     int64_t first_lifetime) {
    rm_step step = schedule->plan.step[number];
    const rm_lists *lists = lists_of(problem, step);
    const rm_transfers *transfers = &schedule->transfers;
    int64_t from = lists->start[step.index], to = lists->start[step.index + 1];
    uint64_t block = block_bytes(runner, problem, step);
    rm_part part = {.at = (step.object == RM_STATE ? transfers->state_at : transfers->saved_at)[step.index],
                    .left = block};
    for (int64_t k = from; k < to; k++) part.left += problem->piece[lists->item[k]].bytes;
    if (part.left == 0) give(runner, step.verb, NULL, 0, &part); /* it counts as a transfer all the same */
    for (int64_t k = from; k < to; k++) {
        int32_t id = lists->item[k];
        bool wanted = step.verb == RM_SAVE || begins(&schedule->lifetimes, first_lifetime, number, id);
        uint64_t bytes = problem->piece[id].bytes;
        if (bytes) give(runner, step.verb, wanted ? runner->piece[id] : NULL, bytes, &part);
    }
    if (block) give(runner, step.verb, runner->saved[step.index], block, &part);
}

remat_status rm_run_wait(const rm_runner *runner, const rm_schedule *schedule, int64_t number) {
    int32_t wait = schedule->transfers.count ? schedule->transfers.wait[number] : 0;
    return wait ? runner->api->tier_wait(runner->queue, runner->tier, runner->given_before + (uint64_t)wait)
                : REMAT_OK;
}

remat_status rm_run_wait_for_all(const rm_runner *runner) {
    if (!runner->tier) return REMAT_OK;
    return runner->api->tier_wait(runner->queue, runner->tier, runner->api->tier_given(runner->tier));
}
