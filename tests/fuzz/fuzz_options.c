/* fuzz_options.c: any bytes as a --config file or, if they begin with a brace, as the state.json of a training state.
 * The saved form of accepted flags must be accepted again and have the same meaning. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "train/state/state.h"

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const fuzz_seed seeds[] = {
    SEED("# a run\nmodel = gru\nhidden = 128\nlr=1e-3 # small\nno-shuffle = true\ndata = text.txt\n"),
    SEED("layers=2\r\ncheckpoint-segments = 8\nclip-grad-norm = 0.5\n--seed = 7\n\n"),
    SEED(
        "{\"format\":1,\"step\":10,\"epoch\":0,\"position\":10,\"samples\":44,\"flags\":{\"model\":\"lstm\",\"hidden\":"
        "\"8\",\"batch\":\"4\",\"no-fold\":\"false\"},\"files\":{}}"),
    SEED("{\"format\":2,\"step\":10,\"epoch\":1,\"consumed\":10,\"samples\":44,\"last_lr\":0.1,\"world_size\":4,"
         "\"zero\":1,\"shards\":8,\"flags\":{\"batch\":\"4\"},\"files\":{}}"),
};

static remat_status read(const uint8_t *data, size_t size, rm_options *options) {
    rm_state_point point;
    if (rm_options_defaults(options)) abort();
    return size && data[0] == '{' ? rm_state_parse((const char *)data, size, "state.json", RM_TRAIN, options, &point)
                                  : rm_options_parse_config(options, (const char *)data, size, "run.conf");
}

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        rm_options options;
        if (read(seeds[i].bytes, seeds[i].size, &options)) abort();
        rm_options_free(&options);
    }
    *count = sizeof seeds / sizeof seeds[0];
    return seeds;
}

static void keep_again(const rm_options *options) {
    rm_options other;
    char text[RM_PATH_BYTES], again[RM_PATH_BYTES];
    if (rm_options_defaults(&other)) abort();
    for (int i = 0; i < rm_options_count(); i++) {
        if (rm_options_memory(i) == RM_FORGOTTEN || !options->given[i]) continue;
        rm_options_text(options, i, text, sizeof text);
        if (rm_options_adopt(&other, RM_TRAIN, rm_options_name(i), text, "kept")) abort();
        if (other.given[i] && strcmp(rm_options_text(&other, i, again, sizeof again), text)) abort();
    }
    rm_options_free(&other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_options options;
    remat_status status = read(data, size, &options);
    if (!status) keep_again(&options);
    if (status && !*remat_last_error()) abort();
    rm_options_free(&options);
    return 0;
}
