/* fuzz_hostlist.c: any bytes as a host list and as a list of task counts. An accepted list has as many hosts as it
 * says; each has a name without brackets, commas or blanks; one index further is refused. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "dist/store/hostlist.h"

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const fuzz_seed seeds[] = {
    SEED("node1"),
    SEED("node[01-03]"),
    SEED("n[1,3-5]x[0-1]"),
    SEED("a,b[2-4,07-09],c[1-2]-d[3-4]"),
    SEED("rack[0-1]node[8-11]"),
    SEED("h[098-101].ib"),
    SEED("2(x3),1"),
    SEED("4(x2)"),
};

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    *count = sizeof seeds / sizeof *seeds;
    return seeds;
}

static void require(bool fact) {
    if (!fact) abort();
}

static void hosts_have_names(const char *list, int64_t count) {
    char name[RM_HOST_BYTES];
    require(count >= 1 && count <= 1000000);
    for (int64_t i = 0; i < count; i += 1 + count / 16) {
        remat_status status = rm_hostlist_at(list, i, name);
        require(status == REMAT_OK || (status == REMAT_INVALID && strlen(list) >= RM_HOST_BYTES / 10));
        if (!status) require(name[0] && !strpbrk(name, "[], \n"));
    }
    require(rm_hostlist_at(list, count, name) == REMAT_INVALID);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    int64_t count, tasks;
    remat_status status = rm_hostlist_count(text, &count);
    require(status == REMAT_OK || status == REMAT_INVALID);
    if (!status) hosts_have_names(text, count);
    for (int64_t node = 0; node < 5; node++) {
        status = rm_tasks_on_node(text, node, &tasks);
        require(status == REMAT_INVALID || tasks >= 0);
    }
    free(text);
    return 0;
}
