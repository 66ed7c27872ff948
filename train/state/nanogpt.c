/* nanogpt.c: see nanogpt.h. */
#include "train/state/nanogpt.h"

#include "train/state/weights.h"
#include "train/text.h"

#include <string.h>

bool rm_nanogpt_wrote(const rm_safetensors *file) {
    const rm_st_array *first = rm_weights_named(file, "h.0.attn.c_attn.weight");
    return first && first->rank == 2 && first->dim[0] == 3 * first->dim[1];
}

bool rm_nanogpt_transposes(const char *ours) {
    static const char *const endings[] = {".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight",
                                          ".mlp.c_proj.weight"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (!strncmp(ours, "h.", 2) && rm_text_ends(ours, endings[i])) return true;
    return false;
}
