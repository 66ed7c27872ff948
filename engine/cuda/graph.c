/* graph.c: launches many small kernels as one CUDA graph. A launcher calls rm_cuda_queue's begin before them and end
 * after them (ops/cuda/cuda_queue.h). The launches between are recorded, and the recording is launched whenever the
 * same call is made again: addresses in the arena are the same from step to step.
 *
 *   first call    launched directly: CUDA loads kernels at their first use, which it cannot do while it records
 *   second call   recorded, made into a graph, launched
 *   later calls   the graph is launched
 *
 * All graphs are therefore made in the first two steps of their kind, and a call that is made once costs nothing. A
 * call is identified by a 128-bit hash of its key, its op and its pass. Calls beyond the limits of cuda.h (of calls,
 * graphs, memory) are always launched directly. No graph is replaced by another one, since a step that needs more
 * graphs than fit would replace each graph before its next use. With REMAT_CUDA_GRAPHS=OFF when the queue is made,
 * nothing is recorded. */
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "engine/hash.h"
#include "memory/bytes.h"
#include "memory/host.h"

typedef struct {
    uint64_t key[2]; /* both 0: an empty slot */
    cudaGraphExec_t graph;
    uint32_t sights; /* number of calls, up to 2 */
} known_call;

enum { SLOTS = 2 * RM_CUDA_CALLS }; /* a power of two, never more than half full */

struct rm_cuda_graphs {
    known_call slot[SLOTS];
    known_call *recorded; /* the call that is being recorded; NULL: none */
    int n_calls, n_graphs;
    uint64_t bytes;    /* GPU memory of the graphs */
    const char *ended; /* why no more graphs are made; NULL: graphs are made */
    bool forgetful;    /* there were more calls than slots */
    bool off;          /* REMAT_CUDA_GRAPHS=OFF */
};

static rm_queue *queue_of(const rm_cuda_queue *shown) { return (rm_queue *)(uintptr_t)shown; }

/* ---- Calls ----------------------------------------------------------------------------------------------------- */

static void make_key(const rm_queue *q, const void *key, size_t bytes, uint64_t *out) {
    for (uint64_t half = 0; half < 2; half++)
        out[half] = rm_hash(key, bytes, rm_hash(q->running, sizeof q->running, half));
    if (!out[0] && !out[1]) out[0] = 1;
}

/* NULL: a new call, but all slots are in use. */
static known_call *find(rm_cuda_graphs *graphs, const uint64_t *key) {
    uint64_t at = key[0] % SLOTS;
    for (; graphs->slot[at].key[0] || graphs->slot[at].key[1]; at = (at + 1) % SLOTS)
        if (graphs->slot[at].key[0] == key[0] && graphs->slot[at].key[1] == key[1]) return &graphs->slot[at];
    if (graphs->n_calls == RM_CUDA_CALLS) return NULL;
    graphs->n_calls++;
    graphs->slot[at] = (known_call){.key = {key[0], key[1]}};
    return &graphs->slot[at];
}

/* ---- Graphs ---------------------------------------------------------------------------------------------------- */

static void launch(rm_queue *q, cudaGraphExec_t graph) {
    (void)rm_cuda_went(q->device, q->device->lib->cudaGraphLaunch(graph, q->stream), "starting recorded kernels");
}

static bool free_bytes(rm_queue *q, uint64_t *bytes) {
    size_t free = 0, total = 0;
    bool went =
        rm_cuda_went(q->device, q->device->lib->cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
    *bytes = free;
    return went;
}

/* Memory of a graph: the decrease of free memory, but no more than its launches can need. Other programs may have taken
 * the rest, which must not end recording. */
static uint64_t share_of(uint64_t before, uint64_t after, size_t launches) {
    return rm_smaller(before - rm_smaller(before, after), launches * RM_CUDA_NODE_BYTES);
}

/* Uploads the graph at once, so that launching it takes no memory. */
static cudaGraphExec_t make_graph(rm_queue *q, cudaGraph_t recorded) {
    const rm_cuda_library *lib = q->device->lib;
    rm_cuda_graphs *graphs = q->graphs;
    cudaGraphExec_t graph = NULL;
    uint64_t before, after;
    size_t launches = 0;
    if (!rm_cuda_went(q->device, lib->cudaGraphGetNodes(recorded, NULL, &launches), "counting recorded kernels"))
        return NULL;
    if (!free_bytes(q, &before)) return NULL;
    if (!rm_cuda_went(q->device, lib->cudaGraphInstantiate(&graph, recorded, 0), "making a graph of recorded kernels"))
        return NULL;
    graphs->n_graphs++;
    if (rm_cuda_went(q->device, lib->cudaGraphUpload(graph, q->stream), "giving the GPU a graph") &&
        free_bytes(q, &after))
        graphs->bytes += share_of(before, after, launches);
    if (graphs->n_graphs == RM_CUDA_GRAPHS) graphs->ended = "the maximum number is reached";
    if (graphs->bytes >= q->device->graph_bytes) graphs->ended = "the memory reserved for them is full";
    return graph;
}

bool rm_cuda_graph_begin(const rm_cuda_queue *shown, const void *key, size_t bytes) {
    rm_queue *q = queue_of(shown);
    rm_cuda_graphs *graphs = q->graphs;
    uint64_t hashes[2];
    if (q->device->failed) return false;
    if (graphs->off) return true;
    make_key(q, key, bytes, hashes);
    known_call *call = find(graphs, hashes);
    if (call && call->graph) {
        launch(q, call->graph);
        return false;
    }
    graphs->forgetful |= !call;
    if (!call || graphs->ended || call->sights++ == 0) return true;
    /* CUDA calls of other threads of this process (the ranks' collectives) are not recorded. */
    cudaError_t error = q->device->lib->cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeThreadLocal);
    if (!rm_cuda_went(q->device, error, "beginning to record kernels")) return false;
    graphs->recorded = call;
    return true;
}

/* Recorded launches have not run yet. If the graph cannot be made or launched, the step fails, and from the next step
 * on nothing new is recorded. */
void rm_cuda_graph_end(const rm_cuda_queue *shown) {
    rm_queue *q = queue_of(shown);
    const rm_cuda_library *lib = q->device->lib;
    known_call *call = q->graphs->recorded;
    cudaGraph_t recorded = NULL;
    if (!call) return;
    q->graphs->recorded = NULL;
    bool well = rm_cuda_went(q->device, lib->cudaGetLastError(), "starting a kernel");
    well &= rm_cuda_went(q->device, lib->cudaStreamEndCapture(q->stream, &recorded), "recording kernels");
    if (well && !q->device->failed) call->graph = make_graph(q, recorded);
    if (recorded) (void)rm_cuda_went(q->device, lib->cudaGraphDestroy(recorded), "freeing a recording");
    if (q->device->failed) q->graphs->ended = "one could not be made";
    if (call->graph && !q->device->failed) launch(q, call->graph);
}

bool rm_cuda_graph_records(const rm_queue *q) { return q->graphs && q->graphs->recorded; }

void rm_cuda_graphs_known(const rm_queue *q, rm_recordings *out) {
    const rm_cuda_graphs *graphs = q->graphs;
    *out = (rm_recordings){.calls = graphs->n_calls,
                           .graphs = graphs->n_graphs,
                           .bytes = graphs->bytes,
                           .limit_bytes = q->device->graph_bytes,
                           .ended = graphs->ended};
    if (graphs->forgetful && !out->ended) out->ended = "there are more different calls than Remat remembers";
    if (graphs->off) out->ended = "REMAT_CUDA_GRAPHS=OFF";
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

remat_status rm_cuda_graphs_make(rm_queue *q) {
    q->graphs = rm_calloc(1, sizeof *q->graphs);
    REQUIRE(q->graphs, MEMORY, "out of host memory for the list of recorded kernels");
    const char *set = getenv("REMAT_CUDA_GRAPHS");
    q->graphs->off = set && !strcmp(set, "OFF");
    return REMAT_OK;
}

void rm_cuda_graphs_forget(rm_queue *q) {
    const rm_cuda_library *lib = q->device->lib;
    if (q->graphs->n_graphs) (void)lib->cudaStreamSynchronize(q->stream); /* a wait before this one may have failed */
    for (int i = 0; i < SLOTS; i++)
        if (q->graphs->slot[i].graph) (void)lib->cudaGraphExecDestroy(q->graphs->slot[i].graph);
    (void)lib->cudaGetLastError();
    const bool off = q->graphs->off;
    memset(q->graphs, 0, sizeof *q->graphs); /* too large for a compound literal on the stack */
    q->graphs->off = off;
}

void rm_cuda_graphs_destroy(rm_queue *q) {
    if (q->graphs) rm_cuda_graphs_forget(q);
    rm_free(q->graphs);
    q->graphs = NULL;
}
