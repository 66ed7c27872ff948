/* test_nccl.c: NVIDIA's NCCL with one GPU: a group of this process alone, opened, used and closed through the real
 * library. Every collective in every type and reduction must return the rank's own values, in place and out of
 * place, at once and after an event of the device's queue; then a barrier. The part `ranks` of run.sh uses two GPUs.
 *
 *     gpu_test_nccl [--device=cuda]
 *
 * Exits with 77 without such a device or without NCCL. */
#include "dist/group/group.h"
#include "dist/group/reduce.h"
#include "tests/gpu/skip.h"

enum { N = 1000, ROOM = N * 8 };
static const char *const kinds[RM_KINDS] = {"barrier", "all-reduce", "broadcast", "all-gather", "reduce-scatter"};
static const char *const wires[RM_WIRES] = {"f32", "i32", "u8", "f64", "f16", "bf16"};
static const char *const reductions[RM_REDUCTIONS] = {"sum", "mean", "tree"};

static const rm_device_api *api;
static rm_device *device;
static rm_queue *queue;
static rm_event *event;
static char *room[2]; /* in the group's memory */
static int failures, collectives;

static void check(remat_status status) {
    if (status) printf("%s\n", remat_last_error()), exit(EXIT_FAILURE);
}

/* 1, 2, -1, 0.5 as halves: the mean over one rank is the same number, however it is rounded. */
static void put(rm_wire wire, int i, void *to) {
    static const uint16_t f16[] = {0x3c00, 0x4000, 0xbc00, 0x3800}, bf16[] = {0x3f80, 0x4000, 0xbf80, 0x3f00};
    if (wire == RM_WIRE_F32) ((float *)to)[i] = (float)(i - 300) / 8;
    if (wire == RM_WIRE_I32) ((int32_t *)to)[i] = i - 300;
    if (wire == RM_WIRE_U8) ((uint8_t *)to)[i] = (uint8_t)i;
    if (wire == RM_WIRE_F64) ((double *)to)[i] = (double)(i - 300) / 7;
    if (wire == RM_WIRE_F16) ((uint16_t *)to)[i] = f16[i % 4];
    if (wire == RM_WIRE_BF16) ((uint16_t *)to)[i] = bf16[i % 4];
}

static void run(rm_group *group, rm_collective what, bool in_place, bool after_event) {
    static char brought[ROOM], got[ROOM];
    const uint64_t bytes = N * rm_wire_bytes(what.wire);
    char *in = room[0], *out = room[!in_place];
    for (int i = 0; i < N; i++) put(what.wire, i, brought);
    api->copy_in(queue, what.kind == RM_BROADCAST ? out : in, brought, bytes);
    if (after_event)
        check(api->hand_over(queue, event, &what.after));
    else
        check(api->synchronize(queue));
    what.count = N, what.in = what.kind == RM_BROADCAST ? NULL : in, what.out = out;
    check(rm_group_run(group, &what));
    api->copy_out(queue, got, out, bytes);
    check(api->synchronize(queue));
    collectives++;
    if (memcmp(got, brought, bytes)) {
        printf("%s of %s, %s%s%s FAILED: not the numbers of the single rank\n", kinds[what.kind], wires[what.wire],
               reductions[what.reduction], in_place ? ", in place" : "", after_event ? ", after an event" : "");
        failures++;
    }
}

static void run_all(rm_group *group) {
    for (int kind = RM_ALL_REDUCE; kind < RM_KINDS; kind++)
        for (int wire = 0; wire < RM_WIRES; wire++)
            for (int reduction = 0; reduction < RM_REDUCTIONS; reduction++) {
                const bool reduces = kind == RM_ALL_REDUCE || kind == RM_REDUCE_SCATTER;
                if (reduces ? !rm_can_reduce((rm_wire)wire, (rm_reduction)reduction) : reduction > 0) continue;
                const rm_collective what = {
                    .kind = (rm_kind)kind, .wire = (rm_wire)wire, .reduction = (rm_reduction)reduction};
                for (int how = 0; how < 4; how++) run(group, what, how & 1, how & 2);
            }
}

int main(int argc, char **argv) {
    const char *name = value_of(argc, argv, "--device=", "cuda");
    rm_group *group;
    need_device(try_device(name));
    api = rm_device_find(name);
    if (!api->number) printf("skipped: the device %s is no GPU\n", name), exit(SKIPPED);
    check(api->open(1, &device));
    check(api->queue_create(device, &queue));
    check(api->event_create(device, &event));
    const rm_group_config config = {.engine = "nccl", .size = 1, .gpu = 1 + api->number(device), .timeout_ms = 60000};
    need_device(rm_group_open(&config, &group));
    for (int i = 0; i < 2; i++) {
        room[i] = rm_group_alloc(group, ROOM);
        check(room[i] ? REMAT_OK : REMAT_MEMORY);
    }
    run_all(group);
    check(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
    check(rm_group_poll(group));
    rm_group_free(group, room[0]); /* closing the group frees the other one */
    const uint64_t taken = rm_group_device_bytes(group);
    rm_group_close(group);
    api->event_free(event);
    api->queue_free(queue);
    api->close(device);
    printf("%d collectives of one rank by NCCL, which took %.1f MiB: %d failed\n", collectives,
           (double)taken / (1 << 20), failures);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
