/* transfer.c: the executor's SAVE and LOAD, and waiting for them. Planning has decided the places of copies and the
 * steps that wait (memory/transfers.h). run.c runs the stages. */
#include "engine/session/run.h"

static uint64_t object_bytes(const rm_runner *runner, const rm_problem *problem, rm_step step) {
    if (step.object == RM_STATE) return rm_state_bytes(problem, step.index);
    return rm_align_up(problem->stage[step.index].option[runner->kept[step.index]].saved_bytes);
}

/* Queues the next part of a transfer. */
static void give(const rm_runner *runner, rm_verb verb, void *address, uint64_t bytes, rm_part *part) {
    part->address = address;
    part->bytes = bytes;
    (verb == RM_SAVE ? runner->api->tier_save : runner->api->tier_load)(runner->queue, runner->tier, part);
    part->at += bytes;
    part->left -= bytes;
}

void rm_run_transfer(const rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule, rm_step step) {
    const rm_transfers *transfers = &schedule->transfers;
    uint64_t bytes = object_bytes(runner, problem, step);
    bool state = step.object == RM_STATE;
    uint64_t at = (state ? transfers->state_at : transfers->saved_at)[step.index];
    rm_part part = {.at = at + runner->tier_shift, .left = bytes};
    if (!bytes) {
        give(runner, step.verb, NULL, 0, &part); /* an empty transfer counts, too */
    } else if (!state) {
        give(runner, step.verb, runner->saved[step.index], bytes, &part);
    } else {
        for (int64_t k = problem->state[step.index]; k < problem->state[step.index + 1]; k++)
            if (problem->piece[k].bytes) give(runner, step.verb, runner->piece[k], problem->piece[k].bytes, &part);
    }
}

remat_status rm_run_wait(const rm_runner *runner, const rm_schedule *schedule, int64_t number) {
    int32_t wait = schedule->transfers.count ? schedule->transfers.wait[number] : 0;
    if (!wait) return REMAT_OK;
    uint64_t begin_ns = rm_observe(&runner->observer);
    remat_status status = runner->api->tier_wait(runner->queue, runner->tier, runner->given_before + (uint64_t)wait);
    rm_observed(&runner->observer, begin_ns, (remat_event){.kind = REMAT_EVENT_WAIT, .name = "the spill file"});
    return status;
}

remat_status rm_run_wait_for_all(const rm_runner *runner) {
    if (!runner->tier) return REMAT_OK;
    return runner->api->tier_wait(runner->queue, runner->tier, runner->api->tier_given(runner->tier));
}
