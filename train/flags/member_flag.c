/* member_flag.c: see member_flag.h. */
#include "train/flags/member_flag.h"

#include <stdio.h>
#include <string.h>

/* Flags whose names differ from their members'. */
static const char *const others[][2] = {{"backend", "--dist-backend"},
                                        {"carry_stride", "the second number of --tbptt"},
                                        {"milestone", "--milestones"},
                                        {"scale", "--scale-lr"},
                                        {"schedule", "--lr-schedule"},
                                        {"spill_dir", "--spill"},
                                        {"warmup_steps", "--warmup-steps or --warmup-epochs"}};

const char *rm_flag_of_member(const char *member) {
    static _Thread_local char flag[2][72]; /* two buffers, because a message may name two members */
    static _Thread_local int turn;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(member, others[i][0])) return others[i][1];
    char *out = flag[turn = !turn];
    snprintf(out, sizeof flag[0], "--%s", member);
    for (char *c = out; *c; c++)
        if (*c == '_') *c = '-';
    return out;
}
