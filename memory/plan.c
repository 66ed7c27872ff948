/* plan.c: plans as a growing list of steps, and as text. check.c decides which plans make sense. */
#include "memory/plan.h"

#include <errno.h>
#include <string.h>

#include "memory/host.h"
#include "memory/lexer.h"

remat_status rm_plan_add(rm_plan *plan, rm_step step) {
    REQUIRE(rm_grow(&plan->step, &plan->capacity, plan->n_steps + 1, sizeof *plan->step), MEMORY,
            "out of host memory for a plan of %lld steps; use a larger tile or fewer cuts",
            (long long)plan->n_steps + 1);
    plan->step[plan->n_steps++] = step;
    return REMAT_OK;
}

remat_status rm_plan_run_forward(rm_plan *plan, int64_t stage, int option) {
    return rm_plan_add(plan, (rm_step){.verb = RM_RUN_FORWARD, .option = (int8_t)option, .index = (int32_t)stage});
}

remat_status rm_plan_run_backward(rm_plan *plan, int64_t stage) {
    return rm_plan_add(plan, (rm_step){.verb = RM_RUN_BACKWARD, .index = (int32_t)stage});
}

remat_status rm_plan_free_object(rm_plan *plan, rm_object object, int64_t index) {
    return rm_plan_add(plan, (rm_step){.verb = RM_FREE, .object = (uint8_t)object, .index = (int32_t)index});
}

remat_status rm_plan_save(rm_plan *plan, rm_object object, int64_t index) {
    return rm_plan_add(plan, (rm_step){.verb = RM_SAVE, .object = (uint8_t)object, .index = (int32_t)index});
}

remat_status rm_plan_load(rm_plan *plan, rm_object object, int64_t index) {
    return rm_plan_add(plan, (rm_step){.verb = RM_LOAD, .object = (uint8_t)object, .index = (int32_t)index});
}

void rm_plan_shrink(rm_plan *plan) {
    plan->step = rm_shrink(plan->step, (size_t)plan->n_steps * sizeof *plan->step);
    plan->capacity = plan->n_steps;
}

void rm_plan_free(rm_plan *plan) {
    rm_free(plan->step);
    *plan = (rm_plan){0};
}

/* ---- Text --------------------------------------------------------------------------------------- */

static const char *const object_words[] = {[RM_STATE] = "state", [RM_SAVED] = "saved", [RM_DSTATE] = "dstate", NULL};
static const char *const move_words[] = {"free", "save", "load", NULL};
static const rm_verb move_verbs[] = {RM_FREE, RM_SAVE, RM_LOAD};

static const char *option_word(const rm_problem *problem, rm_step step) {
    if (step.option == RM_DROP) return "drop";
    if (step.index < 0 || step.index >= problem->n_stages) return "?";
    const rm_stage *stage = &problem->stage[step.index];
    return step.option >= 0 && step.option < stage->n_options ? stage->option[step.option].name : "?";
}

const char *rm_step_text(const rm_problem *problem, rm_step step, char *buffer) {
    const char *object = step.object <= RM_DSTATE ? object_words[step.object] : "?";
    int index = (int)step.index;
    switch (step.verb) {
    case RM_RUN_FORWARD:
        snprintf(buffer, RM_STEP_TEXT, "run forward %d %s", index, option_word(problem, step));
        break;
    case RM_RUN_BACKWARD:
        snprintf(buffer, RM_STEP_TEXT, "run backward %d", index);
        break;
    case RM_FREE:
        snprintf(buffer, RM_STEP_TEXT, "free %s %d", object, index);
        break;
    case RM_SAVE:
        snprintf(buffer, RM_STEP_TEXT, "save %s %d", object, index);
        break;
    case RM_LOAD:
        snprintf(buffer, RM_STEP_TEXT, "load %s %d", object, index);
        break;
    default:
        snprintf(buffer, RM_STEP_TEXT, "verb number %d", step.verb);
    }
    return buffer;
}

remat_status rm_plan_write(const rm_problem *problem, const rm_plan *plan, FILE *file) {
    char text[RM_STEP_TEXT];
    for (int64_t i = 0; i < plan->n_steps; i++)
        if (fprintf(file, "%s\n", rm_step_text(problem, plan->step[i], text)) < 0) break;
    REQUIRE(!fflush(file) && !ferror(file), IO, "cannot write the plan: %s", strerror(errno));
    return REMAT_OK;
}

/* Reads the option's number, or RM_DROP. Returns false if the stage has no option of that name. */
static bool read_option(rm_lexer *lexer, const rm_stage *stage, int8_t *option) {
    for (int k = 0; k < stage->n_options; k++)
        if (rm_lexer_is(lexer, stage->option[k].name)) {
            *option = (int8_t)k;
            return true;
        }
    *option = RM_DROP;
    return rm_lexer_is(lexer, "drop");
}

static bool read_run(const rm_problem *problem, rm_lexer *lexer, rm_step *step) {
    int64_t stage;
    bool forward = rm_lexer_is(lexer, "forward");
    if (!forward && !rm_lexer_is(lexer, "backward")) return false;
    if (!rm_lexer_index(lexer, problem->n_stages, &stage)) return false;
    *step = (rm_step){.verb = forward ? RM_RUN_FORWARD : RM_RUN_BACKWARD, .index = (int32_t)stage};
    return !forward || read_option(lexer, &problem->stage[stage], &step->option);
}

static bool read_move(const rm_problem *problem, rm_lexer *lexer, rm_verb verb, rm_step *step) {
    int64_t index;
    int object = rm_lexer_any(lexer, object_words);
    if (object < 0) return false;
    if (!rm_lexer_index(lexer, object == RM_SAVED ? problem->n_stages : problem->n_states, &index)) return false;
    *step = (rm_step){.verb = (uint8_t)verb, .object = (uint8_t)object, .index = (int32_t)index};
    return true;
}

static bool read_step(const rm_problem *problem, rm_lexer *lexer, rm_step *step) {
    if (rm_lexer_is(lexer, "run")) return read_run(problem, lexer, step) && rm_lexer_done(lexer);
    int move = rm_lexer_any(lexer, move_words);
    return move >= 0 && read_move(problem, lexer, move_verbs[move], step) && rm_lexer_done(lexer);
}

static remat_status not_understood(const rm_lexer *lexer, const rm_problem *problem) {
    char rest[80];
    rm_lexer_rest(lexer, rest, sizeof rest);
    FAIL(INVALID, "line %lld of the plan: '%s' is not understood here (there are stages 0 to %lld)",
         (long long)lexer->line, rest, (long long)problem->n_stages - 1);
}

remat_status rm_plan_read(const rm_problem *problem, rm_plan *plan, const char *text, size_t length) {
    remat_status status = REMAT_OK;
    for (rm_lexer lexer = rm_lexer_begin(text, length); !status && rm_lexer_line(&lexer);) {
        rm_step step;
        status = read_step(problem, &lexer, &step) ? rm_plan_add(plan, step) : not_understood(&lexer, problem);
    }
    if (status) rm_plan_free(plan);
    return status;
}
