/* state_json.c: see state_json.h. */
#include "train/state/state_json.h"

#include "memory/host.h"
#include "train/state/state_directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define MOST_BYTES (16u << 20)
#define CHECKSUM "crc32"

static void free_text(char *text) {
    json_free_t release;
    json_get_alloc_funcs(NULL, &release);
    release(text);
}

/* The checksum of everything except itself; it survives writing and reading. */
static remat_status sum_up(json_t *root, const char *name, json_int_t *sum) {
    json_t *own = json_incref(json_object_get(root, CHECKSUM));
    json_object_del(root, CHECKSUM);
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    if (own) json_object_set_new(root, CHECKSUM, own);
    REQUIRE(text, MEMORY, "no memory for the text of %s", name);
    *sum = (json_int_t)crc32_z(crc32_z(0, NULL, 0), (const Bytef *)text, strlen(text));
    free_text(text);
    return REMAT_OK;
}

/* ---- Texts that need not be UTF-8 ----------------------------------------------------------------------------------- */

json_t *rm_state_json_text(const char *text) {
    json_t *string = json_string(text);
    size_t length = strlen(text);
    char *hex = string ? NULL : rm_malloc(2 * length + 1);
    if (!hex) return string;
    for (size_t i = 0; i < length; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned char)text[i]);
    json_t *object = json_pack("{s:s}", "hex", hex);
    rm_free(hex);
    return object;
}

const char *rm_state_json_text_of(const json_t *value, char buffer[RM_PATH_BYTES]) {
    const char *hex = json_string_value(json_object_get(value, "hex"));
    if (json_is_string(value)) return json_string_value(value);
    size_t length = hex ? strlen(hex) / 2 : 0;
    if (!length || strlen(hex) % 2 || length >= RM_PATH_BYTES || strspn(hex, "0123456789abcdef") != 2 * length)
        return NULL;
    for (size_t i = 0; i < length; i++) {
        char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};
        buffer[i] = (char)strtoul(byte, NULL, 16);
        if (!buffer[i]) return NULL;
    }
    buffer[length] = 0;
    return buffer;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------ */

static remat_status write_text(const char *path, const char *text) {
    rm_file_writer writer;
    remat_status status = rm_file_create(path, &writer);
    if (!status) status = rm_file_write(&writer, text, strlen(text));
    if (!status) status = rm_file_write(&writer, "\n", 1);
    if (!status) status = rm_file_finish(&writer);
    rm_file_abandon(&writer);
    return status;
}

void rm_state_best_names(rm_score_name metric, char name[64], char step[64]) {
    const char *of = metric == RM_LOSS ? "" : rm_scores[metric].name;
    snprintf(name, 64, "best%s%s", *of ? "_" : "", of);
    snprintf(step, 64, "%s_step", name);
}

remat_status rm_state_json_write(const char *path, json_t *root) {
    json_int_t sum = 0;
    REQUIRE(root, MEMORY, "no memory to write %s", path);
    TRY(sum_up(root, path, &sum));
    char *text = json_object_set_new(root, CHECKSUM, json_integer(sum)) ? NULL : json_dumps(root, JSON_INDENT(2));
    REQUIRE(text, MEMORY, "no memory to write %s", path);
    remat_status status = write_text(path, text);
    free_text(text);
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------ */

static remat_status check(json_t *root, const char *name) {
    json_int_t sum;
    REQUIRE(json_is_object(root), IO, "%s is damaged: it is not a JSON object" RM_STATE_REMEDY, name);
    const json_t *saved = json_object_get(root, CHECKSUM);
    if (!saved) return REMAT_OK;
    TRY(sum_up(root, name, &sum));
    REQUIRE(json_is_integer(saved) && json_integer_value(saved) == sum, IO,
            "%s is not as it was saved (checksum %08llx; saved was %08llx)" RM_STATE_REMEDY, name,
            (unsigned long long)sum, (unsigned long long)json_integer_value(saved));
    return REMAT_OK;
}

remat_status rm_state_json_parse(const char *text, size_t size, const char *name, json_t **out) {
    json_error_t error;
    *out = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(*out, IO, "%s is damaged in line %d: %s" RM_STATE_REMEDY, name, error.line, error.text);
    remat_status status = check(*out, name);
    if (!status) return REMAT_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}

remat_status rm_state_json_read(const char *state, char path[RM_PATH_BYTES], json_t **out) {
    uint8_t *text;
    size_t size;
    *out = NULL;
    TRY(rm_path_join(path, RM_PATH_BYTES, state, RM_STATE_JSON));
    REQUIRE(rm_path_exists(path), IO, "%s is missing" RM_STATE_REMEDY, path);
    TRY(rm_file_read(path, MOST_BYTES, &text, &size));
    remat_status status = rm_state_json_parse((const char *)text, size, path, out);
    rm_free(text);
    return status;
}
