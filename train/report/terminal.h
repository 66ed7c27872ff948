/* terminal.h: text that fits the terminal. */
#ifndef RM_TERMINAL_H
#define RM_TERMINAL_H

#include <stdio.h>

/* The width of the terminal that `out` writes to, or 0 if `out` is none (a file, a pipe). */
int rm_terminal_columns(FILE *out);

/* A line of --help: "  --flag=N    about". The text begins in column RM_HELP_COLUMN, below a flag that reaches so far. On a
 * terminal, lines are broken between words; elsewhere a flag stays on one line, for grep. */
#define RM_HELP_COLUMN 33
void rm_terminal_flag(FILE *out, const char *flag, const char *about);

#endif
