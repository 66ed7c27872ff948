/* fingerprint.c: makes, compares and describes fingerprints of collectives. */
#include "dist/group/fingerprint.h"

#include <stdio.h>
#include <string.h>

static const char *const kinds[RM_KINDS] = {
    [RM_BARRIER] = "barrier",       [RM_ALL_REDUCE] = "all_reduce",         [RM_BROADCAST] = "broadcast",
    [RM_ALL_GATHER] = "all_gather", [RM_REDUCE_SCATTER] = "reduce_scatter",
};
static const char *const wires[RM_WIRES] = {
    [RM_WIRE_F32] = "f32", [RM_WIRE_I32] = "i32", [RM_WIRE_U8] = "u8",
    [RM_WIRE_F64] = "f64", [RM_WIRE_F16] = "f16", [RM_WIRE_BF16] = "bf16",
};
static const char *const reductions[RM_REDUCTIONS] = {[RM_SUM] = "sum", [RM_MEAN] = "mean", [RM_TREE] = "tree"};

const char *rm_kind_text(int kind) { return kind >= 0 && kind < RM_KINDS ? kinds[kind] : "an unknown collective"; }
const char *rm_wire_text(int wire) { return wire >= 0 && wire < RM_WIRES ? wires[wire] : "an unknown type"; }

const char *rm_reduction_text(int reduction) {
    return reduction >= 0 && reduction < RM_REDUCTIONS ? reductions[reduction] : "an unknown reduction";
}

static bool reduces(int kind) { return kind == RM_ALL_REDUCE || kind == RM_REDUCE_SCATTER; }

/* Fields that a kind does not read are set to 0, so that leftover values cannot differ. */
rm_fingerprint rm_fingerprint_of(uint64_t call, const rm_collective *what) {
    rm_fingerprint print = {.call = call, .kind = (uint8_t)what->kind, .tag = what->tag};
    if (what->kind == RM_BARRIER) return print;
    print.count = what->count;
    print.wire = (uint8_t)what->wire;
    if (reduces(what->kind)) print.reduction = (uint8_t)what->reduction;
    if (what->kind == RM_BROADCAST) print.root = (int16_t)what->root;
    return print;
}

static const char *tag_text(const rm_group_config *config, uint32_t tag, char *buffer, size_t bytes) {
    const char *name = config->tag_name ? config->tag_name(config->context, tag) : NULL;
    if (name) return name;
    snprintf(buffer, bytes, "tag %u", tag);
    return buffer;
}

const char *rm_fingerprint_text(const rm_group_config *config, const rm_fingerprint *print, char *buffer) {
    char tag[16], root[24] = "";
    const char *named = tag_text(config, print->tag, tag, sizeof tag);
    if (print->call == 0) return strcpy(buffer, "nothing yet");
    if (print->kind == RM_BROADCAST) snprintf(root, sizeof root, " from rank %d", print->root);
    const bool plain = !reduces(print->kind) || print->reduction == RM_SUM;
    if (print->kind == RM_BARRIER)
        snprintf(buffer, RM_FINGERPRINT_TEXT, "call %llu, barrier (%s)", (unsigned long long)print->call, named);
    else
        snprintf(buffer, RM_FINGERPRINT_TEXT, "call %llu, %s of %lld %s%s%s%s (%s)", (unsigned long long)print->call,
                 rm_kind_text(print->kind), (long long)print->count, rm_wire_text(print->wire), plain ? "" : ", ",
                 plain ? "" : rm_reduction_text(print->reduction), root, named);
    return buffer;
}

/* The most informative difference. The kind comes first, because the other fields mean little if kinds differ. */
static const char *difference(const rm_fingerprint *a, const rm_fingerprint *b) {
    if (a->call != b->call) return "call number";
    if (a->kind != b->kind) return "kind of collective";
    if (a->wire != b->wire) return "type";
    if (a->count != b->count) return "count";
    if (a->reduction != b->reduction) return "reduction";
    if (a->root != b->root) return "root";
    return "tag";
}

static remat_status disagree(const rm_fingerprints *all, int32_t other) {
    char here[RM_FINGERPRINT_TEXT], there[RM_FINGERPRINT_TEXT];
    const rm_fingerprint *a = all->at(all->context, 0), *b = all->at(all->context, other);
    const char *host_a = all->host ? all->host(all->context, 0) : NULL;
    const char *host_b = all->host ? all->host(all->context, other) : NULL;
    FAIL(PEER,
         "ranks 0 and %d disagree about the %s: rank 0%s%s issued %.150s; rank %d%s%s issued %.150s. Nothing was "
         "summed; every rank must issue the same collectives in the same order",
         other, difference(a, b), host_a ? " on " : "", host_a ? host_a : "", rm_fingerprint_text(all->config, a, here),
         other, host_b ? " on " : "", host_b ? host_b : "", rm_fingerprint_text(all->config, b, there));
}

remat_status rm_fingerprints_compare(const rm_fingerprints *all) {
    const rm_fingerprint *first = all->at(all->context, 0);
    for (int32_t r = 1; r < all->config->size; r++)
        if (!rm_fingerprint_equal(first, all->at(all->context, r))) return disagree(all, r);
    return REMAT_OK;
}
