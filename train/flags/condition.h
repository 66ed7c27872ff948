/* condition.h: the conditions of flags, as the tables write them: "optimizer=lars|lamb; momentum>0 (why)" are two. Each is
 *
 *     "FLAG"           the flag is set         "FLAG=a|b"       it has one of these values
 *     "FLAG>N"         it is above N           "TABLE:SETTING"  the chosen row of the table reads the setting or has the trait: of
 *                                              --task, --model, --optimizer, --lr-schedule and --loss
 *     "A|B|C"          one of several; the last may be of any kind */
#ifndef RM_CONDITION_H
#define RM_CONDITION_H

#include "train/flags/options_table.h"

typedef struct {
    char text[160], why[120]; /* why: the text in parentheses after it, or "" */
    const rm_option *line;    /* of the first flag */
    const rm_option *last;    /* of the last flag, if it has a sign */
    char sign;                /* '>', '=', ':' or 0 */
    const char *values;       /* after the sign */
} rm_condition;

/* Reads the condition at *at and advances to the next; false at the end. */
bool rm_condition_next(const char **at, rm_condition *out);
bool rm_condition_holds(const rm_options *options, const rm_condition *condition);
/* The first flag, and of several without a sign the one that is set. */
const rm_option *rm_condition_cause(const rm_options *options, const rm_condition *condition);

/* What would fulfil it: "--momentum above 0", "--save=DIR", "--optimizer=lars or lamb". */
#define RM_REMEDY_BYTES 300
void rm_condition_remedy(const rm_condition *condition, char text[RM_REMEDY_BYTES]);
/* The rows of tables that read the flag: "; for adam, adamw, lamb", or "; not for cnn". "": `needs` names no table, or a trait of
 * models that is no flag. */
#define RM_READERS_BYTES 300
const char *rm_condition_readers(const rm_option *line, char text[RM_READERS_BYTES]);

/* The flag as given: "--optimizer=adam", "--bidirectional". */
void rm_option_now(const rm_options *options, const rm_option *line, char text[120]);

#endif
