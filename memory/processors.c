/* processors.c: see processors.h. /proc/self/cgroup names the group of this process in each hierarchy.
 * /proc/self/mountinfo says where the hierarchy is mounted and which group is its root there: a container sees its own
 * group, or an ancestor, as the root. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "memory/processors.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 1024 };

static int allowed(void) {
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set)) return CPU_COUNT(&set);
    return online > 0 ? (int)online : 1; /* there are more processors than the set can hold */
}

/* Whether a comma-separated list of names contains `name`. */
static bool has(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
    return false;
}

/* mountinfo writes a space as \040, and tabs, newlines and backslashes by their octal codes, too. */
static void unescape(char *text) {
    char *to = text;
    for (const char *at = text; *at; to++) {
        unsigned code;
        bool escaped = *at == '\\' && sscanf(at + 1, "%3o", &code) == 1;
        *to = escaped ? (char)code : *at;
        at += escaped ? 4 : 1;
    }
    *to = '\0';
}

static FILE *open_in(const char *folder, const char *name) {
    char path[PATH];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* "150000 100000" is quota and period; "max 100000" means no quota. */
static double quota_of_v2(const char *folder) {
    FILE *file = open_in(folder, "cpu.max");
    double quota = 0, period = 0;
    if (!file) return 0;
    bool said = fscanf(file, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0;
    fclose(file);
    return said ? quota / period : 0;
}

static double number_in(const char *folder, const char *name) {
    FILE *file = open_in(folder, name);
    double number = 0;
    if (!file) return 0;
    if (fscanf(file, "%lf", &number) != 1) number = 0;
    fclose(file);
    return number;
}

/* Microseconds; a quota of -1 means none. */
static double quota_of_v1(const char *folder) {
    double quota = number_in(folder, "cpu.cfs_quota_us"), period = number_in(folder, "cpu.cfs_period_us");
    return quota > 0 && period > 0 ? quota / period : 0;
}

typedef struct {
    const char *root;
    char group[2][PATH]; /* of this process, indexed by version - 1; "": it has none */
    rm_processors *found;
} search;

/* Reads the quotas of this process's group and of its ancestors up to the group that is mounted at `point`. */
static void climb(search *s, int version, const char *mounted_group, const char *point) {
    char folder[3 * PATH], *below;
    size_t prefix = strcmp(mounted_group, "/") ? strlen(mounted_group) : 0;
    const char *group = s->group[version - 1], *rest = group + prefix;
    bool inside = *group && !strncmp(group, mounted_group, prefix) && (*rest == '/' || !*rest) && !strstr(rest, "/..");
    snprintf(folder, sizeof folder, "%s%s", s->root, strcmp(point, "/") ? point : "");
    below = folder + strlen(folder);
    if (inside) snprintf(below, sizeof folder - (size_t)(below - folder), "%s", strcmp(rest, "/") ? rest : "");
    for (;;) {
        double quota = version == 2 ? quota_of_v2(folder) : quota_of_v1(folder);
        if (quota > 0 && !(s->found->quota > 0 && s->found->quota <= quota)) {
            s->found->quota = quota;
            snprintf(s->found->limit, sizeof s->found->limit, "%s/%s", folder + strlen(s->root),
                     version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
        }
        if (!*below) return;
        *strrchr(below, '/') = '\0';
    }
}

/* "ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE OPTIONS" */
static void read_mount(search *s, char *line) {
    char group[PATH], point[PATH], type[32], options[PATH];
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(line, "%*s %*s %*s %1023s %1023s", group, point) != 2) return;
    if (sscanf(rest + 3, "%31s %*s %1023s", type, options) != 2) return;
    unescape(group), unescape(point);
    if (!strcmp(type, "cgroup2")) climb(s, 2, group, point);
    if (!strcmp(type, "cgroup") && has(options, "cpu")) climb(s, 1, group, point);
}

/* "0::GROUP" in version 2, "NUMBER:CONTROLLERS:GROUP" in version 1 */
static void read_group(search *s, char *line) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(++controllers, ':') : NULL;
    if (!group) return;
    *group++ = '\0';
    bool unified = !*controllers;
    if (*group == '/' && (unified || has(controllers, "cpu"))) snprintf(s->group[unified], PATH, "%s", group);
}

static void each_line(const char *root, const char *name, search *s, void (*take)(search *s, char *line)) {
    FILE *file = open_in(root, name);
    char *line = NULL;
    size_t room = 0;
    if (!file) return;
    while (getline(&line, &room, file) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        take(s, line);
    }
    free(line);
    fclose(file);
}

rm_processors rm_processors_read(const char *root) {
    rm_processors p = {.allowed = allowed()};
    search s = {.root = root, .found = &p};
    each_line(root, "proc/self/cgroup", &s, read_group);
    each_line(root, "proc/self/mountinfo", &s, read_mount);
    bool limited = p.quota > 0 && p.quota < p.allowed;
    p.usable = !limited ? p.allowed : p.quota < 1 ? 1 : (int)p.quota;
    return p;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static rm_processors here;
static const rm_processors *pretended;

static void read_once(void) { here = rm_processors_read(""); }

const rm_processors *rm_processors_get(void) {
    if (pretended) return pretended;
    pthread_once(&once, read_once);
    return &here;
}

void rm_processors_pretend(const rm_processors *processors) { pretended = processors; }
