/* launchers.h: reads launchers' environment variables: the rank of this process, the number of ranks, and the number of
 * hosts. Private to rendezvous.c, which adds the flags and the meeting place; rendezvous.h lists the variables. */
#ifndef RM_LAUNCHERS_H
#define RM_LAUNCHERS_H

#include "dist/store/rendezvous.h"

typedef struct {
    rm_environment *get;
    void *context;
} rm_variables;

const char *rm_variable(const rm_variables *variables, const char *name); /* NULL: unset or empty */
/* -1 if unset; INVALID if it is not a whole number from 0. */
remat_status rm_variable_number(const rm_variables *variables, const char *name, int64_t *out);

typedef struct {
    rm_launcher launcher;                              /* RM_BY_NOBODY: there is none */
    int64_t size, rank, local_rank, local_size, nodes; /* -1: not given */
} rm_answer;

/* The answer of the launcher nearest to this process. INVALID if launchers contradict each other; the message names
 * both. */
remat_status rm_launchers_ask(const rm_variables *variables, rm_answer *out);
/* For a process without an answer: INVALID if variables of other launchers, or incomplete ones, show that it is one of
 * several ranks. The message names the variable. */
remat_status rm_launchers_check_alone(const rm_variables *variables);
/* "rank 1 of 4 (Slurm)" */
const char *rm_answer_text(const rm_answer *answer, char *out, size_t bytes);
/* Whether the launcher has given all ranks the same command line. */
bool rm_launcher_repeats(const rm_variables *variables, rm_launcher launcher);

#endif
