/* test_processors.c: quotas of control groups, versions 1 and 2, at any level, as different kinds of containers present
 * them. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "memory/processors.h"

#include <ftw.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/memory/memory_test.h"

/* ---- A machine made of files ------------------------------------------------------------------------------------- */

static char root[64];

static void put(const char *path, const char *text) {
    char whole[1024];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    ck_assert_msg(file && fputs(text, file) >= 0 && !fclose(file), "cannot write %s", whole);
}

static int remove_it(const char *path, const struct stat *about, int kind, struct FTW *place) {
    (void)about, (void)kind, (void)place;
    return remove(path);
}

static void remove_machine(void) { (void)nftw(root, remove_it, 8, FTW_DEPTH | FTW_PHYS); }

static void machine(const char *groups, const char *mounts) {
    if (*root)
        remove_machine();
    else
        atexit(remove_machine);
    strcpy(root, "/tmp/remat_processors_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    put("/proc/self/cgroup", groups);
    put("/proc/self/mountinfo", mounts);
}

static void ck_quota(double quota, const char *limit) {
    rm_processors p = rm_processors_read(root);
    ck_assert_msg(p.quota == quota, "a quota of %g, not %g", p.quota, quota);
    ck_assert_str_eq(p.limit, limit);
    int whole = quota < 1 ? 1 : (int)quota;
    ck_assert_int_eq(p.usable, quota == 0 || whole > p.allowed ? p.allowed : whole);
}

#define V2 "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1(group) "34 29 0:31 " group " /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct\n"

/* ---- Version 2 --------------------------------------------------------------------------------------------------- */

START_TEST(quota_of_version_2_is_read) {
    machine("0::/\n", V2);
    ck_quota(0, "");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    ck_quota(0, "");
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    ck_quota(1.5, "/sys/fs/cgroup/cpu.max");
    put("/sys/fs/cgroup/cpu.max", "5000 50000\n");
    ck_quota(0.1, "/sys/fs/cgroup/cpu.max");
    put("/sys/fs/cgroup/cpu.max", "409600000 100000\n");
    ck_quota(4096, "/sys/fs/cgroup/cpu.max");
    static const char *const damaged[] = {"",    "\n",  "100000",   "-1 100000", "100000 0",
                                          "max", "x y", "0 100000", "nan 1"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put("/sys/fs/cgroup/cpu.max", damaged[i]);
        ck_quota(0, "");
    }
}
END_TEST

START_TEST(smallest_quota_of_all_levels_counts) {
    machine("0::/pods.slice/pod 7/box\n", V2);
    put("/sys/fs/cgroup/pods.slice/pod 7/box/cpu.max", "max 100000\n");
    ck_quota(0, "");
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    ck_quota(3, "/sys/fs/cgroup/cpu.max");
    put("/sys/fs/cgroup/pods.slice/cpu.max", "100000 100000\n");
    ck_quota(1, "/sys/fs/cgroup/pods.slice/cpu.max");
    put("/sys/fs/cgroup/pods.slice/pod 7/cpu.max", "200000 100000\n");
    ck_quota(1, "/sys/fs/cgroup/pods.slice/cpu.max");
    put("/sys/fs/cgroup/pods.slice/pod 7/box/cpu.max", "50000 100000\n");
    ck_quota(0.5, "/sys/fs/cgroup/pods.slice/pod 7/box/cpu.max");
    put("/sys/fs/cgroup/pods.slice/other/cpu.max", "1000 100000\n");
    ck_quota(0.5, "/sys/fs/cgroup/pods.slice/pod 7/box/cpu.max");
}
END_TEST

/* ---- Version 1 --------------------------------------------------------------------------------------------------- */

START_TEST(quota_of_version_1_is_read) {
    machine("12:cpuset:/elsewhere\n5:cpu,cpuacct:/a/b\n1:name=systemd:/c\n", V1("/"));
    ck_quota(0, "");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "250000\n");
    ck_quota(0, "");
    put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
    ck_quota(2.5, "/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "20000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "10000\n");
    ck_quota(2, "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us");
}
END_TEST

/* A container without a cgroup namespace: its own group is mounted, but its path does not exist inside the
 * container. */
START_TEST(group_mounted_as_root_of_a_container_is_found) {
    machine("5:cpuacct,cpu:/docker/0123\n", V1("/docker/0123"));
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
    ck_quota(1, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us");
    put("/proc/self/cgroup", "5:cpuacct,cpu:/docker/0123/inner\n");
    put("/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "50000\n");
    ck_quota(0.5, "/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us");
    static const char *const outside[] = {"/", "/docker/01234/inner", "/../inner", "/docker/0123/../inner"};
    for (int i = 0; i < 4; i++) {
        char line[128];
        snprintf(line, sizeof line, "5:cpuacct,cpu:%s\n", outside[i]);
        put("/proc/self/cgroup", line);
        ck_quota(1, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us");
    }
}
END_TEST

/* ---- Both versions, and neither ---------------------------------------------------------------------------------- */

START_TEST(smaller_quota_of_both_versions_counts) {
    machine("5:cpu:/one\n0::/two\n", "30 23 0:27 / /groups\\040here/v1 rw - cgroup none rw,cpu\n"
                                     "31 23 0:28 / /groups\\040here/set rw - cgroup none rw,cpuset\n"
                                     "32 23 0:29 / /groups\\040here/v2 rw - cgroup2 none rw\n");
    put("/groups here/v1/one/cpu.cfs_period_us", "100000\n");
    put("/groups here/v1/one/cpu.cfs_quota_us", "200000\n");
    put("/groups here/set/one/cpu.cfs_period_us", "100000\n");
    put("/groups here/set/one/cpu.cfs_quota_us", "1000\n");
    ck_quota(2, "/groups here/v1/one/cpu.cfs_quota_us");
    put("/groups here/v2/two/cpu.max", "100000 100000\n");
    ck_quota(1, "/groups here/v2/two/cpu.max");
}
END_TEST

START_TEST(no_quota_leaves_the_affinity_mask) {
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    machine("", "");
    ck_quota(0, "");
    ck_assert_int_eq(rm_processors_read(root).allowed, CPU_COUNT(&set));
    ck_assert_int_eq(rm_processors_read("/nowhere").usable, CPU_COUNT(&set));
    machine("no group\n5:cpu\n0:\n:\n\n0::relative\n",
            "damaged\n1 2 3 - cgroup2\n1 2 3 / /a - cgroup2\n \\ - cgroup cpu\n");
    ck_quota(0, "");
    const rm_processors *here = rm_processors_get();
    ck_assert_int_eq(here->allowed, CPU_COUNT(&set));
    ck_assert(here->usable >= 1 && here->usable <= here->allowed && here == rm_processors_get());
}
END_TEST

RUN_TESTS("memory/processors", quota_of_version_2_is_read, smallest_quota_of_all_levels_counts,
          quota_of_version_1_is_read, group_mounted_as_root_of_a_container_is_found,
          smaller_quota_of_both_versions_counts, no_quota_leaves_the_affinity_mask)
