/* terminal.c: see terminal.h. */
#include "train/report/terminal.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int rm_terminal_columns(FILE *out) {
    struct winsize size;
    if (!isatty(fileno(out))) return 0;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* Prints `text` from column RM_HELP_COLUMN on, with `room` characters a line. */
static void print_words(FILE *out, const char *text, size_t room) {
    for (size_t column = 0; *text;) {
        const char *word = text + strspn(text, " ");
        size_t space = (size_t)(word - text), length = strcspn(word, " ");
        bool breaks = column > 0 && column + space + length > room;
        if (breaks) fprintf(out, "\n%*s", RM_HELP_COLUMN, ""), column = 0;
        if (column == 0) space = 0;
        fprintf(out, "%*s%.*s", (int)space, "", (int)length, word);
        column += space + length;
        text = word + length;
    }
    fputc('\n', out);
}

void rm_terminal_flag(FILE *out, const char *flag, const char *about) {
    enum { NARROWEST = RM_HELP_COLUMN + 30 };
    int columns = rm_terminal_columns(out);
    bool fits = strlen(flag) <= RM_HELP_COLUMN - 3;
    if (fits)
        fprintf(out, "  %-*s", RM_HELP_COLUMN - 2, flag);
    else
        fprintf(out, "  %s\n%*s", flag, RM_HELP_COLUMN, "");
    if (columns >= NARROWEST)
        print_words(out, about, (size_t)(columns - RM_HELP_COLUMN));
    else
        fprintf(out, "%s\n", about);
}
