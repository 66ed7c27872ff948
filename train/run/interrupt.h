/* interrupt.h: signals as answers that a loop asks for when it is convenient. Ctrl-C, SIGTERM and SIGHUP (a lost connection) ask
 * to save and stop; SIGUSR1, which batch systems send before the time is up, asks to save and go on. */
#ifndef RM_INTERRUPT_H
#define RM_INTERRUPT_H

#include <stdbool.h>

/* From here on SIGUSR1 is remembered. It is caught long before there is anything to save, as it would end the program. */
void rm_interrupt_catch_save(void);

/* From here on the first signal that asks to stop is remembered, and a second one ends the program at once. What comes within one
 * to two seconds of the first (whole seconds of the clock are compared) counts as the first again. A SIGHUP that is ignored,
 * as under nohup, stays so. */
void rm_interrupt_catch(void);

int rm_interrupt_caught(void);     /* SIGINT, SIGTERM, SIGHUP, or 0 */
bool rm_interrupt_take_save(void); /* has SIGUSR1 come since this was last asked? */

#endif
