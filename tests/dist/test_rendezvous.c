/* test_rendezvous.c: rank, size and meeting place: every launcher's variables, their precedence, their contradictions,
 * and traps that users have reported; and Slurm's host lists. */
#include "dist/store/rendezvous.h"

#include "tests/dist/ranks.h"
#include "tests/suite.h"

/* ---- Host lists: expected results from scontrol (22.05) ---------------------------------------------------------- */

static const struct {
    const char *list, *hosts;
} lists[] = {
    {"node1", "node1"},
    {"node[01-03]", "node01 node02 node03"},
    {"node[1-2]", "node1 node2"},
    {"n[8-11]", "n8 n9 n10 n11"},
    {"n[08-11]", "n08 n09 n10 n11"},
    {"n[098-101]", "n098 n099 n100 n101"},
    {"n[098-99,5]m[1-03]", "n098m1 n098m2 n098m3 n099m1 n099m2 n099m3 n5m1 n5m2 n5m3"},
    {"n[1,3-5]x[0-1]", "n1x0 n1x1 n3x0 n3x1 n4x0 n4x1 n5x0 n5x1"},
    {"a,b[2-4,07-09],c[1-2]-d[3-4]", "a b2 b3 b4 b07 b08 b09 c1-d3 c1-d4 c2-d3 c2-d4"},
    {"rack[0-1]node[8-11]",
     "rack0node8 rack0node9 rack0node10 rack0node11 rack1node8 rack1node9 rack1node10 rack1node11"},
    {"login-2.cluster.example", "login-2.cluster.example"},
};

START_TEST(host_lists_are_expanded) {
    char all[1000] = "", name[RM_HOST_BYTES];
    int64_t count;
    ck_ok(rm_hostlist_count(lists[_i].list, &count));
    for (int64_t i = 0; i < count; i++) {
        ck_ok(rm_hostlist_at(lists[_i].list, i, name));
        if (i) strcat(all, " ");
        strcat(all, name);
    }
    ck_assert_str_eq(all, lists[_i].hosts);
    ck_assert_int_eq(rm_hostlist_at(lists[_i].list, count, name), REMAT_INVALID);
    ck_assert_int_eq(rm_hostlist_at(lists[_i].list, -1, name), REMAT_INVALID);
}
END_TEST

START_TEST(invalid_host_lists_are_refused) {
    static const char *const bad[] = {"",
                                      ",",
                                      "a,",
                                      ",a",
                                      "a,,b",
                                      "n[",
                                      "n[]",
                                      "n[1",
                                      "n]",
                                      "n[1-]",
                                      "n[-1]",
                                      "n[3-1]",
                                      "n[a-b]",
                                      "n[1;2]",
                                      "n[1,]",
                                      "n[1-2-3]",
                                      "a b",
                                      "n[[1]]",
                                      "n[1]]",
                                      "a\n",
                                      "h[098-101].ib",
                                      "n[1-2]x",
                                      "a[1-2]b[3-4]c",
                                      "n[0-99999999999]",
                                      "n[0-9999999]",
                                      "n[1-1000]x[1-1001]"};
    int64_t count;
    char name[RM_HOST_BYTES], longer[600];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_msg(rm_hostlist_count(bad[i], &count) == REMAT_INVALID, "'%s' has %ld hosts", bad[i], (long)count);
        ck_assert_int_eq(rm_hostlist_at(bad[i], 0, name), REMAT_INVALID);
    }
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    ck_fails(rm_hostlist_at(longer, 0, name), INVALID, "too long");
}
END_TEST

START_TEST(tasks_of_each_node_are_counted) {
    int64_t tasks, node;
    const int64_t expected[] = {2, 2, 2, 1, 12, 12};
    for (node = 0; node < 6; node++) {
        ck_ok(rm_tasks_on_node("2(x3),1,12(x2)", node, &tasks));
        ck_assert_int_eq(tasks, expected[node]);
    }
    ck_fails(rm_tasks_on_node("2(x3),1,12(x2)", 6, &tasks), INVALID, "this is node 6");
    static const char *const bad[] = {"", "x", "2(3)", "2(x3", "2(x)", "2,", "2(x3)4", "-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(rm_tasks_on_node(bad[i], 50, &tasks), REMAT_INVALID);
}
END_TEST

/* ---- Environments: "NAME=value NAME=value" ----------------------------------------------------------------------- */

static const char *look_up(void *context, const char *name) {
    static char value[8][200];
    static int next;
    size_t length = strlen(name);
    for (const char *at = context; at && *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (!strncmp(at, name, length) && at[length] == '=') {
            char *out = value[next++ % 8];
            snprintf(out, sizeof value[0], "%.*s", (int)strcspn(at + length + 1, " "), at + length + 1);
            return out;
        }
    return NULL;
}

#define NO_FLAGS ((rm_rendezvous_flags){.world_size = -1, .rank = -1, .local_rank = -1})
#define FLAGS(w, r) ((rm_rendezvous_flags){.world_size = w, .rank = r, .local_rank = -1})
#define METHOD(m) ((rm_rendezvous_flags){.init_method = m, .world_size = -1, .rank = -1, .local_rank = -1})
#define FLAGS_METHOD(w, r, m) ((rm_rendezvous_flags){.init_method = m, .world_size = w, .rank = r, .local_rank = -1})

#define TORCH                                                                                                          \
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=2 MASTER_ADDR=hostA MASTER_PORT=29500"
#define SLURM                                                                                                          \
    "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_STEP_TASKS_PER_NODE=2(x2) "     \
    "SLURM_STEP_NODELIST=node[1-2] SLURM_JOB_ID=77 SLURM_STEP_ID=0"
#define OMPI                                                                                                           \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "         \
    "PMIX_RANK=1 PMIX_NAMESPACE=4242.1"

static const struct {
    rm_rendezvous_flags flags;
    const char *environment;
    rm_launcher launcher;
    int rank, size, local_rank, local_size;
    rm_meeting meeting;
    const char *host; /* or the path */
    int port;         /* 0: any from 15000 to 29999 */
} good[] = {
    {NO_FLAGS, "", RM_BY_NOBODY, 0, 1, 0, 1, RM_MEET_NOWHERE, "", -1},
    {NO_FLAGS, "WORLD_SIZE=1", RM_BY_NOBODY, 0, 1, 0, 1, RM_MEET_NOWHERE, "", -1},
    {NO_FLAGS, "RANK= WORLD_SIZE=", RM_BY_NOBODY, 0, 1, 0, 1, RM_MEET_NOWHERE, "", -1},
    {FLAGS(1, -1), "", RM_BY_NOBODY, 0, 1, -1, -1, RM_MEET_NOWHERE, "", -1},
    {NO_FLAGS, "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MPI_LOCALNRANKS=1 MV2_COMM_WORLD_SIZE=1 FLUX_JOB_SIZE=1 PALS_RANKID=0",
     RM_BY_NOBODY, 0, 1, 0, 1, RM_MEET_NOWHERE, "", -1},
    {FLAGS(1, 0), "MV2_COMM_WORLD_SIZE=2", RM_BY_FLAGS, 0, 1, -1, -1, RM_MEET_NOWHERE, "", -1},
    {NO_FLAGS, "PMI_SIZE=2 PMI_RANK=1 PALS_RANKID=1 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2", RM_BY_PMI, 1, 2, -1, -1,
     RM_MEET_NOWHERE, "", -1},
    {FLAGS_METHOD(4, 2, "tcp://h:1234"), "", RM_BY_FLAGS, 2, 4, -1, -1, RM_MEET_TCP, "h", 1234},
    {FLAGS_METHOD(4, 2, "tcp://[fe80::1]:1234"), "", RM_BY_FLAGS, 2, 4, -1, -1, RM_MEET_TCP, "fe80::1", 1234},
    {FLAGS_METHOD(4, 2, "file:///shared/job 7"), "", RM_BY_FLAGS, 2, 4, -1, -1, RM_MEET_FILE, "/shared/job 7", 0},
    {FLAGS(4, 2), "MASTER_ADDR=h MASTER_PORT=99", RM_BY_FLAGS, 2, 4, -1, -1, RM_MEET_TCP, "h", 99},
    {FLAGS(4, 2), "MASTER_ADDR=[::1] MASTER_PORT=99", RM_BY_FLAGS, 2, 4, -1, -1, RM_MEET_TCP, "::1", 99},
    /* torchrun has its own store at MASTER_PORT; on a single host, its name for that host may not resolve */
    {NO_FLAGS, TORCH " TORCHELASTIC_USE_AGENT_STORE=True", RM_BY_TORCHRUN, 3, 4, 1, 2, RM_MEET_TCP, "hostA", 0},
    {NO_FLAGS,
     "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=1 MASTER_ADDR=me.local MASTER_PORT=29500 "
     "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none",
     RM_BY_TORCHRUN, 1, 2, 1, 2, RM_MEET_TCP, "127.0.0.1", 0},
    /* flags alone, whatever variables are set */
    {FLAGS(8, 7), TORCH " " SLURM " " OMPI, RM_BY_FLAGS, 7, 8, -1, -1, RM_MEET_TCP, "hostA", 29500},
    /* torchrun and `remat launch`, started by srun or mpirun; by hand, two ranks for each of srun's tasks */
    {NO_FLAGS, TORCH " TORCHELASTIC_RUN_ID=r " SLURM " " OMPI, RM_BY_TORCHRUN, 3, 4, 1, 2, RM_MEET_TCP, "hostA", 29500},
    {NO_FLAGS, "RANK=5 WORLD_SIZE=8 MASTER_ADDR=node1 MASTER_PORT=5 PMIX_RANK=2 " SLURM, RM_BY_TORCHRUN, 5, 8, -1, -1,
     RM_MEET_TCP, "node1", 5},
    {NO_FLAGS, "RANK=2 WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=5 " SLURM, RM_BY_TORCHRUN, 2, 4, -1, -1, RM_MEET_TCP,
     "node1", 5},
    /* mpirun in a batch script, and on another node of the job, where srun has started its daemon */
    {NO_FLAGS, OMPI " SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=5", RM_BY_OPEN_MPI, 1, 2, 1, 2, RM_MEET_TCP,
     "127.0.0.1", 0},
    {NO_FLAGS,
     "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "PMIX_RANK=5 PMI_RANK=2 PMI_SIZE=4 " SLURM,
     RM_BY_OPEN_MPI, 5, 8, 1, 2, RM_MEET_NOWHERE, "", -1},
    /* the mpiexec of MPICH and Intel MPI, which gives neither address nor name; srun's MPI plugins */
    {NO_FLAGS, "PMI_SIZE=2 PMI_RANK=1", RM_BY_PMI, 1, 2, -1, -1, RM_MEET_NOWHERE, "", -1},
    {NO_FLAGS, "PMI_SIZE=2 PMI_RANK=1 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", RM_BY_PMI, 1, 2, 1, 2, RM_MEET_NOWHERE, "",
     -1},
    {NO_FLAGS, "PMI_SIZE=2 PMI_RANK=1 MASTER_ADDR=h MASTER_PORT=5", RM_BY_PMI, 1, 2, -1, -1, RM_MEET_TCP, "h", 5},
    {NO_FLAGS, "PMI_SIZE=1 PMI_RANK=0", RM_BY_PMI, 0, 1, -1, -1, RM_MEET_NOWHERE, "", -1},
    {NO_FLAGS, "PMI_SIZE=4 PMI_RANK=2 PMIX_RANK=2 " SLURM, RM_BY_SLURM, 2, 4, 0, 2, RM_MEET_TCP, "node1", 0},
    {NO_FLAGS, OMPI, RM_BY_OPEN_MPI, 1, 2, 1, 2, RM_MEET_TCP, "127.0.0.1", 0},
    {FLAGS(2, -1), "PMIX_RANK=1 PMIX_NAMESPACE=n MASTER_ADDR=h MASTER_PORT=5", RM_BY_PMIX, 1, 2, -1, -1, RM_MEET_TCP,
     "h", 5},
    /* single numbers from flags, the rest from a launcher */
    {FLAGS(-1, 1), TORCH, RM_BY_TORCHRUN, 1, 4, 1, 2, RM_MEET_TCP, "hostA", 29500},
    {METHOD("tcp://other:7"), SLURM, RM_BY_SLURM, 2, 4, 0, 2, RM_MEET_TCP, "other", 7},
    {METHOD("file:///f"), OMPI, RM_BY_OPEN_MPI, 1, 2, 1, 2, RM_MEET_FILE, "/f", 0},
    /* scripts written for other frameworks, under srun: WORLD_SIZE, MASTER_ADDR and MASTER_PORT are exported */
    {NO_FLAGS, SLURM " WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=12345", RM_BY_SLURM, 2, 4, 0, 2, RM_MEET_TCP, "node1",
     12345},
    /* srun -n 2 in an allocation of 8; one task of an allocation; a batch script of one task without srun */
    {NO_FLAGS,
     "SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_LOCALID=1 "
     "SLURM_STEP_NODELIST=n5 SLURM_JOB_ID=1 SLURM_STEP_ID=3",
     RM_BY_SLURM, 1, 2, 1, -1, RM_MEET_TCP, "n5", 0},
    {NO_FLAGS, "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n5", RM_BY_SLURM, 0, 1, 0, -1,
     RM_MEET_NOWHERE, "", -1},
    {NO_FLAGS, "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=5", RM_BY_NOBODY, 0, 1, 0, 1, RM_MEET_NOWHERE, "", -1},
    /* mpirun over several hosts gives no address: MPI must connect its ranks */
    {NO_FLAGS,
     "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     RM_BY_OPEN_MPI, 1, 4, 1, 2, RM_MEET_NOWHERE, "", -1},
};

START_TEST(every_launchers_variables_are_read) {
    rm_rendezvous got;
    remat_status status = rm_rendezvous_resolve(&good[_i].flags, look_up, (void *)good[_i].environment, &got);
    ck_assert_msg(!status, "%s: %s", good[_i].environment, remat_last_error());
    ck_assert_msg(got.launcher == good[_i].launcher, "%s: by %s", good[_i].environment, rm_launcher_text(got.launcher));
    ck_assert_int_eq(got.rank, good[_i].rank);
    ck_assert_int_eq(got.size, good[_i].size);
    ck_assert_int_eq(got.local_rank, good[_i].local_rank);
    ck_assert_int_eq(got.local_size, good[_i].local_size);
    ck_assert_int_eq(got.meeting, good[_i].meeting);
    if (got.meeting == RM_MEET_FILE) ck_assert_str_eq(got.path, good[_i].host);
    if (got.meeting != RM_MEET_TCP) return;
    ck_assert_str_eq(got.host, good[_i].host);
    if (good[_i].port)
        ck_assert_int_eq(got.port, good[_i].port);
    else
        ck_assert(got.port >= 15000 && got.port < 30000);
}
END_TEST

static const struct {
    rm_rendezvous_flags flags;
    const char *environment, *words;
} bad[] = {
    /* incomplete */
    {NO_FLAGS, "WORLD_SIZE=2", "RANK is not set"},
    {NO_FLAGS, "RANK=1", "number of ranks"},
    {FLAGS(4, -1), "", "process's rank"},
    {FLAGS(-1, 2), "", "number of ranks"},
    {NO_FLAGS, "PMIX_RANK=1", "world_size"},
    {FLAGS(4, 2), "", "MASTER_ADDR"},
    {FLAGS(4, 2), "MASTER_ADDR=h", "MASTER_PORT is not set"},
    /* unsupported launchers that indicate other ranks: never one rank instead */
    {NO_FLAGS, "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2"},
    {NO_FLAGS, "LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2"},
    {NO_FLAGS, "LOCAL_RANK=1", "LOCAL_RANK=1"},
    {NO_FLAGS, "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"},
    {NO_FLAGS, "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
    {NO_FLAGS, "MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_RANK=0", "MV2_COMM_WORLD_SIZE=2, so this is one of several ranks"},
    {NO_FLAGS, "PALS_NRANKS=2", "PALS_NRANKS=2"},
    {NO_FLAGS, "PALS_RANKID=3 PALS_LOCAL_RANKID=0", "PALS_RANKID=3"},
    {NO_FLAGS, "FLUX_JOB_SIZE=2 FLUX_TASK_RANK=0", "FLUX_JOB_SIZE=2"},
    {NO_FLAGS, "JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_RANK=0", "JSM_NAMESPACE_SIZE=2"},
    {NO_FLAGS, "WORLD_SIZE=1 FLUX_JOB_SIZE=2", "FLUX_JOB_SIZE=2"},
    {NO_FLAGS, "FLUX_JOB_SIZE=many", "FLUX_JOB_SIZE='many'"},
    /* impossible numbers */
    {FLAGS(2, 2), "", "ranks are 0 to 1"},
    {FLAGS(0, 0), "", "0 ranks"},
    {NO_FLAGS, "RANK=x WORLD_SIZE=2", "RANK='x'"},
    {NO_FLAGS, "RANK=0 WORLD_SIZE=2x", "WORLD_SIZE='2x'"},
    {NO_FLAGS, "RANK=-1 WORLD_SIZE=2", "RANK='-1'"},
    {NO_FLAGS, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=99999", "1 to 65535"},
    {NO_FLAGS, "RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE"},
    {NO_FLAGS, "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "local rank 2 of 2"},
    {METHOD("http://h:1"), TORCH, "env://"},
    {METHOD("tcp://h"), TORCH, "tcp://HOST:PORT"},
    {METHOD("tcp://:80"), TORCH, "tcp://HOST:PORT"},
    {METHOD("tcp://h:0"), TORCH, "1 to 65535"},
    {METHOD("tcp://h:1x"), TORCH, "tcp://HOST:PORT"},
    {METHOD("file://here"), TORCH, "from the root"},
    /* Slurm: a script without srun; a list used as a host (from a popular recipe); variables that disagree */
    {NO_FLAGS, "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_ID=5", "put srun in front"},
    {NO_FLAGS, "SLURM_NTASKS=4 SLURM_JOB_ID=5", "put srun in front"},
    {NO_FLAGS, SLURM " MASTER_ADDR=node[1-2] MASTER_PORT=5", "a list of hosts"},
    {NO_FLAGS, SLURM " WORLD_SIZE=8", "make them equal"},
    {NO_FLAGS, OMPI " WORLD_SIZE=3", "make them equal"},
    {NO_FLAGS, "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_NODELIST=n[1-", "not a list of hosts"},
    /* left over from another launcher, or set by hand */
    {NO_FLAGS, "RANK=0 WORLD_SIZE=1 " OMPI, "rank 0 of 1 (torchrun's variables), and rank 1 of 2 (Open MPI)"},
    {NO_FLAGS, "RANK=0 WORLD_SIZE=1 " SLURM, "rank 0 of 1 (torchrun's variables), and rank 2 of 4 (Slurm)"},
    {NO_FLAGS, "RANK=0 WORLD_SIZE=1 PMI_RANK=0 PMI_SIZE=2", "and rank 0 of 2 (PMI)"},
    {NO_FLAGS, "RANK=0 WORLD_SIZE=2 PMIX_RANK=1", "and rank 1 (PMIx)"},
    {NO_FLAGS, "RANK=3 WORLD_SIZE=8 " SLURM, "rank 3 of 8 (torchrun's variables), and rank 2 of 4 (Slurm)"},
    {NO_FLAGS, SLURM " " OMPI, "rank 1 of 2 (Open MPI), and rank 2 of 4 (Slurm)"},
    {NO_FLAGS, "PMI_RANK=0 PMI_SIZE=1 " OMPI, "rank 1 of 2 (Open MPI), and rank 0 of 1 (PMI)"},
    {NO_FLAGS, "PMI_SIZE=2", "process's rank"},
    {NO_FLAGS, "PMI_RANK=1", "number of ranks"},
    /* localhost for several hosts */
    {NO_FLAGS, SLURM " MASTER_ADDR=localhost MASTER_PORT=5", "several hosts"},
    {NO_FLAGS, SLURM " MASTER_ADDR=127.0.1.1 MASTER_PORT=5", "several hosts"},
    {METHOD("tcp://127.0.0.1:5"), TORCH, "several hosts"},
    {METHOD("tcp://0.0.0.0:5"), TORCH, "several hosts"},
};

START_TEST(incomplete_and_contradictory_sources_are_refused) {
    rm_rendezvous got;
    remat_status status = rm_rendezvous_resolve(&bad[_i].flags, look_up, (void *)bad[_i].environment, &got);
    ck_assert_msg(status == REMAT_INVALID, "'%s' gives rank %d of %d at %s", bad[_i].environment, got.rank, got.size,
                  got.host);
    ck_assert_msg(strstr(remat_last_error(), bad[_i].words), "'%s' does not say '%s'", remat_last_error(),
                  bad[_i].words);
}
END_TEST

/* Jobs are distinguished by their own secret or, without one, by the launcher's name for them. */
START_TEST(each_job_has_its_own_secret) {
    static const char *const environments[] = {TORCH, TORCH " TORCHELASTIC_RUN_ID=r1", SLURM, OMPI,
                                               SLURM " REMAT_JOB_SECRET=xyzzy"};
    static const char *const secrets[] = {"", "torchrun r1 29500", "slurm 77.0", "pmix 4242.1", "xyzzy"};
    rm_rendezvous got;
    for (int i = 0; i < 5; i++) {
        ck_ok(rm_rendezvous_resolve(&NO_FLAGS, look_up, (void *)environments[i], &got));
        ck_assert_str_eq(got.secret, secrets[i]);
    }
}
END_TEST

/* Whether a rank may leave it to rank 0 to report an error in the command line: for errors about files, and for
 * others. */
START_TEST(shared_command_line_is_recognised) {
    static const struct {
        const char *environment;
        bool flags, files;
    } cases[] = {{"", false, false},
                 {TORCH, false, false}, /* possibly set by hand */
                 {TORCH " TORCHELASTIC_RUN_ID=none", true, true},
                 {"RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=none", true, false}, /* the first of its host */
                 {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=none", false, false},
                 {SLURM, true, false},
                 {"SLURM_NTASKS=4 SLURM_PROCID=1", false, false},
                 {OMPI, false, false},
                 {OMPI " OMPI_NUM_APP_CTX=2", false, false}, /* mpirun A : B */
                 {OMPI " OMPI_NUM_APP_CTX=1", true, true},
                 {"PMIX_RANK=1 PMIX_NAMESPACE=n", false, false},
                 {"RANK=x WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none", false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int files = 0; files < 2; files++)
            ck_assert_msg(rm_rendezvous_repeats(look_up, (void *)cases[i].environment, files) ==
                              (files ? cases[i].files : cases[i].flags),
                          "'%s', files %d", cases[i].environment, files);
}
END_TEST

START_TEST(processes_know_whether_they_are_ranks) {
    static const struct {
        const char *environment, *who;
    } cases[] = {{"", ""},
                 {"WORLD_SIZE=2", ""}, /* exported for another framework */
                 {"SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_JOB_ID=5", ""},
                 {"RANK=0 WORLD_SIZE=1", ""},
                 {"RANK=0 WORLD_SIZE=2", "rank 0 of 2 (torchrun's variables)"},
                 {"PMIX_RANK=1", "rank 1 (PMIx)"},
                 {SLURM, "rank 2 of 4 (Slurm)"}};
    char who[80];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_ok(rm_rendezvous_is_rank(look_up, (void *)cases[i].environment, who, sizeof who));
        ck_assert_str_eq(who, cases[i].who);
    }
    ck_fails(rm_rendezvous_is_rank(look_up, "FLUX_JOB_SIZE=2", who, sizeof who), INVALID, "FLUX_JOB_SIZE=2");
    ck_fails(rm_rendezvous_is_rank(look_up, "RANK=x", who, sizeof who), INVALID, "RANK='x'");
    ck_fails(rm_rendezvous_is_rank(look_up, "RANK=0 WORLD_SIZE=1 " SLURM, who, sizeof who), INVALID,
             "contradicts itself");
}
END_TEST

/* A launcher's socket is for rank 0. Attempts are distinguished, even if only torchrun's name for the job is known. */
START_TEST(sockets_and_attempts_of_launchers_are_read) {
    static const char *const environments[] = {
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=7 REMAT_LISTEN_FD=5",
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=7 REMAT_LISTEN_FD=5 TORCHELASTIC_RESTART_COUNT=3",
        TORCH " TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=0",
        TORCH " TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=1",
        SLURM " REMAT_LISTEN_FD=5 TORCHELASTIC_RESTART_COUNT=3"};
    static const int fds[] = {5, 0, 0, 0, 0}, attempts[] = {0, 3, 0, 1, 0};
    rm_rendezvous got[5];
    for (int i = 0; i < 5; i++) {
        ck_ok(rm_rendezvous_resolve(&NO_FLAGS, look_up, (void *)environments[i], &got[i]));
        ck_assert_int_eq(got[i].listen_fd, fds[i]);
        ck_assert_int_eq(got[i].attempt, attempts[i]);
    }
    ck_assert_str_eq(got[2].secret, got[3].secret); /* of the job; the attempt is sent separately */
    ck_assert_int_ne(got[2].port, got[3].port);
}
END_TEST

/* A program under `remat launch` may get its numbers as flags: it still belongs to the attempt, and only the attempt's
 * number distinguishes it from the job's others. Flags without the launcher's secret belong to no launcher. */
START_TEST(flags_belong_to_the_attempt) {
    static const char *const environments[] = {
        "MASTER_ADDR=h MASTER_PORT=7 REMAT_JOB_SECRET=xyzzy TORCHELASTIC_RESTART_COUNT=3",
        "MASTER_ADDR=h MASTER_PORT=7 TORCHELASTIC_RESTART_COUNT=3"};
    rm_rendezvous_flags flags = {.world_size = 2, .rank = 1, .local_rank = -1};
    rm_rendezvous got;
    for (int i = 0; i < 2; i++) {
        ck_ok(rm_rendezvous_resolve(&flags, look_up, (void *)environments[i], &got));
        ck_assert_int_eq(got.launcher, RM_BY_FLAGS);
        ck_assert_int_eq(got.attempt, i ? 0 : 3);
    }
}
END_TEST

/* One of two ranks with its environment: reads a number to which both have added. */
_Noreturn static void meet(int rank, const char *method) {
    rm_rendezvous where;
    rm_kv *store;
    int64_t sum;
    rm_rendezvous_flags flags = {.init_method = method, .world_size = -1, .rank = -1, .local_rank = -1};
    setenv("RANK", rank ? "1" : "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    need_ok(rm_rendezvous_resolve(&flags, rm_environment_of_process, NULL, &where));
    need_ok(rm_rendezvous_store(&where, 20000, NULL, NULL, &store));
    need_ok(rm_kv_add(store, "sum", where.rank + 1, &sum));
    if (sum == 3) need_ok(rm_kv_set(store, "done", "", 0));
    need_ok(rm_kv_wait(store, "done", 20000));
    rm_kv_close(store);
    _exit(0);
}

/* torchrun's ranks: its own store is at MASTER_PORT and uses another protocol. */
START_TEST(ranks_meet_beside_torchruns_store) {
    pid_t pid[2];
    int fd, port = 0;
    char text[12];
    ck_ok(rm_kv_listen("127.0.0.1", &port, "", &fd));
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_ADDR", "this-host.invalid", 1);
    setenv("MASTER_PORT", text, 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    for (int r = 0; r < 2; r++) {
        setenv("LOCAL_RANK", r ? "1" : "0", 1);
        if (!(pid[r] = fork())) meet(r, NULL);
    }
    for (int r = 0; r < 2; r++) ck_assert_int_eq(end_of(pid[r]), 0);
    close(fd);
}
END_TEST

/* From the environment of a real process to a number that both ranks see. */
START_TEST(ranks_meet_by_their_environment) {
    pid_t pid[2];
    char method[200];
    snprintf(method, sizeof method, "file://%s", meeting_place());
    for (int r = 0; r < 2; r++)
        if (!(pid[r] = fork())) meet(r, method);
    for (int r = 0; r < 2; r++) ck_assert_int_eq(end_of(pid[r]), 0);
    rm_rendezvous alone = {.size = 1};
    rm_kv *store = (rm_kv *)&alone;
    ck_ok(rm_rendezvous_store(&alone, 0, NULL, NULL, &store));
    ck_assert_ptr_null(store);
}
END_TEST

#define COUNT(table) ((int)(sizeof table / sizeof *table))

int main(void) {
    TCase *cases = tcase_create("rendezvous");
    tcase_add_loop_test(cases, host_lists_are_expanded, 0, COUNT(lists));
    tcase_add_test(cases, invalid_host_lists_are_refused);
    tcase_add_test(cases, tasks_of_each_node_are_counted);
    tcase_add_loop_test(cases, every_launchers_variables_are_read, 0, COUNT(good));
    tcase_add_loop_test(cases, incomplete_and_contradictory_sources_are_refused, 0, COUNT(bad));
    tcase_add_test(cases, each_job_has_its_own_secret);
    tcase_add_test(cases, shared_command_line_is_recognised);
    tcase_add_test(cases, processes_know_whether_they_are_ranks);
    tcase_add_test(cases, sockets_and_attempts_of_launchers_are_read);
    tcase_add_test(cases, flags_belong_to_the_attempt);
    tcase_add_test(cases, ranks_meet_beside_torchruns_store);
    tcase_add_test(cases, ranks_meet_by_their_environment);
    return run_cases("dist/rendezvous", cases);
}
