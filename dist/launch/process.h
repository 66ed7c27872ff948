/* process.h: other processes of this host: whether one has ended, and how, for processes that are not our children, so that
 * waitpid is of no use; which are our children, for who has to end them all; and who has started this one as a rank. */
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

/* Had it this variable when its program began? False too where its variables cannot be read: then it is somebody else's. */
bool rm_process_has_variable(pid_t pid, const char *name);

/* A descriptor that polls readable when what has started this process as one of several ranks is gone: mpirun, its daemon on this
 * host, torchrun's agent, a keeper. It is the nearest ancestor that was not told itself which rank it is, so scripts in between
 * do not matter. `who` becomes "mpirun (process 4711)". -1: nobody has, or it cannot be seen. */
int rm_process_watch_launcher(pid_t *pid, char *who, size_t bytes);

bool rm_process_stopped(pid_t pid); /* by SIGSTOP or a debugger */

/* Lets those go on (SIGCONT) who are stopped by a signal and belong to one of the process groups. The others hear nothing:
 * a SIGCONT would take from them the SIGSTOP with which a debugger, or a search for leaks, is about to hold them. */
void rm_process_wake(const pid_t *groups, int n);

/* The children of this process (of its only thread), at most `most`; how many. Those that have ended and were not waited for
 * are among them. */
int rm_process_children(pid_t *children, int most);

#endif
