/* state_json.h: state.json as a file: one object with "crc32", the checksum of the rest, independent of white space and key order.
 * state.c writes the contents and state_resume.c reads them. */
#ifndef RM_STATE_JSON_H
#define RM_STATE_JSON_H

#include "train/file.h"
#include "train/report/scores.h"

#include <jansson.h>

/* The end of every error message about a damaged file of a state: what to do. */
#define RM_STATE_REMEDY "; resume from another training state, or start a new run"

/* A text of any bytes, such as a path: a string if it is UTF-8, else {"hex": "2f746d70e9"}. NULL: no memory. */
json_t *rm_state_json_text(const char *text);
/* The text of such a value; hex is decoded into `buffer`. NULL: neither form, or too long. */
const char *rm_state_json_text_of(const json_t *value, char buffer[RM_PATH_BYTES]);

/* The names of a metric's best value and of its step: "best" and "best_step" for the loss, else "best_accuracy" and so on. */
void rm_state_best_names(rm_score_name metric, char name[64], char step[64]);

/* Adds the checksum and writes the file; fsynced. `root` NULL: MEMORY. */
remat_status rm_state_json_write(const char *path, json_t *root);

/* IO: not an object, or the checksum differs (older files have none). The caller owns *out: json_decref. `name` is for the message. */
remat_status rm_state_json_parse(const char *text, size_t size, const char *name, json_t **out);
/* The same for the state in the directory `state`; `path` receives the file's path. */
remat_status rm_state_json_read(const char *state, char path[RM_PATH_BYTES], json_t **out);

#endif
