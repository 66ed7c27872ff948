/* launch_hosts.c: see launch_hosts.h. */
#define _GNU_SOURCE
#include "train/commands/launch_hosts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "dist/store/rendezvous.h"
#include "memory/host.h"
#include "train/file.h"
#include "train/text.h"

enum { MOST_FILE = 1 << 20 };

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

static remat_status add(const char *name, int64_t slots, rm_slots_list *list) {
    for (int32_t i = 0; i < list->n; i++)
        if (!strcasecmp(list->host[i].name, name)) {
            list->host[i].slots += slots;
            return REMAT_OK;
        }
    rm_slots *more = rm_realloc(list->host, (size_t)(list->n + 1) * sizeof *more);
    REQUIRE(more, MEMORY, "no memory for %d hosts", list->n + 1);
    list->host = more;
    more[list->n] = (rm_slots){.slots = slots};
    strcpy(more[list->n++].name, name);
    return REMAT_OK;
}

/* "host", "host:2", "user@host:2", "[fe80::1]:2". */
static remat_status add_word(const char *where, const char *word, int64_t slots, rm_slots_list *list) {
    char name[RM_HOST_BYTES];
    const char *bracket = *word == '[' ? strchr(word, ']') : NULL, *colon = strchr(bracket ? bracket : word, ':');
    int length = (int)(colon ? (size_t)(colon - word) : strlen(word));
    if (colon && rm_text_whole(where, colon + 1, 1, 4096, &slots))
        FAIL(INVALID, "%s: '%.80s': the slots after the colon are no whole number from 1 to 4096", where, word);
    if (bracket) word++, length -= 2;
    REQUIRE(length > 0 && length < RM_HOST_BYTES && *word != '-', INVALID,
            "%s: '%.80s' is not a host; use HOST or HOST:RANKS", where, word);
    snprintf(name, sizeof name, "%.*s", length, word);
    return add(name, slots, list);
}

remat_status rm_slots_parse(const char *where, const char *text, rm_slots_list *out) {
    char *copy = rm_strdup(text), *rest = copy;
    REQUIRE(copy, MEMORY, "no memory for a list of hosts");
    remat_status status = REMAT_OK;
    for (char *word; !status && (word = strsep(&rest, ","));) status = add_word(where, word, 1, out);
    rm_free(copy);
    return status;
}

/* "host slots=2 max_slots=4": other words are Open MPI's, and have no meaning here. */
static remat_status read_line(const char *where, char *line, rm_slots_list *out) {
    int64_t slots = 1;
    char *rest = line, *name = NULL, *word;
    line[strcspn(line, "#")] = 0;
    while ((word = strsep(&rest, " \t\r"))) {
        if (!*word) continue;
        if (!name) name = word;
        if (!strncmp(word, "slots=", 6) && rm_text_whole(where, word + 6, 1, 4096, &slots))
            FAIL(INVALID, "%s: '%.80s' is no whole number of slots from 1 to 4096", where, word);
    }
    return name ? add_word(where, name, slots, out) : REMAT_OK;
}

remat_status rm_slots_read(const char *path, rm_slots_list *out) {
    uint8_t *data;
    size_t size;
    char where[RM_PATH_BYTES + 40];
    TRY(rm_file_read(path, MOST_FILE, &data, &size));
    char *rest = (char *)data, *line;
    remat_status status = REMAT_OK;
    for (int n = 1; !status && (line = strsep(&rest, "\n")); n++) {
        snprintf(where, sizeof where, "line %d of %s", n, path);
        status = read_line(where, line, out);
    }
    rm_free(data);
    REQUIRE(status || out->n, INVALID, "%s names no hosts; write one a line, as HOST slots=N", path);
    return status;
}

void rm_slots_free(rm_slots_list *list) {
    rm_free(list->host);
    *list = (rm_slots_list){0};
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------------ */

remat_status rm_slots_divide(rm_slots_list *list, int64_t np) {
    int64_t slots = 0, left;
    for (int32_t i = 0; i < list->n; i++) slots += list->host[i].slots;
    REQUIRE(np <= slots, INVALID,
            "-np %lld: the hosts have %lld slot%s; name more hosts, or more ranks for each as HOST:RANKS",
            (long long)np, (long long)slots, slots == 1 ? "" : "s");
    list->ranks = left = np > 0 ? np : slots;
    int32_t used = 0;
    for (; left > 0; used++) {
        rm_slots *h = &list->host[used];
        h->ranks = left < h->slots ? left : h->slots;
        h->first = list->ranks - left;
        left -= h->ranks;
    }
    list->n = used;
    return REMAT_OK;
}

bool rm_slots_is_here(const char *name) {
    char own[RM_HOST_BYTES] = "";
    if (rm_host_is_itself(name)) return true;
    if (gethostname(own, sizeof own - 1)) return false;
    size_t bare = strcspn(own, ".");
    return !strcasecmp(own, name) || (strlen(name) == bare && !strncasecmp(own, name, bare));
}
