/* process_state.h: what a process does, by proc(5). */
#ifndef TEST_PROCESS_STATE_H
#define TEST_PROCESS_STATE_H

#include <stdio.h>
#include <string.h>
#include <sys/types.h>

/* R: running or ready to run; S: asleep; T: stopped; Z: ended, and not reaped yet; X: gone. */
static inline char process_state(pid_t pid) {
    char path[40], text[400] = "", *end = NULL;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 'X';
    if (fread(text, 1, sizeof text - 1, file) > 0) end = strrchr(text, ')'); /* the program's name may have any characters */
    fclose(file);
    return end ? end[2] : 'X';
}

#endif
