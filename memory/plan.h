/* plan.h: a plan is a straight-line program over the objects of a problem (problem.h). To recompute is to RUN again.
 *
 *   run forward 3 drop        run forward 3 all        run backward 3
 *   free state 3              free saved 3             free dstate 4
 *   save saved 3              load saved 3             (the second tier: states and saved blocks only)
 *
 * No object is alive at the start or at the end of a plan. RUN makes objects and never ends one; FREE ends exactly one.
 * Objects without bytes follow the same rules, so no rule depends on sizes.
 *
 * SAVE starts to copy an object to the second tier. The object stays alive and unchanged, and its FREE waits for the
 * copy. LOAD restores an object that is not alive from its copy. From the LOAD on, the object is alive and takes its
 * bytes; the first RUN that reads it waits until the transfer is done. A RUN that overwrites an object and a FREE wait
 * for every transfer of it. A saved(s) that is loaded has the option with which it was saved. An object is copied at
 * most once in a step, and its copy may be loaded any number of times. A plan that frees late and loads early overlaps
 * transfers with the computation and pays for it in live bytes. */
#ifndef RM_PLAN_H
#define RM_PLAN_H

#include "memory/problem.h"

typedef enum { RM_RUN_FORWARD, RM_RUN_BACKWARD, RM_FREE, RM_SAVE, RM_LOAD } rm_verb;
typedef enum { RM_STATE, RM_SAVED, RM_DSTATE } rm_object;

typedef struct {
    uint8_t verb;   /* rm_verb */
    int8_t option;  /* RUN_FORWARD: RM_DROP or an option of the stage */
    uint8_t object; /* FREE, SAVE, LOAD: rm_object */
    int32_t index;  /* the stage; of a state or its gradient: the state */
} rm_step;

typedef struct rm_plan {
    rm_step *step;
    int64_t n_steps, capacity;
} rm_plan;

/* Appends a step. MEMORY. */
remat_status rm_plan_add(rm_plan *plan, rm_step step);
remat_status rm_plan_run_forward(rm_plan *plan, int64_t stage, int option);
remat_status rm_plan_run_backward(rm_plan *plan, int64_t stage);
remat_status rm_plan_free_object(rm_plan *plan, rm_object object, int64_t index);
remat_status rm_plan_save(rm_plan *plan, rm_object object, int64_t index);
remat_status rm_plan_load(rm_plan *plan, rm_object object, int64_t index);
/* Adds the missing FREEs to a plan of RUNs, SAVEs and LOADs. Every object is freed after the last step that needs it
 * before it is made again, unless the plan itself frees it later. So a strategy decides what runs, and lifetimes
 * follow. MEMORY. */
remat_status rm_plan_free_dead(const rm_problem *problem, rm_plan *plan); /* dead.c */
void rm_plan_shrink(rm_plan *plan); /* releases unused capacity */
void rm_plan_free(rm_plan *plan); /* leaves *plan zeroed */

/* Writes one step as in the text form ("run forward 3 all") into a buffer of RM_STEP_TEXT bytes. Accepts any bits. */
#define RM_STEP_TEXT 64
const char *rm_step_text(const rm_problem *problem, rm_step step, char *buffer);

/* The text form has one step per line; blank lines and text after '#' are ignored. The reader fills the empty *plan and
 * accepts any bytes. INVALID, with line and reason: unknown words, or stages, cuts and options that the problem does
 * not have. check.h decides whether the steps make sense together. */
remat_status rm_plan_write(const rm_problem *problem, const rm_plan *plan, FILE *file);
remat_status rm_plan_read(const rm_problem *problem, rm_plan *plan, const char *text, size_t length);

#endif
