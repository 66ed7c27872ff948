/* hub_config.c: the config.json that Hugging Face's save_pretrained writes beside model.safetensors: flags that arrays do not tell,
 * and constants of the model, which must be those that Remat computes with. See family.h. */
#include "memory/host.h"
#include "memory/words.h"
#include "train/file.h"
#include "train/models/family.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 };

/* Python writes infinities that JSON has not. They become the largest number of as many characters. */
static void make_finite(char *text, size_t size) {
    static const char word[] = "Infinity", number[] = "1.0e+308";
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '"' && (!i || text[i - 1] != '\\')) quoted = !quoted;
        if (!quoted && size - i >= strlen(word) && !memcmp(text + i, word, strlen(word)))
            memcpy(text + i, number, strlen(number));
    }
}

static remat_status read_config(const char *path, json_t **out) {
    uint8_t *text;
    size_t size;
    json_error_t error;
    TRY(rm_file_read(path, MOST_BYTES, &text, &size));
    make_finite((char *)text, size);
    *out = json_loadb((const char *)text, size, 0, &error);
    rm_free(text);
    REQUIRE(*out, IO, "%s is not valid JSON, in line %d: %s; save it again or remove it", path, error.line, error.text);
    return REMAT_OK;
}

/* key: "a.b" is b of the object a, "a.1" the second element of the list a. NULL: there is none, or it is null. */
static const json_t *find(const json_t *at, const char *key) {
    char part[64];
    for (; *key && at; key += strlen(part), key += *key == '.') {
        snprintf(part, sizeof part, "%.*s", (int)strcspn(key, "."), key);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(part)) : json_object_get(at, part);
    }
    return json_is_null(at) ? NULL : at;
}

static double number_of(const json_t *value) {
    const char *special = json_string_value(json_object_get(value, "__float__")); /* since transformers 5 */
    double number = special ? strtod(special, NULL) : json_number_value(value);
    return number > 1e307 ? 1e307 : number;
}

static bool is(const json_t *value, const char *expected) {
    if (json_is_boolean(value)) return !strcmp(expected, json_is_true(value) ? "true" : "false");
    if (json_is_string(value)) return rm_has_word(expected, json_string_value(value));
    double number = strtod(expected, NULL);
    return number_of(value) == (number > 1e307 ? 1e307 : number);
}

static remat_status refuse(const char *path, const rm_hub_key *key, const json_t *value, const char *model) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(8));
    remat_status status =
        rm_fail(REMAT_INVALID,
                "%s: %s is %s, but --model=%s computes with %.*s, so these weights would give other "
                "results",
                path, key->key, text ? text : "something else", model, (int)strcspn(key->value, " "), key->value);
    free(text);
    return status;
}

/* A flag that arrays tell, too, gets this value. */
static void tell(rm_model_found *found, const char *flag, const json_t *value) {
    int count = found->n;
    if (json_is_boolean(value)) rm_found_switch(found, flag, json_is_true(value));
    if (json_is_integer(value)) rm_found_number(found, flag, json_integer_value(value));
    for (int i = 0; i < count && found->n > count; i++)
        if (!strcmp(found->flag[i].flag, flag)) found->flag[i] = found->flag[--found->n];
}

remat_status rm_found_by_hub_config(rm_model_found *found, const rm_hub_key *keys, const char *path) {
    char config[RM_PATH_BYTES], directory[RM_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    remat_status status = REMAT_OK;
    json_t *root;
    snprintf(directory, sizeof directory, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : ".");
    TRY(rm_path_join(config, sizeof config, directory, "config.json"));
    if (!rm_path_is_file(config)) found->untold = keys;
    if (!keys || found->untold) return REMAT_OK;
    TRY(read_config(config, &root));
    for (; keys->key && !status; keys++) {
        const json_t *value = find(root, keys->key);
        if (value && keys->flag) tell(found, keys->flag, value);
        if (value && keys->value && !is(value, keys->value)) status = refuse(config, keys, value, found->model);
    }
    json_decref(root);
    return status;
}
