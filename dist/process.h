/* process.h: other processes of this host: whether one has ended, and how. For processes that are not our children, which
 * is why waitpid is of no use. */
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

#endif
