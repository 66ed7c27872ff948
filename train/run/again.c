/* again.c: see again.h. */
#define _GNU_SOURCE
#include "train/run/again.h"

#include "dist/launch/world.h"
#include "memory/host.h"
#include "train/file.h"
#include "train/run/interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* How many worlds in a row. */
#define VAIN "REMAT_WORLDS_IN_VAIN"
enum { MOST_IN_VAIN = 20 };

bool rm_again_counts(bool made_steps) {
    char number[16];
    const char *before = getenv(VAIN);
    int vain = made_steps ? 0 : 1 + (before ? atoi(before) : 0);
    snprintf(number, sizeof number, "%d", vain);
    setenv(VAIN, number, 1);
    return vain <= MOST_IN_VAIN;
}

void rm_again_load(void) {
    char **argv;
    if (rm_program_words(&argv)) return;
    rm_world_again();
    rm_interrupt_defer();
    fflush(NULL);
    execv("/proc/self/exe", argv);
    rm_free(argv);
}
