/* state_json.h: state.json as a file: one object, and under "crc32" the checksum of the rest, whatever its spaces and the
 * order of its names. state.c writes the contents and state_resume.c reads them. */
#ifndef RM_STATE_JSON_H
#define RM_STATE_JSON_H

#include "train/file.h"
#include "train/report/scores.h"

#include <jansson.h>

/* The end of every error message about a damaged file of a state: what to do. */
#define RM_STATE_REMEDY "; resume from another training state, or start afresh"

/* A text of any bytes, such as a path: a string where it is UTF-8, else {"hex": "2f746d70e9"}. NULL: no memory. */
json_t *rm_state_json_text(const char *text);
/* The text of such a value; `buffer` is for those in hex. NULL: it is neither, or too long. */
const char *rm_state_json_text_of(const json_t *value, char buffer[RM_PATH_BYTES]);

/* The names of a metric's best value and of the step that it was at: "best", "best_step" of the loss; "best_accuracy", "best_accuracy_step". */
void rm_state_best_names(rm_score_name metric, char name[64], char step[64]);

/* Adds the checksum; fsynced. `root` NULL: there was no memory for it. */
remat_status rm_state_json_write(const char *path, json_t *root);

/* IO: it is no object, or not what was written; of files without a checksum, from before there was one, only the first can be
 * known. *out is the caller's: json_decref. `name` is for the sentence. */
remat_status rm_state_json_parse(const char *text, size_t size, const char *name, json_t **out);
/* The same of the state in the directory `state`; `path` becomes the file's. */
remat_status rm_state_json_read(const char *state, char path[RM_PATH_BYTES], json_t **out);

#endif
