/* remote.h: one launcher for several hosts (`remat launch -H`). It starts a launcher on each host, by ssh where the host is
 * another one:
 *
 *   launcher ── supervisor ─┬─ agent ── remat launch (here) ── supervisor ── ranks
 *                           └─ agent ── ssh B ·····► remat launch (on B) ── supervisor ── ranks
 *
 * An agent has the place of a rank. Standard input of the launcher that it starts is a pipe: first the environment, then one
 * byte for each signal. Whatever ends the pipe (an agent, ssh or the connection that is gone) ends that host's ranks, so
 * nothing is left on any host. */
#ifndef RM_REMOTE_H
#define RM_REMOTE_H

#include "dist/launch/launch.h"

/* The agent of one host. Signals have their default actions. Exits with the code of the host's launcher; ssh's own is 255. */
_Noreturn void rm_remote_run(const rm_launch_host *host);

/* In the launcher that an agent has started, before anything reads the environment: sets the variables that it sends. IO:
 * standard input is not an agent's. */
remat_status rm_remote_enter(void);

/* The next signal from the agent; 0: the pipe has ended. Call when standard input is readable. */
int rm_remote_signal(void);

#endif
