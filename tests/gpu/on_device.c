/* on_device.c: copies a call's arrays to the device, runs its kernel, and copies them back (on_device.h). */
#include "tests/gpu/on_device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REDZONE = 256, MOST_PIECES = 3 * REMAT_MAX_INPUTS + 6 * REMAT_MAX_STATES, POISON = 0xFF, TEXT = 600 };

static on_device_state now;
static rm_block *block;
static char *base, *staging; /* the block's memory, and as much host memory */
static uint64_t room;
static const remat_op *current;
static remat_op shown;
static char complaint[TEXT];

/* One array of a call. */
typedef struct {
    void **data; /* pointer in the device's copy of the call */
    void *host;  /* NULL: nothing is copied */
    uint64_t bytes, at;
} piece;

typedef struct {
    remat_call call; /* with addresses on the device */
    piece piece[MOST_PIECES];
    int n_pieces;
    uint64_t end;
} image;

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
    if (complaint[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(complaint, sizeof complaint, format, arguments);
    va_end(arguments);
}

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

remat_status on_device_open(const char *name) {
    now = (on_device_state){.api = rm_device_find(name)};
    REQUIRE(now.api, MISSING, "this build has no device \"%s\"", name);
    TRY(now.api->open(1, &now.device));
    remat_status status = now.api->queue_create(now.device, &now.queue);
    if (status) on_device_close();
    return status;
}

static void drop_room(void) {
    if (block) now.api->block_free(block);
    free(staging);
    block = NULL, base = staging = NULL, room = 0;
}

void on_device_close(void) {
    drop_room();
    if (now.queue) now.api->queue_free(now.queue);
    if (now.device) now.api->close(now.device);
    now = (on_device_state){0};
}

const on_device_state *on_device_now(void) { return &now; }

const char *on_device_complaint(void) {
    static char last[TEXT];
    memcpy(last, complaint, sizeof last);
    complaint[0] = 0;
    return last[0] ? last : NULL;
}

char *on_device_room(uint64_t bytes) {
    if (bytes > room) {
        drop_room();
        room = 2 * bytes > 1 << 20 ? 2 * bytes : 1 << 20;
        staging = malloc(room);
        if (!staging) abort();
        if (now.api->block_create(now.device, room, &block)) {
            complain("%s", remat_last_error());
            drop_room();
            return NULL;
        }
        base = now.api->claim(block, 0, room);
    }
    now.api->fill(now.queue, base, POISON, bytes);
    return base;
}

/* ---- Arrays of a call ------------------------------------------------------------------------------------------- */

static void add_piece(image *im, void **data, uint64_t bytes, bool travels) {
    if (!*data) return;
    uint64_t at = im->end + REDZONE;
    im->piece[im->n_pieces++] = (piece){data, travels ? *data : NULL, bytes, at};
    im->end = at + (bytes + RM_ALIGN - 1) / RM_ALIGN * RM_ALIGN;
}
static void add_tensor(image *im, remat_tensor *t) {
    if (t->data) add_piece(im, &t->data, rm_desc_bytes(&t->desc), true);
}

static uint64_t scratch_bytes(const remat_op *op, remat_pass pass, const remat_call *call, const remat_desc *x) {
    remat_cost cost = {0};
    const remat_op_device *on = &op->on[now.api->kernels];
    if (on->scratch_bytes) return on->scratch_bytes(x, call->attr, pass, call->aux != NULL, 1);
    op->cost(x, &call->y.desc, call->attr, pass, &cost);
    return cost.scratch_bytes;
}

/* Packed weights are included if the device's kernels read them. */
static void add_own(image *im, const remat_op *op, remat_pass pass) {
    remat_call *c = &im->call;
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = c->x[i].desc;
    add_piece(im, &c->aux, op->aux_bytes ? op->aux_bytes(x, c->attr) : 0, true);
    add_piece(im, &c->once, op->once_bytes ? op->once_bytes(x, c->attr) : 0, true);
    add_piece(im, &c->scratch, scratch_bytes(op, pass, c, x), false);
    const remat_op_device *on = &op->on[now.api->kernels];
    c->fixed = on->fixed_bytes ? c : NULL; /* the harness has none: any address, until the piece has one */
    if (c->fixed) add_piece(im, &c->fixed, on->fixed_bytes(x, c->attr), false);
    if (!on->pack) c->packed = NULL;
    if (c->packed) add_piece(im, (void **)&c->packed, on->packed_bytes(x, c->attr, c->threads), true);
}

static void list_pieces(image *im, const remat_op *op, remat_pass pass) {
    remat_call *c = &im->call;
    im->end = (uint64_t)(now.calls % 5) * RM_ALIGN;
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) add_tensor(im, &c->x[i]), add_tensor(im, &c->dx[i]);
    for (int j = 0; j < REMAT_MAX_STATES; j++) {
        add_tensor(im, &c->state_in[j]), add_tensor(im, &c->state_out[j]);
        add_tensor(im, &c->dstate_out[j]), add_tensor(im, &c->dstate_in[j]);
    }
    add_tensor(im, &c->y), add_tensor(im, &c->dy);
    add_own(im, op, pass);
    im->end += REDZONE;
}

/* The redzones between arrays must be unchanged. */
static void check_redzones(const image *im, const char *kernel) {
    uint64_t from = 0;
    for (int k = 0; k <= im->n_pieces; k++) {
        uint64_t to = k < im->n_pieces ? im->piece[k].at : im->end;
        for (uint64_t i = from; i < to; i++)
            if ((unsigned char)staging[i] != POISON) {
                complain("%s wrote outside its arrays, %lld bytes %s", kernel,
                         (long long)(k && i - from < REDZONE ? i - from + 1 : to - i),
                         k && i - from < REDZONE ? "after one" : "before one");
                return;
            }
        if (k < im->n_pieces) from = im->piece[k].at + im->piece[k].bytes;
    }
}

static void run(const remat_call *call, remat_pass pass) {
    const rm_device_api *api = now.api;
    image im = {.call = *call};
    now.calls++;
    list_pieces(&im, current, pass);
    if (!on_device_room(im.end)) return;
    memset(staging, POISON, im.end);
    for (int k = 0; k < im.n_pieces; k++) {
        piece *p = &im.piece[k];
        if (p->host) memcpy(staging + p->at, p->host, p->bytes);
        *p->data = base + p->at;
    }
    api->copy_in(now.queue, base, staging, im.end);
    api->run(now.queue, current, pass, &im.call);
    api->copy_out(now.queue, staging, base, im.end);
    if (api->synchronize(now.queue)) {
        complain("%s", remat_last_error());
        return;
    }
    check_redzones(&im, current->name);
    for (int k = 0; k < im.n_pieces; k++)
        if (im.piece[k].host) memcpy(im.piece[k].host, staging + im.piece[k].at, im.piece[k].bytes);
}

static void forward(const remat_call *call) { run(call, REMAT_FORWARD); }
static void backward(const remat_call *call) { run(call, REMAT_BACKWARD); }
static void rebuild(const remat_call *call) { run(call, REMAT_REBUILD); }
static void once(const remat_call *call) { run(call, REMAT_ONCE); }

const remat_op *on_device(const remat_op *op) {
    current = op;
    shown = *op;
    shown.on[REMAT_ON_CPU].forward = forward;
    shown.on[REMAT_ON_CPU].backward = backward;
    shown.on[REMAT_ON_CPU].rebuild = op->on[now.api->kernels].rebuild ? rebuild : NULL;
    shown.on[REMAT_ON_CPU].once = op->once_bytes ? once : NULL;
    return &shown;
}
