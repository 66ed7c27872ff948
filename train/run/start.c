/* start.c: see start.h. */
#include "train/run/start.h"

#include "memory/host.h"
#include "train/run/setup.h"
#include "train/ranks/patient_barrier.h"

#include <stdio.h>
#include <string.h>

/* ---- The samples of an update ----------------------------------------------------------------------------------- */

/* Which of these flags the command line has, and their values. */
typedef struct {
    bool batch, steps;
    int64_t batch_said, steps_said;
} said;

/* Batches per update and rank. Micro steps of shards divide a batch and do not count. */
static int64_t batches(const rm_options *o) { return o->order.shards ? 1 : o->order.micro_steps; }

/* Removes the command line's values, so that reading the state sets its own. */
static said set_aside(rm_options *o) {
    said s = {rm_options_given(o, "batch"), rm_options_given(o, "accumulate-steps"), o->order.batch,
              o->order.micro_steps};
    rm_options_mark(o, "batch", false);
    rm_options_mark(o, "accumulate-steps", false);
    o->order.micro_steps = 1; /* for states without this flag */
    return s;
}

/* For --resume-batch=rank. Other rows would read other parts of the text. */
static remat_status may_change(const rm_options *o, int64_t before, int64_t now) {
    REQUIRE(!o->order.stateful || now == before, INVALID,
            "--resume-batch=rank would change the samples of an update from %lld to %lld, and with --stateful each of "
            "them is a row that reads its own part of the text; use as many ranks as before, or remove "
            "--resume-batch=rank",
            (long long)before, (long long)now);
    return REMAT_OK;
}

/* No product here overflows: flags are at most 10^6 and ranks at most 32,767, in states (state_resume.c), too. */
static remat_status fit_batch(rm_options *o, const said *s, const char *state, rm_state_point *point) {
    bool keeps_rank = !strcmp(o->resume_batch, "rank");
    int64_t before = o->order.batch * batches(o) * (point->world_size / point->pipeline), ranks = rm_setup_ranks(o);
    if (s->steps) {
        o->order.micro_steps = s->steps_said;
        rm_options_mark(o, "accumulate-steps", true);
    }
    int64_t parts = ranks * batches(o);
    REQUIRE(
        s->batch || keeps_rank || before % parts == 0, INVALID,
        "the training state in %s has updates of %lld samples, which cannot be divided equally among %lld rank%s with "
        "%lld batch%s each; change the number of ranks or --accumulate-steps, or give --resume-batch=rank to keep each "
        "rank's batch of %lld",
        state, (long long)before, (long long)ranks, ranks == 1 ? "" : "s", (long long)batches(o),
        batches(o) == 1 ? "" : "es", (long long)o->order.batch);
    if (s->batch || !keeps_rank) o->order.batch = s->batch ? s->batch_said : before / parts;
    int64_t now = o->order.batch * parts;
    point->update = before;
    if (keeps_rank) return may_change(o, before, now);
    REQUIRE(now == before, INVALID,
            "--batch=%lld contradicts the training state in %s, whose updates have %lld samples: %lld rank%s with %lld "
            "batch%s of %lld make %lld; change --batch, --accumulate-steps or the number of ranks, or give "
            "--resume-batch=rank for updates of %lld samples from now on",
            (long long)o->order.batch, state, (long long)before, (long long)ranks, ranks == 1 ? "" : "s",
            (long long)batches(o), batches(o) == 1 ? "" : "es", (long long)o->order.batch, (long long)now,
            (long long)now);
    return REMAT_OK;
}

/* ---- The state -------------------------------------------------------------------------------------------------- */

/* Files that the state names may be missing when a run is resumed on another machine or after a reboot. */
static remat_status check_files(const rm_options *o, const char *state) {
    static const char *const flags[] = {"data",        "labels",       "lengths", "eval-data",
                                        "eval-labels", "eval-lengths", "spill"};
    enum { SPILL = 6 };
    for (int f = 0; f <= SPILL; f++) {
        char path[RM_PATH_BYTES];
        int i = 0;
        while (strcmp(rm_options_name(i), flags[f])) i++;
        rm_options_text(o, i, path, sizeof path);
        REQUIRE(!*path || o->said[i] || rm_path_exists(path), IO,
                "the run in %s has --%s=%s, which does not exist here%s: %sgive another with --%s=%s", state, flags[f],
                path, *path == '/' ? "" : " (the path is relative to the folder in which the run was started)",
                f == SPILL ? "create it, or " : "", flags[f], f == SPILL ? "DIR" : "FILE");
    }
    return REMAT_OK;
}

remat_status rm_start_read(rm_options *o, const char *state, rm_state_point *point) {
    said s = set_aside(o);
    TRY(rm_state_read(state, RM_TRAIN, o, point));
    TRY(check_files(o, state));
    return fit_batch(o, &s, state, point);
}

/* Uses a patient barrier because searching states can take longer than the time-out of a collective. */
static remat_status find_own(rm_ranks *ranks, const rm_options *o, char state[RM_PATH_BYTES]) {
    char note[RM_STATE_NOTE] = "";
    remat_status status = REMAT_OK;
    if (ranks->rank == 0) status = rm_state_after_restart(o->save, state, note);
    if (*note) fprintf(stderr, "remat train: %s\n", note);
    TRY(rm_patient_barrier(ranks, status, NULL, 0));
    return rm_ranks_tell(ranks, state, RM_PATH_BYTES);
}

remat_status rm_start_again(rm_ranks *ranks, rm_options *o) {
    char state[RM_PATH_BYTES] = "", again = o->save && rm_state_restarted();
    TRY(rm_ranks_tell(ranks, &again, 1));
    if (!again) return REMAT_OK;
    TRY(find_own(ranks, o, state));
    if (!*state) return REMAT_OK;
    return rm_options_replace(&o->resume, state);
}

/* Restart scripts always pass --save=DIR --resume=DIR, so a missing state is not an error the first time. */
remat_status rm_start_find(rm_options *o, char state[RM_PATH_BYTES], rm_state_point *point) {
    bool found;
    *state = 0;
    *point = (rm_state_point){0};
    if (!o->resume) return REMAT_OK;
    TRY(rm_state_find(o->resume, state, &found));
    if (found && !o->save && !rm_path_same(state, o->resume)) /* a resumed run saves to the same directory */
        TRY(rm_options_replace(&o->save, o->resume));
    if (found) return rm_state_advise(o->resume, state, rm_start_read(o, state, point));
    if (o->save && rm_path_same(o->save, o->resume)) return REMAT_OK;
    FAIL(IO,
         "%s holds no training state: give the directory of --save (or give it to both --save and --resume to start a "
         "new run)",
         o->resume);
}
