/* hub_config.c: flags from the config.json that Hugging Face's save_pretrained writes beside model.safetensors. See family.h. */
#include "memory/host.h"
#include "train/file.h"
#include "train/models/family.h"

#include <jansson.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 };

static remat_status read_config(const char *path, json_t **out) {
    uint8_t *text;
    size_t size;
    json_error_t error;
    TRY(rm_file_read(path, MOST_BYTES, &text, &size));
    *out = json_loadb((const char *)text, size, 0, &error);
    rm_free(text);
    REQUIRE(*out, IO, "%s is not valid JSON, in line %d: %s; save it again or remove it", path, error.line, error.text);
    return REMAT_OK;
}

remat_status rm_found_by_hub_config(rm_model_found *found, const rm_hub_key *keys, const char *path) {
    char config[RM_PATH_BYTES], directory[RM_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    json_t *root;
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    TRY(rm_path_join(config, sizeof config, directory, "config.json"));
    if (!keys || !rm_path_is_file(config)) return REMAT_OK;
    TRY(read_config(config, &root));
    for (; keys->key; keys++) {
        const json_t *value = json_object_get(root, keys->key);
        if (json_is_integer(value)) rm_found_number(found, keys->flag, json_integer_value(value));
    }
    json_decref(root);
    return REMAT_OK;
}
