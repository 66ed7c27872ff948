/* test_versions.c: prints the libraries that the device uses. It opens the device, cuDNN, and NCCL with a group of
 * this process alone, and prints every file that was opened for them, with its version.
 *
 *     gpu_test_versions [--device=cuda]
 *
 * Exits with 77 without such a device. Other missing libraries are printed, but are no failure. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#include "dist/group/group.h"
#include "tests/gpu/skip.h"

/* Functions that return a version: by value, or through a pointer. */
static const struct {
    const char *function, *of;
    bool by_pointer;
} sayers[] = {
    {"cuDriverGetVersion", "driver for CUDA", true},
    {"cudaRuntimeGetVersion", "CUDA runtime", true},
    {"cublasLtGetVersion", "cuBLASLt", false},
    {"cudnnGetVersion", "cuDNN", false},
    {"ncclGetVersion", "NCCL", true},
};

int cudaRuntimeGetVersion(int *version) __attribute__((weak)); /* linked in, in builds with kernels */

static long long ask(void *function, bool by_pointer) {
    size_t (*by_value)(void);
    int (*into)(int *), version = 0;
    if (by_pointer) {
        *(void **)&into = function;
        return into(&version) ? -1 : version;
    }
    *(void **)&by_value = function;
    return (long long)by_value();
}

/* The versions that an open file itself reports. A function that it only imports from another library does not
 * count. */
static void say_versions(const char *file) {
    void *handle = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    Dl_info from;
    for (size_t i = 0; handle && i < sizeof sayers / sizeof *sayers; i++) {
        void *function = dlsym(handle, sayers[i].function);
        if (!function || !dladdr(function, &from) || strcmp(from.dli_fname, file)) continue;
        printf("  %s %lld", sayers[i].of, ask(function, sayers[i].by_pointer));
    }
    if (handle) dlclose(handle);
}

static bool is_nvidias(const char *file) {
    static const char *const part[] = {"/libcu", "/libnv", "/libnccl", "/libfake"};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (strstr(file, part[i]) && strstr(file, ".so")) return true;
    return false;
}

/* Each file once: its segments are adjacent in memory. */
static void say_files(void) {
    char line[4096], last[4096] = "";
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char *file = strchr(line, '/');
        if (!file || !is_nvidias(file)) continue;
        file[strcspn(file, "\n")] = 0;
        if (!strcmp(file, last)) continue;
        strcpy(last, file);
        printf("opened %s", file);
        say_versions(file);
        putchar('\n');
    }
    if (maps) fclose(maps);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *name = value_of(argc, argv, "--device=", "cuda");
    const rm_device_api *api = rm_device_find(name);
    rm_device *device;
    rm_group *group;
    need_device(try_device(name));
    need_device(api->open(1, &device));
    if (api->use_cudnn && api->use_cudnn(device)) printf("cuDNN: %s\n", remat_last_error());
    int runtime = 0;
    if (cudaRuntimeGetVersion && !cudaRuntimeGetVersion(&runtime)) printf("linked in: CUDA runtime %d\n", runtime);
    say_files(); /* already before NCCL, which is most likely to hang */
    api->close(device);
    const rm_group_config config = {.engine = "nccl", .size = 1, .gpu = 1, .timeout_ms = 30000};
    if (api->number) {
        puts("and with NCCL:");
        if (rm_group_open(&config, &group))
            printf("NCCL: %s\n", remat_last_error());
        else
            rm_group_close(group);
        say_files();
    }
    puts("each library's file and version are in its log");
    return EXIT_SUCCESS;
}
