/* command_devices.c: --devices of `remat train`: runs this command line once per device, as ranks of a job on this machine, through
 * dist/launch/launch.h. `remat launch` (command_launch.c) starts other commands. Main entry: rm_command_devices. */
#include "engine/abi.h"
#include "train/commands/commands.h"
#include "train/flags/device_flag.h"
#include "train/file.h"
#include "train/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dist/launch/launch.h"
#include "dist/store/rendezvous.h"
#include "memory/host.h"

#define MARK "REMAT_DEVICES" /* set in the environment of ranks that --devices starts */

/* A single number is a GPU's, and may have been meant as the number of ranks. */
static remat_status no_gpus(const char *devices, int n) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const int number = atoi(devices), ranks = n == 1 && number > 1 ? number : n;
    FAIL(INVALID,
         "--devices=%.60s: %s%s%.60s%s, and this build has no CUDA; --devices=cpu:%d starts %d rank%s on processors",
         devices, n == 1 ? "this is the number of a GPU" : "these are GPUs",
         visible ? " (of CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "", visible ? ")" : "", ranks, ranks,
         ranks == 1 ? "" : "s");
}

static remat_status read_devices(const char *devices, int64_t *ranks) {
    int gpus = rm_device_count_gpus(devices);
    *ranks = gpus ? gpus : 1;
    if (gpus) return strstr(rm_build_info_of_this().devices, "cuda") ? REMAT_OK : no_gpus(devices, gpus);
    if (!strcmp(devices, "cpu")) return REMAT_OK;
    REQUIRE(!strncmp(devices, "cpu:", 4), INVALID,
            "--devices=%.60s: use cpu:N for N ranks on the CPU, or a list of GPUs such as 0,1,2,3", devices);
    return rm_text_whole("--devices=cpu:N with N", devices + 4, 1, 4096, ranks);
}

/* Refuses the variables of another launcher with more than one rank, whether or not its ranks can connect. */
static remat_status check_not_a_rank(const char *devices) {
    char who[80];
    TRY(rm_rendezvous_is_rank(rm_environment_of_process, NULL, who, sizeof who));
    REQUIRE(!*who, INVALID, "--devices=%.60s would start ranks, but this process is %s already: remove --devices",
            devices, who);
    return REMAT_OK;
}

/* Ranks that --devices starts see only the GPUs that it names. */
static remat_status choose_gpus(rm_options *options) {
    if (!rm_device_count_gpus(options->devices)) return REMAT_OK;
    if (!getenv(MARK)) return rm_device_use_gpus(options);
    return rm_device_set(options, "cuda");
}

remat_status rm_command_devices(rm_options *options, bool *ran, int *exit_status) {
    const char *devices = options->devices;
    int64_t ranks = 1;
    char self[RM_PATH_BYTES], **argv;
    *ran = false;
    if (!devices) return REMAT_OK;
    if (!getenv(MARK)) TRY(read_devices(devices, &ranks));
    TRY(choose_gpus(options));
    if (getenv(MARK) || ranks == 1) return REMAT_OK;
    TRY(check_not_a_rank(devices));
    REQUIRE(rm_path_of_program(self, sizeof self), IO, "cannot find this program's executable to start ranks: %s",
            strerror(errno));
    TRY(rm_program_words(&argv));
    argv[0] = self;
    setenv(MARK, devices, 1);
    remat_status status = rm_launch(&(rm_launch_config){.nproc = (int32_t)ranks,
                                                        .nnodes = 1,
                                                        .standalone = true,
                                                        .prefix = true,
                                                        .direct_rank_0 = true,
                                                        .argv = argv},
                                    exit_status);
    unsetenv(MARK);
    rm_free(argv);
    *ran = !status;
    return status;
}
