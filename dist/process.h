/* process.h: other processes of this host: whether one has ended, and how, for processes that are not our children, so that
 * waitpid is of no use; and which are our children, for who has to end them all. */
#ifndef RM_PROCESS_H
#define RM_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A descriptor that polls readable when the process ends (pidfd_open); -1 with errno where the kernel or the process is
 * not there. */
int rm_process_watch(pid_t pid);

/* "was killed by signal 9 (Killed)", "exited with status 1", "has ended" when nobody can say any more. */
void rm_process_end(pid_t pid, int watch, char *text, size_t bytes);

bool rm_process_stopped(pid_t pid); /* by SIGSTOP or a debugger */

/* Lets those go on (SIGCONT) who are stopped by a signal and belong to one of the process groups. The others hear nothing:
 * a SIGCONT would take from them the SIGSTOP with which a debugger, or a search for leaks, is about to hold them. */
void rm_process_wake(const pid_t *groups, int n);

/* The children of this process (of its only thread), at most `most`; how many. Those that have ended and were not waited for
 * are among them. */
int rm_process_children(pid_t *children, int most);

#endif
