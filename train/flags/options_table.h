/* options_table.h: shared by the files options*.c: the table of flags, and the parsing of a value. The rest of the program uses
 * options.h.
 *
 *   options_table.c   the table, and --help
 *   options_value.c   one value, from text and to text
 *   options.c         command lines, config files, presets, training states, and which of them wins
 *   condition.c       the conditions of flags, as text
 *   options_check.c   flags that cannot be combined
 *   options_files.c   files that would be overwritten */
#ifndef RM_OPTIONS_TABLE_H
#define RM_OPTIONS_TABLE_H

#include "train/flags/options.h"

#include <stddef.h>

typedef enum {
    RM_OPTION_SWITCH,
    RM_OPTION_NO, /* a switch that turns its member off */
    RM_OPTION_INTEGER,
    RM_OPTION_REAL,
    RM_OPTION_SIZE,
    RM_OPTION_TEXT,
    RM_OPTION_CHOICE,
    RM_OPTION_WINDOWS
} rm_option_type;

/* The member's type in C. It may differ from the type on the command line: a choice may be an enum or a bool. */
typedef enum {
    RM_STORED_BOOL,
    RM_STORED_INT,
    RM_STORED_INT64,
    RM_STORED_SIZE,
    RM_STORED_REAL,
    RM_STORED_OTHER
} rm_option_store;

/* What a run does with the file that a flag names. Directories, and files that are read before they are written (--calibration),
 * count as read: nothing else may overwrite them. */
typedef enum { RM_NO_FILE, RM_FILE_READ, RM_FILE_WRITTEN } rm_option_file;

typedef struct {
    const char *name;
    rm_option_type type;
    rm_option_store store;
    size_t offset; /* in rm_options */
    int commands;
    rm_option_memory memory;
    const char *default_text; /* NULL: none */
    double low, high;         /* of numbers, inclusive */
    const char *choices;      /* of CHOICE: "a|b|c" */
    const char *value, *help; /* as --help prints them */
    const char *bare;         /* the value of the flag without one; NULL: it needs one */
    rm_option_file file;
    /* Conditions for an effect (condition.h); NULL: none. */
    const char *needs;
    bool needs_always; /* check the conditions even if the default was given */
} rm_option;

#define RM_OPTION_SHOWN 60 /* characters of user input in a message */
#define RM_TINY 1e-300     /* as `low`: "more than 0" */

extern const rm_option rm_option_table[];
extern const int rm_n_options; /* <= RM_MAX_FLAGS */

static inline void *rm_option_member(const rm_options *options, const rm_option *line) {
    return (char *)options + line->offset;
}
static inline bool rm_option_is_switch(const rm_option *line) {
    return line->type == RM_OPTION_SWITCH || line->type == RM_OPTION_NO;
}
static inline bool rm_option_is_text(const rm_option *line) {
    return line->store == RM_STORED_OTHER && line->type != RM_OPTION_WINDOWS;
}
const rm_option *rm_option_find(const char *name, size_t length); /* NULL: no such flag */
const rm_option *rm_option_named(const char *name);               /* the flag must exist */
const char *rm_option_command(int commands);                      /* the name of the first of them */
const char *rm_option_group(const rm_option *line); /* the --help title above this flag, or NULL */
/* The help, the rows of tables that read the flag, and the default: "momentum; for sgd, rmsprop, lars [0]". */
#define RM_ABOUT_BYTES 1024
const char *rm_option_about(const rm_option *line, char text[RM_ABOUT_BYTES]);

/* Where a value was given, for messages: "--hidden=12x" or "runs.conf:3: hidden = 12x". */
typedef struct {
    const char *before, *between; /* "--" and "=", or "FILE:3: " and " = " */
} rm_option_place;

/* Part of rm_options_check (options_files.c). INVALID: two flags name the same file, and one of them writes it, or one
 * writes into a training state. */
remat_status rm_option_check_files(const rm_options *options, rm_command command);

/* Reads a value and marks the flag as given; INVALID says what is wrong, and where. */
remat_status rm_option_set(rm_options *options, const rm_option *line, const char *value, rm_option_place where);
void rm_option_clear(rm_options *options, const rm_option *line); /* of a text: frees it */
/* Writes the value as on the command line into `text`. */
const char *rm_option_text(const rm_options *options, const rm_option *line, char *text, size_t text_bytes);

#endif
