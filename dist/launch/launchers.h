/* launchers.h: what the variables that launchers leave in the environment say of this process: which rank it is, of how
 * many, and on how many hosts. Private to rendezvous.c, which adds what flags say, and where ranks meet; rendezvous.h
 * has the list of variables. */
#ifndef RM_LAUNCHERS_H
#define RM_LAUNCHERS_H

#include "dist/store/rendezvous.h"

typedef struct {
    rm_environment *get;
    void *context;
} rm_variables;

const char *rm_variable(const rm_variables *variables, const char *name); /* NULL: unset, or empty */
/* -1 when unset; INVALID when it is no whole number from 0. */
remat_status rm_variable_number(const rm_variables *variables, const char *name, int64_t *out);

typedef struct {
    rm_launcher launcher;                              /* RM_BY_NOBODY: there is none */
    int64_t size, rank, local_rank, local_size, nodes; /* -1: it does not say */
} rm_answer;

/* Of several launchers the nearest to this process; INVALID where they contradict each other, with the names of both. */
remat_status rm_launchers_ask(const rm_variables *variables, rm_answer *out);
/* For a process that they say nothing of: INVALID where variables of other launchers, or halves of an answer, say that it is one
 * of several ranks; names the variable. */
remat_status rm_launchers_check_alone(const rm_variables *variables);
/* "rank 1 of 4 (Slurm)" */
const char *rm_answer_text(const rm_answer *answer, char *out, size_t bytes);
/* Has it given all ranks one command line? */
bool rm_launcher_repeats(const rm_variables *variables, rm_launcher launcher);

#endif
