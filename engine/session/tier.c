/* tier.c: the session's second tier. It is opened before planning, because its speed is part of the problem. After
 * planning, it gets room for the plan's copies, or is closed if the plan does not use it. device.h declares tiers;
 * transfer.c uses them.
 *
 * The speed is kept in the calibration file, if there is one, so that repeated runs plan with the same speed. */
#include <string.h>
#include <sys/stat.h>

#include "engine/times/calibration_cache.h"
#include "engine/hash.h"
#include "engine/session/parts.h"
#include "engine/session/planning.h"
#include "memory/processors.h"

enum { SAVE_GIB, LOAD_GIB, LATENCY, COST_GIB, FIGURES };
static const char *const figure_names[] = {"spilling 1 GiB out to", "fetching 1 GiB back from", "one transfer of",
                                           "processor time for 1 GiB of"};
#define GIB ((double)(1 << 30))

/* Device and inode number, since a directory keeps its name when its disk is replaced, and a disk its number when the
 * directory is created again. */
static uint64_t key_of(const remat_session *s, const char *directory, int figure) {
    struct stat about = {0};
    (void)stat(directory, &about); /* zeros for a tier in memory, which has no directory */
    uint64_t identity = s->api->identity ? s->api->identity(s->device) : 0;
    uint64_t place[] = {about.st_dev, about.st_ino, (uint64_t)figure + (identity & ~(uint64_t)15)};
    return rm_hash(place, sizeof place, rm_hash(s->api->name, strlen(s->api->name), 0));
}

/* Rounds measured figures in the same way as figures from the file, so that both give the same tier. If all
 * processors compute, copying takes time from one of them. Otherwise it costs almost nothing; a small cost makes
 * the planner prefer, among equally fast plans, the one that moves the fewest bytes. */
static rm_tier from_figures(const remat_session *s, const uint64_t *ns) {
    bool spare = s->threads < rm_processors_get()->usable;
    return (rm_tier){.save_bytes_per_s = (uint64_t)(GIB * 1e9 / (double)ns[SAVE_GIB]) + 1,
                     .load_bytes_per_s = (uint64_t)(GIB * 1e9 / (double)ns[LOAD_GIB]) + 1,
                     .latency_ns = ns[LATENCY],
                     .cost_ns_per_mib = spare ? 1000 : (ns[COST_GIB] >> 10) + 1000,
                     .host_bytes = s->api->tier_host_bytes};
}

static void to_figures(const rm_tier *tier, uint64_t *ns) {
    ns[SAVE_GIB] = (uint64_t)(GIB * 1e9 / (double)tier->save_bytes_per_s) + 1;
    ns[LOAD_GIB] = (uint64_t)(GIB * 1e9 / (double)tier->load_bytes_per_s) + 1;
    ns[LATENCY] = tier->latency_ns + 1;
    ns[COST_GIB] = (tier->cost_ns_per_mib << 10) + 1;
}

static bool find_figures(const remat_session *s, const rm_times *known, const char *directory, uint64_t *ns) {
    for (int i = 0; i < FIGURES; i++) {
        const rm_time_entry *entry = rm_times_find(known, key_of(s, directory, i));
        if (!entry) return false;
        ns[i] = entry->time_ns;
    }
    return true;
}

/* Training continues if the file cannot be written. */
static remat_status keep_figures(const remat_session *s, rm_times *known, const remat_config *config,
                                 const uint64_t *ns) {
    for (int i = 0; i < FIGURES; i++) {
        char note[RM_TIME_NOTE];
        snprintf(note, sizeof note, "%s %s", figure_names[i], config->spill_dir);
        TRY(rm_times_put(known, key_of(s, config->spill_dir, i), ns[i], note));
    }
    (void)rm_times_write(known, config->calibration);
    return REMAT_OK;
}

static remat_status find_speed(remat_session *s, const remat_config *config) {
    s->chain.problem.tier = rm_standard_tier(s->api->tier_host_bytes);
    if (rm_session_plans_by_standard(s, config)) return REMAT_OK;
    bool kept = config->calibration && *config->calibration && rm_session_is_real(s);
    rm_times known = {0};
    uint64_t ns[FIGURES];
    remat_status status = kept ? rm_times_read(&known, config->calibration) : REMAT_OK;
    bool found = !status && kept && find_figures(s, &known, config->spill_dir, ns);
    if (!status && !found) {
        rm_tier measured;
        status = s->api->tier_measure(s->runner.tier, &measured);
        if (!status) to_figures(&measured, ns);
        if (!status && kept) status = keep_figures(s, &known, config, ns);
    }
    if (!status) s->chain.problem.tier = from_figures(s, ns);
    rm_times_free(&known);
    return status;
}

remat_status rm_session_open_tier(remat_session *s, const remat_config *config) {
    if (!config->spill_dir || s->inference) return REMAT_OK;
    REQUIRE(s->api->tier_open, MISSING, "the device \"%s\" has no second tier to spill to", s->api->name);
    TRY(s->api->tier_open(s->device, config->spill_dir, &s->runner.tier));
    return find_speed(s, config);
}

remat_status rm_session_settle_tier(remat_session *s) {
    rm_second_tier *tier = s->runner.tier;
    if (tier && s->training.transfers.count && !s->plan_only)
        return s->api->tier_reserve(tier, (uint64_t)s->parts.n * rm_parts_room(s));
    if (tier) s->api->tier_close(tier);
    s->runner.tier = NULL;
    return REMAT_OK;
}
