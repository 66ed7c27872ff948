/* start.c: see start.h. */
#include "train/run/start.h"

#include "memory/host.h"
#include "train/run/setup.h"
#include "train/ranks/patient_barrier.h"

#include <stdio.h>
#include <string.h>

/* ---- The samples of an update ----------------------------------------------------------------------------------- */

/* What of it was said on the command line. */
typedef struct {
    bool batch, steps;
    int64_t batch_said, steps_said;
} said;

/* Micro steps that add to an update, rather than cut it. */
static int64_t batches(const rm_options *o) { return o->order.shards ? 1 : o->order.micro_steps; }

/* Lets the state say it instead, to learn what it was. */
static said set_aside(rm_options *o) {
    said s = {rm_options_given(o, "batch"), rm_options_given(o, "accumulate-steps"), o->order.batch,
              o->order.micro_steps};
    rm_options_mark(o, "batch", false);
    rm_options_mark(o, "accumulate-steps", false);
    o->order.micro_steps = 1; /* a state that does not say had none */
    return s;
}

/* No product here overflows: flags end at 10^6, and ranks at 32,767, in a state (state_resume.c) as on the command line. */
static remat_status fit_batch(rm_options *o, const said *s, const char *state, int64_t ranks_before) {
    int64_t before = o->order.batch * batches(o) * ranks_before, ranks = rm_setup_ranks(o);
    if (s->steps) {
        o->order.micro_steps = s->steps_said;
        rm_options_mark(o, "accumulate-steps", true);
    }
    int64_t parts = ranks * batches(o);
    REQUIRE(
        s->batch || before % parts == 0, INVALID,
        "the training state in %s has updates of %lld samples, which %lld rank%s with %lld batch%s each cannot share "
        "equally; change the number of ranks or --accumulate-steps, or start afresh",
        state, (long long)before, (long long)ranks, ranks == 1 ? "" : "s", (long long)batches(o),
        batches(o) == 1 ? "" : "es");
    o->order.batch = s->batch ? s->batch_said : before / parts;
    int64_t now = o->order.batch * parts;
    REQUIRE(
        now == before, INVALID,
        "--batch=%lld does not agree with the training state in %s, whose updates have %lld samples: %lld rank%s with "
        "%lld batch%s of %lld make %lld; change --batch, --accumulate-steps or the number of ranks, or start afresh",
        (long long)o->order.batch, state, (long long)before, (long long)ranks, ranks == 1 ? "" : "s",
        (long long)batches(o), batches(o) == 1 ? "" : "es", (long long)o->order.batch, (long long)now);
    return REMAT_OK;
}

/* ---- The state -------------------------------------------------------------------------------------------------- */

/* What the state names need not be here: a run that is resumed elsewhere, or after a restart of the machine. */
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
                "the run in %s has --%s=%s, which does not exist here%s: %sname another with --%s=%s", state, flags[f],
                path, *path == '/' ? "" : " (it was said of the folder that the run was started in)",
                f == SPILL ? "create it, or " : "", flags[f], f == SPILL ? "DIR" : "FILE");
    }
    return REMAT_OK;
}

remat_status rm_start_read(rm_options *o, const char *state, rm_state_point *point) {
    said s = set_aside(o);
    TRY(rm_state_read(state, RM_TRAIN, o, point));
    TRY(check_files(o, state));
    return fit_batch(o, &s, state, point->world_size);
}

/* Looking through states can take longer than a collective waits; that a job is a first attempt is known at once. */
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

/* A restart script says --save=DIR --resume=DIR every time: the first time there is nothing yet, and that is no mistake. */
remat_status rm_start_find(rm_options *o, char state[RM_PATH_BYTES], rm_state_point *point) {
    bool found;
    *state = 0;
    *point = (rm_state_point){0};
    if (!o->resume) return REMAT_OK;
    TRY(rm_state_find(o->resume, state, &found));
    if (found && !o->save && !rm_path_same(state, o->resume)) /* a run goes on saving where it saved */
        TRY(rm_options_replace(&o->save, o->resume));
    if (found) return rm_state_advise(o->resume, state, rm_start_read(o, state, point));
    if (o->save && rm_path_same(o->save, o->resume)) return REMAT_OK;
    FAIL(IO,
         "%s holds no training state: give the directory that was named with --save (or the same one to both, to start "
         "there)",
         o->resume);
}
