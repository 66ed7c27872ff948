/* interrupt.c: see interrupt.h. */
#include "train/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>

static volatile sig_atomic_t caught;
static volatile time_t caught_s;

/* The step that is running is finished and saved; a second signal ends the program at once. But Slurm signals every process
 * of a step, and the launcher among them passes it on: what comes within a second or so is the first one again. */
static void remember(int number) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (caught && now.tv_sec > caught_s + 1) {
        signal(number, SIG_DFL);
        raise(number);
    } else if (!caught) {
        caught_s = now.tv_sec;
        caught = number;
    }
}

void rm_interrupt_catch(void) {
    struct sigaction action = {.sa_handler = remember, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int rm_interrupt_caught(void) { return caught; }
