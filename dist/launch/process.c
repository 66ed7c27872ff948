/* process.c: the state of other processes of this host, from pidfds and /proc. */
#define _GNU_SOURCE
#include "dist/launch/process.h"

#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int rm_process_watch(pid_t pid) {
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

/* Reads the state letter and the last field, the exit code, of /proc/PID/stat. Returns false if the process does not
 * exist. The name in parentheses may contain anything, so parsing starts after the last parenthesis. */
static bool read_stat(pid_t pid, char *state, int *exit_code) {
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    const char *name_end = strrchr(text, ')'), *last;
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) text[--length] = 0;
    last = strrchr(text, ' ');
    return name_end && last && sscanf(name_end + 1, " %c", state) == 1 && sscanf(last, "%d", exit_code) == 1;
}

bool rm_process_stopped(pid_t pid) {
    char state;
    int code;
    return read_stat(pid, &state, &code) && (state == 'T' || state == 't');
}

/* After the parent has read the exit status, only a pidfd still has it, from Linux 6.15 on (PIDFD_GET_INFO; the
 * kernel's interface fixes its layout, in case this system's headers do not have it). */
static bool ask_pidfd(int watch, int *exit_code) {
    struct {
        uint64_t mask, cgroup;
        uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
        int32_t exit_code;
    } info = {.mask = 1u << 3}; /* PIDFD_INFO_EXIT */
    _Static_assert(sizeof info == 64, "the layout of struct pidfd_info");
    if (watch < 0 || ioctl(watch, _IOWR(0xFF, 11, info), &info) < 0 || !(info.mask & 1u << 3)) return false;
    *exit_code = info.exit_code;
    return true;
}

void rm_process_end(pid_t pid, int watch, char *text, size_t bytes) {
    char state = 0;
    int code = 0;
    bool known = (read_stat(pid, &state, &code) && state == 'Z') || ask_pidfd(watch, &code);
    if (known && WIFSIGNALED(code))
        snprintf(text, bytes, "was killed by signal %d (%s)", WTERMSIG(code), strsignal(WTERMSIG(code)));
    else if (known && WIFEXITED(code))
        snprintf(text, bytes, "exited with status %d", WEXITSTATUS(code));
    else
        snprintf(text, bytes, "has ended");
}

bool rm_process_has_variable(pid_t pid, const char *name) {
    char path[40], *line = NULL;
    size_t capacity = 0, length = strlen(name);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && !found && getdelim(&line, &capacity, 0, file) > 0)
        found = !strncmp(line, name, length) && line[length] == '=';
    if (file) fclose(file);
    free(line);
    return found;
}

static pid_t parent_of(pid_t pid) {
    char path[40], text[512], state;
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = 0;
    if (file) fclose(file);
    const char *name_end = strrchr(text, ')');
    return name_end && sscanf(name_end + 1, " %c %d", &state, &parent) == 2 ? (pid_t)parent : 0;
}

static void name_process(pid_t pid, char *who, size_t bytes) {
    char path[40], name[64] = "?";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (file && !fgets(name, sizeof name, file)) strcpy(name, "?");
    if (file) fclose(file);
    name[strcspn(name, "\n")] = 0;
    snprintf(who, bytes, "%s (process %d)", name, (int)pid);
}

/* Slurm's daemons are not in the list: they end the rest of a step themselves. */
int rm_process_watch_launcher(pid_t *pid, char *who, size_t bytes) {
    static const char *const told[] = {"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        if (!getenv(told[i])) continue;
        *pid = getppid();
        while (*pid > 1 && rm_process_has_variable(*pid, told[i])) *pid = parent_of(*pid);
        if (*pid <= 0) return -1;
        name_process(*pid, who, bytes);
        return rm_process_watch(*pid);
    }
    return -1;
}

/* The next process in /proc: its state letter, parent and process group. Returns false at the end. */
static bool next_process(DIR *all, pid_t *pid, char *state, int *parent, int *group) {
    for (struct dirent *entry; (entry = readdir(all));) {
        char path[300], text[512];
        FILE *file;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !(file = fopen(path, "re"))) continue;
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        const char *name_end = strrchr(text, ')');
        *pid = (pid_t)atoi(entry->d_name);
        if (name_end && sscanf(name_end + 1, " %c %d %d", state, parent, group) == 3) return true;
    }
    return false;
}

void rm_process_wake(const pid_t *groups, int n) {
    DIR *all = opendir("/proc");
    pid_t pid;
    char state;
    int parent, group;
    while (all && next_process(all, &pid, &state, &parent, &group))
        for (int i = 0; state == 'T' && i < n; i++)
            if (group == (int)groups[i]) kill(pid, SIGCONT);
    if (all) closedir(all);
}

/* For kernels without a list of children: searches for processes whose parent this one is. */
static int search_children(pid_t *children, int most) {
    int n = 0, me = (int)getpid(), parent, group;
    DIR *all = opendir("/proc");
    pid_t pid;
    char state;
    while (all && n < most && next_process(all, &pid, &state, &parent, &group))
        if (parent == me) children[n++] = pid;
    if (all) closedir(all);
    return n;
}

int rm_process_children(pid_t *children, int most) {
    char path[64];
    int n = 0, pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");
    if (!file) return search_children(children, most);
    while (n < most && fscanf(file, "%d", &pid) == 1) children[n++] = (pid_t)pid;
    fclose(file);
    return n;
}
