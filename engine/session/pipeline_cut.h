/* pipeline_cut.h: chooses where a pipeline's layers are divided: the cut whose slowest rank takes the least time, among
 * those with which every rank fits the memory budget. With a calibration file, times of layers are measured (layer_times.h).
 * Private to the engine and to the program. */
#ifndef RM_PIPELINE_CUT_H
#define RM_PIPELINE_CUT_H

#include "engine/session/session.h"

typedef struct {
    char *cut;       /* as in remat_pipeline */
    int n_ruled_out; /* faster cuts with which some rank does not fit */
    bool fits;       /* false: no cut fits, and this one needs the fewest bytes */
    bool told;       /* the config has it */
    bool measured;   /* by measured times, not by counted work */
    double *node_ns; /* these times (rm_layer_times); NULL: none */
    /* Of the cuts that were ruled out, the fastest; the rank that needs most with it, and these bytes. */
    char *fastest;
    int rank;
    uint64_t bytes;
} rm_cut_choice;

/* Plans for one cut after the other, without allocating the sessions' memory. A cut that the config has is kept. Errors
 * are those of remat_session_create, but not that the budget is too small. Free the choice even after an error. */
remat_status rm_session_choose_cut(const remat_graph *graph, int32_t loss, const remat_config *config,
                                   rm_cut_choice *out);
/* The config has a cut. Chooses the fastest one that gives this rank fewer layers, and with which every rank fits; its
 * `cut` is NULL if there is none. */
remat_status rm_session_choose_lighter_cut(const remat_graph *graph, int32_t loss, const remat_config *config, int rank,
                                           rm_cut_choice *out);
/* The same on all ranks, in remat_session_create: if times are measured, those of rank 0, which sends its cut to the others.
 * Without a budget and measured times nothing is chosen here; the chain is cut by its counted work. */
remat_status rm_session_agree_on_cut(const remat_graph *graph, int32_t loss, const remat_config *config,
                                     rm_cut_choice *out);
void rm_cut_choice_free(rm_cut_choice *choice);

#endif
