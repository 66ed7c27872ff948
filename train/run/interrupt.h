/* interrupt.h: records signals, which the training loop polls. Ctrl-C, SIGTERM and SIGHUP (a lost connection) ask to save and
 * stop. SIGUSR1, which batch systems send before the time limit, asks to save and continue. */
#ifndef RM_INTERRUPT_H
#define RM_INTERRUPT_H

#include <stdbool.h>

/* Starts to record SIGUSR1. Call it early, because an uncaught SIGUSR1 ends the program. */
void rm_interrupt_catch_save(void);

/* Starts to record signals that ask to stop: the first is recorded, a second one ends the program at once. Signals within one to
 * two seconds of the first (the clock has whole seconds) count as the first. SIGHUP stays ignored if it was, as under nohup. */
void rm_interrupt_catch(void);

/* Before an exec: signals that have not been obeyed, and those that arrive until rm_interrupt_catch, are kept for the next program. */
void rm_interrupt_defer(void);

int rm_interrupt_caught(void);     /* SIGINT, SIGTERM, SIGHUP, or 0 */
bool rm_interrupt_take_save(void); /* has SIGUSR1 arrived since the last call? */

#endif
