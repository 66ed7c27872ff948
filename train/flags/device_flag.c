/* device_flag.c: see device_flag.h. */
#include "train/flags/device_flag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/run/setup.h"

static const char *list_of(const char *devices) {
    return !strncmp(devices, "cuda", 4) ? devices + (devices[4] == ':' ? 5 : 4) : devices;
}

int rm_device_count_gpus(const char *devices) {
    int n = 0;
    devices = list_of(devices);
    if (!*devices) return 1;
    for (const char *at = devices;; at++) {
        size_t digits = strspn(at, "0123456789");
        if (!digits) return 0;
        n++;
        at += digits;
        if (!*at) return n;
        if (*at != ',') return 0;
    }
}

/* Refuses flags that GPUs do not support yet. */
static remat_status check_flags(const rm_options *o) {
    if (o->world_size <= 1) return REMAT_OK;
    bool adds = o->world_size > rm_setup_parts(o); /* gradients of replicas */
    REQUIRE(!o->ddp.compress && !(o->order.shards && adds), MISSING,
            "--grad-compress and --deterministic-world need gradients in host memory, and --device=cuda keeps them on "
            "the GPU: remove the flag, or use --device=cpu");
#ifdef REMAT_HAVE_NCCL
    return REMAT_OK;
#else
    FAIL(MISSING, "ranks on GPUs need NCCL to add their gradients, and this build has no NCCL");
#endif
}

static remat_status try_cuda(const rm_options *o) {
    TRY(check_flags(o));
    return remat_device_check("cuda");
}

remat_status rm_device_set(rm_options *o, const char *name) { return rm_options_replace(&o->session.device, name); }

/* ---- --devices ------------------------------------------------------------------------------------------------- */

/* Item `number` of "a,b,c", counted from 0, and its length; NULL: the list is shorter. */
static const char *part(const char *list, long number, int *length) {
    for (; number > 0; number--) {
        list = strchr(list, ',');
        if (!list) return NULL;
        list++;
    }
    *length = (int)strcspn(list, ",");
    return *length ? list : NULL;
}

/* CUDA would silently end the list at a GPU that it names twice. */
static remat_status check_list(const char *devices) {
    bool named[10000] = {false};
    for (const char *at = list_of(devices); *at; at += *at == ',') {
        const int digits = (int)strspn(at, "0123456789");
        REQUIRE(digits <= 4, INVALID, "--devices=%.60s: %.30s is not a GPU number; GPUs count from 0", devices, at);
        const int number = atoi(at);
        REQUIRE(!named[number], INVALID, "--devices=%.60s names GPU %d twice: each rank needs a GPU of its own",
                devices, number);
        named[number] = true;
        at += digits;
    }
    return REMAT_OK;
}

/* Appends the name, among all GPUs, of visible GPU `number`. */
static remat_status add_gpu(const char *devices, long number, char *names, size_t bytes) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *name = NULL;
    const size_t n = strlen(names);
    int length = 0;
    if (visible) name = part(visible, number, &length);
    REQUIRE(!visible || name, INVALID, "--devices=%.60s: CUDA_VISIBLE_DEVICES=%.60s has no GPU %ld, counted from 0",
            devices, visible, number);
    if (visible)
        snprintf(names + n, bytes - n, "%s%.*s", n ? "," : "", length, name);
    else
        snprintf(names + n, bytes - n, "%s%ld", n ? "," : "", number);
    return REMAT_OK;
}

remat_status rm_device_use_gpus(rm_options *o) {
    char names[600] = "";
    const char *at = list_of(o->devices);
    REQUIRE(!rm_options_given(o, "device") || !strcmp(o->session.device, "cuda") || !strcmp(o->session.device, "auto"),
            INVALID, "--devices=%.60s names GPUs, and --device=%s is not a GPU: remove one of the two", o->devices,
            o->session.device);
    TRY(check_list(o->devices));
    for (; *at; at += *at == ',') {
        char *end;
        TRY(add_gpu(o->devices, strtol(at, &end, 10), names, sizeof names));
        at = end;
    }
    if (*names) setenv("CUDA_VISIBLE_DEVICES", names, 1);
    return rm_device_set(o, "cuda");
}

/* ---- --device -------------------------------------------------------------------------------------------------- */

/* Prints the error up to its remedy. */
static remat_status fall_back_to_cpu(rm_options *o, bool verbose) {
    const char *sentence = remat_last_error();
    if (verbose)
        fprintf(stderr, "remat: --device=auto computes on the CPU: %.*s\n", (int)strcspn(sentence, ";"), sentence);
    return rm_device_set(o, "cpu");
}

remat_status rm_device_choose(rm_options *o, bool verbose) {
    const bool any = !strcmp(o->session.device, "auto");
    if (!any && strcmp(o->session.device, "cuda")) return REMAT_OK;
    remat_status status = try_cuda(o);
    if (!any) return status;
    return status ? fall_back_to_cpu(o, verbose) : rm_device_set(o, "cuda");
}
