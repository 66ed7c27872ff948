/* plan.h: a plan is a straight-line program over the objects of a problem (problem.h). To recompute is to RUN again.
 *
 *   run forward 3 drop        run forward 3 all        run backward 3
 *   free state 3              free saved 3             free dstate 4
 *   save saved 3              load saved 3             (the second tier: states and saved alone)
 *
 * When a plan begins nothing is alive; when it ends, nothing is. A RUN makes objects and never ends one; FREE ends exactly
 * one. Objects without bytes follow the same rules, so no rule depends on sizes.
 *
 * SAVE begins to copy an object to the second tier; the object stays alive and unchanged, and its FREE waits for the copy.
 * LOAD makes an object that is not alive from its copy: it is alive, and takes its bytes, from the LOAD on; the first RUN
 * that reads it waits until it is there. A RUN that writes over an object, like a FREE that ends it, waits for every
 * transfer of it. A saved(s) that is loaded has the option it was saved with. An object is copied once a step; its copy may
 * be loaded as often as it is needed.
 * A plan that frees late and loads early lets transfers run beside the computation, and pays for it in bytes alive.
 */
#ifndef RM_PLAN_H
#define RM_PLAN_H

#include "memory/problem.h"

typedef enum { RM_RUN_FORWARD, RM_RUN_BACKWARD, RM_FREE, RM_SAVE, RM_LOAD } rm_verb;
typedef enum { RM_STATE, RM_SAVED, RM_DSTATE } rm_object;

typedef struct {
    uint8_t verb;   /* rm_verb */
    int8_t option;  /* RUN_FORWARD: RM_DROP or an option of the stage */
    uint8_t object; /* FREE, SAVE, LOAD: rm_object */
    int32_t index;  /* stage; of a state or its gradient: the state */
} rm_step;

typedef struct rm_plan {
    rm_step *step;
    int64_t n_steps, capacity;
} rm_plan;

/* Appends; MEMORY when it cannot grow. */
remat_status rm_plan_add(rm_plan *plan, rm_step step);
remat_status rm_plan_run_forward(rm_plan *plan, int64_t stage, int option);
remat_status rm_plan_run_backward(rm_plan *plan, int64_t stage);
remat_status rm_plan_free_object(rm_plan *plan, rm_object object, int64_t index);
remat_status rm_plan_save(rm_plan *plan, rm_object object, int64_t index);
remat_status rm_plan_load(rm_plan *plan, rm_object object, int64_t index);
/* Adds what FREEs a plan of RUNs, SAVEs and LOADs lacks: every object ends behind the last step that needs it before it is
 * made anew, unless the plan frees it itself, later. So a strategy says what runs; what is alive follows. MEMORY. */
remat_status rm_plan_free_dead(const rm_problem *problem, rm_plan *plan); /* dead.c */
void rm_plan_shrink(rm_plan *plan); /* gives back the room for steps that it does not have */
void rm_plan_free(rm_plan *plan); /* frees what is inside, leaves *plan zeroed */

/* One step as it stands in the text ("run forward 3 all"), into a buffer of RM_STEP_TEXT bytes; takes any bits. */
#define RM_STEP_TEXT 64
const char *rm_step_text(const rm_problem *problem, rm_step step, char *buffer);

/* Text, one step a line; blank lines and what follows a '#' do not count. The reader fills the empty *plan, takes any
 * bytes, and answers INVALID naming line and reason: unknown words, stages, cuts and options that the problem does not
 * have. Whether the steps make sense together is for check.h. */
remat_status rm_plan_write(const rm_problem *problem, const rm_plan *plan, FILE *file);
remat_status rm_plan_read(const rm_problem *problem, rm_plan *plan, const char *text, size_t length);

#endif
