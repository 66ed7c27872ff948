/* state_restart.c: a job that was started again looks for its own states: newest first, past what is damaged. Which job it is
 * says state_job.h; what is in a state, state_resume.c. */
#include "train/state/state.h"

#include "memory/host.h"
#include "train/state/state_directory.h"
#include "train/state/state_job.h"
#include "train/state/state_json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef enum { SOUND, DAMAGED, OF_OTHERS } verdict;

typedef struct {
    const char *directory;
    rm_state_job job;
    int64_t *step, n;  /* newest first */
    int64_t damaged;   /* so many of them have been passed by */
    bool own;          /* one of those is certainly this job's */
    char reason[1000]; /* why the first of them is damaged */
} search;

/* A state.json that cannot be read does not say whose it is. Only memory that is wanting is a failure. */
static remat_status judge(search *s, const char *state, verdict *out) {
    json_t *root;
    char path[RM_PATH_BYTES];
    remat_status status = rm_state_json_read(state, path, &root);
    bool known = !status, own = known && rm_state_job_saved(&s->job, root);
    json_decref(root);
    *out = OF_OTHERS;
    if (known && !own) return REMAT_OK;
    if (known) status = rm_state_check(state);
    *out = status ? DAMAGED : SOUND;
    if (!status || status == REMAT_MEMORY) return status;
    s->own = s->own || own;
    if (s->damaged) return REMAT_OK;
    snprintf(s->reason, sizeof s->reason, "%s", remat_last_error());
    char *remedy = strstr(s->reason, RM_STATE_REMEDY);
    if (remedy) *remedy = 0;
    return REMAT_OK;
}

/* `state` becomes the newest sound one of this job, or "". */
static remat_status look(search *s, char state[RM_PATH_BYTES]) {
    verdict found = DAMAGED;
    for (int64_t i = 0; i < s->n && found == DAMAGED; i++) {
        TRY(rm_state_path(s->directory, "", s->step[i], state));
        TRY(judge(s, state, &found));
        s->damaged += found == DAMAGED;
    }
    if (found != SOUND) *state = 0;
    return REMAT_OK;
}

/* Under the lock: nobody else is about to look at them. */
static remat_status put_aside(const search *s, const char *state, char note[RM_STATE_NOTE]) {
    int lock;
    char aside[RM_PATH_BYTES] = "";
    remat_status status = rm_state_directory_lock(s->directory, &lock);
    for (int64_t i = s->damaged; i-- > 0 && !status;) status = rm_state_put_aside(s->directory, s->step[i], aside);
    if (lock >= 0) close(lock);
    snprintf(note, RM_STATE_NOTE, "%s: renamed to %.400s%s; going on from %.400s", s->reason, aside,
             s->damaged > 1 ? ", and older ones that are damaged too likewise" : "", state);
    return status;
}

static remat_status go_on(search *s, char state[RM_PATH_BYTES], char note[RM_STATE_NOTE]) {
    TRY(look(s, state));
    REQUIRE(*state || !s->own, IO, "no training state of this job in %s can be gone on from: %s" RM_STATE_REMEDY,
            s->directory, s->reason);
    return *state && s->damaged ? put_aside(s, state, note) : REMAT_OK;
}

bool rm_state_restarted(void) {
    rm_state_job job;
    rm_state_job_find(&job);
    return rm_state_job_again(&job);
}

remat_status rm_state_after_restart(const char *directory, char state[RM_PATH_BYTES], char note[RM_STATE_NOTE]) {
    search s = {.directory = directory};
    *state = *note = 0;
    rm_state_job_find(&s.job);
    if (!rm_state_job_again(&s.job)) return REMAT_OK;
    TRY(rm_state_list_all(directory, &s.step, &s.n));
    remat_status status = go_on(&s, state, note);
    rm_free(s.step);
    if (status) *state = 0;
    return status;
}
