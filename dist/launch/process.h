/* process.h: other processes of this host. It answers whether a process has ended, and how, even if it is not a child,
 * so that waitpid cannot tell; which processes are children of this one; and which launcher started this one as a
 * rank. */
#ifndef RM_PROCESS_H
#define RM_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A descriptor that polls readable when the process ends (pidfd_open); -1 with errno if the kernel does not support it
 * or the process does not exist. */
int rm_process_watch(pid_t pid);

/* "was killed by signal 9 (Killed)", "exited with status 1", or "has ended" if the status is no longer known. */
void rm_process_end(pid_t pid, int watch, char *text, size_t bytes);

/* Whether the process had this variable when its program started. Also false if its variables cannot be read: then it
 * belongs to another user. */
bool rm_process_has_variable(pid_t pid, const char *name);

/* A descriptor that polls readable when the launcher of this rank is gone: mpirun, its daemon on this host, torchrun's
 * agent, a supervisor. The launcher is the nearest ancestor that does not itself have a rank, so scripts in between do
 * not matter. `who` becomes "mpirun (process 4711)". -1: there is none, or it cannot be seen. */
int rm_process_watch_launcher(pid_t *pid, char *who, size_t bytes);

bool rm_process_stopped(pid_t pid); /* by SIGSTOP or a debugger */

/* Sends SIGCONT to processes that a signal has stopped and that belong to one of the process groups. Others get no
 * signal: a SIGCONT would cancel the SIGSTOP with which a debugger or a leak checker is about to stop them. */
void rm_process_wake(const pid_t *groups, int n);

/* The children of this process (of its only thread), at most `most`. Returns their number. Children that have ended but
 * were not waited for are included. */
int rm_process_children(pid_t *children, int most);

#endif
