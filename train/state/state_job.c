/* state_job.c: see state_job.h. */
#define _GNU_SOURCE
#include "train/state/state_job.h"

#include "dist/launch/process.h"
#include "dist/store/boot_id.h"
#include "train/state/state_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static int64_t count(const char *name) {
    long long n = strtoll(variable(name), NULL, 10);
    return n > 0 ? n : 0;
}

/* ---- torchrun's agent --------------------------------------------------------------------------------------------- */

typedef struct {
    long parent;
    unsigned long long started; /* in ticks since the host was booted */
} process;

/* Fields 4 and 22 of /proc/PID/stat. Field 2 is a name in parentheses, with arbitrary characters. */
static bool look_at(long pid, process *out) {
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = 0;
    if (file) fclose(file);
    const char *end = strrchr(text, ')');
    const char *format = " %*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu";
    return end && sscanf(end + 1, format, &out->parent, &out->started) == 2;
}

/* The agent is the nearest ancestor without an attempt's number; scripts between it and this process inherit one. False: not
 * visible. */
static bool find_agent(long *pid, process *agent) {
    *pid = (long)getpid();
    if (!look_at(*pid, agent)) return false;
    do {
        *pid = agent->parent;
        if (*pid <= 0 || !look_at(*pid, agent)) return false;
    } while (rm_process_has_variable((pid_t)*pid, "TORCHELASTIC_RESTART_COUNT"));
    return true;
}

static void name_torchrun(const char *run, char out[RM_STATE_JOB_BYTES]) {
    char host[128] = "", boot[RM_BOOT_ID_BYTES];
    long pid;
    process agent;
    *out = 0;
    if (!find_agent(&pid, &agent)) return;
    if (gethostname(host, sizeof host - 1)) strcpy(host, "?");
    rm_boot_id(boot);
    snprintf(out, RM_STATE_JOB_BYTES, "torchrun %.160s %s %s %ld %llu", run, host, boot, pid, agent.started);
}

/* ---- The job ------------------------------------------------------------------------------------------------------ */

/* Of nested launchers the nearest counts: torchrun always sets the variable about its store, and `remat launch` removes it. */
void rm_state_job_find(rm_state_job *out) {
    const char *id = variable("REMAT_JOB_ID"), *run = variable("TORCHELASTIC_RUN_ID"), *job = variable("SLURM_JOB_ID");
    *out = (rm_state_job){.restarts = count("TORCHELASTIC_RESTART_COUNT"), .requeues = count("SLURM_RESTART_COUNT")};
    if (*id && !getenv("TORCHELASTIC_USE_AGENT_STORE"))
        snprintf(out->launch, sizeof out->launch, "remat %.200s", id);
    else if (*run)
        name_torchrun(run, out->launch);
    if (*job) snprintf(out->slurm, sizeof out->slurm, "%.200s %.60s", variable("SLURM_CLUSTER_NAME"), job);
}

bool rm_state_job_again(const rm_state_job *job) {
    return (job->restarts > 0 && *job->launch) || (job->requeues > 0 && *job->slurm);
}

void rm_state_job_write(const rm_state_job *job, json_t *root) {
    json_object_set_new(root, "job", rm_state_json_text(job->launch));
    json_object_set_new(root, "slurm_job", rm_state_json_text(job->slurm));
    json_object_set_new(root, "slurm_requeues", json_integer(job->requeues));
}

static bool is_text(const json_t *value, const char *text) {
    char bytes[RM_PATH_BYTES];
    const char *theirs = rm_state_json_text_of(value, bytes);
    return *text && theirs && !strcmp(theirs, text);
}

bool rm_state_job_saved(const rm_state_job *job, const json_t *root) {
    const json_t *requeues = json_object_get(root, "slurm_requeues");
    if (job->restarts > 0 && is_text(json_object_get(root, "job"), job->launch)) return true;
    return is_text(json_object_get(root, "slurm_job"), job->slurm) && json_is_integer(requeues) &&
           json_integer_value(requeues) < job->requeues;
}
