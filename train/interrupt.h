/* interrupt.h: Ctrl-C and SIGTERM as a number that a loop looks at when it is convenient. */
#ifndef RM_INTERRUPT_H
#define RM_INTERRUPT_H

/* From here on the first signal is remembered, and a second one ends the program at once. What comes within one to two
 * seconds of the first (whole seconds of the clock are compared) counts as the first again. */
void rm_interrupt_catch(void);

int rm_interrupt_caught(void); /* SIGINT, SIGTERM, or 0 */

#endif
