/* state_restart.c: finds the newest undamaged training state of a restarted job. state_job.h identifies the job; state_resume.c reads
 * states. */
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
    int64_t damaged;   /* number of damaged states skipped */
    bool own;          /* one of those is certainly this job's */
    char reason[1000]; /* the damage of the first */
} search;

/* An unreadable state.json does not tell which job it belongs to. The only failure is a lack of memory. */
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

/* Call with the lock held, so that no other run reads them. */
static remat_status put_aside(const search *s, const char *state, char note[RM_STATE_NOTE]) {
    int lock;
    char aside[RM_PATH_BYTES] = "";
    remat_status status = rm_state_directory_lock(s->directory, &lock);
    for (int64_t i = s->damaged; i-- > 0 && !status;) status = rm_state_put_aside(s->directory, s->step[i], aside);
    if (lock >= 0) close(lock);
    snprintf(note, RM_STATE_NOTE, "%s: renamed to %.400s%s; continuing from %.400s", s->reason, aside,
             s->damaged > 1 ? ", like older damaged states" : "", state);
    return status;
}

static remat_status go_on(search *s, char state[RM_PATH_BYTES], char note[RM_STATE_NOTE]) {
    TRY(look(s, state));
    REQUIRE(*state || !s->own, IO, "all training states of this job in %s are damaged: %s" RM_STATE_REMEDY,
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
