/* plan_report.h: what a session's plan does to each stage, and what is alive at its peak, read from the checked plan itself,
 * so that what is told is what runs. describe.c makes texts of it. */
#ifndef RM_PLAN_REPORT_H
#define RM_PLAN_REPORT_H

#include "engine/session/session.h"

typedef struct {
    int32_t forward_runs;
    int8_t first, kept; /* the option of the first forward run, RM_DROP among them; and the one kept in the end */
    bool
        checkpoint; /* what the stage before hands on outlives a run that dropped, or follows one: a segment begins here */
    bool spilled, state_spilled; /* saved(s), and what the stage before hands on, are moved to the second tier */
    uint64_t saved_bytes;        /* of the option kept */
    uint64_t state_bytes;
} rm_stage_report;

/* One entry a stage, to be freed by rm_free; NULL when out of memory. */
rm_stage_report *rm_session_stage_reports(const remat_session *session);

/* The layer that a stage of a net without time runs, by the name of a parameter of it without its last part: "layer1.0.conv1" of
 * layer1.0.conv1.weight; of the first such from stage `first` on, or, `backwards`, back from it, not beyond `end`. Into `text`; "":
 * there is none. */
enum { RM_LAYER_TEXT = 48 };
const char *rm_session_layer(const remat_session *session, int64_t first, int64_t end, bool backwards,
                             char text[RM_LAYER_TEXT]);

/* Buffers of one kind and size that are alive at the peak. */
typedef struct {
    uint8_t kind; /* remat_live */
    int64_t count;
    int32_t first, last; /* stages */
    uint64_t bytes;      /* of each */
} rm_peak_group;

typedef struct {
    uint64_t bytes[REMAT_LIVE_KINDS];
    rm_peak_group *group; /* largest in all first */
    int64_t n_groups, capacity;
} rm_peak;

/* False when out of memory. To be freed by rm_peak_free. */
bool rm_session_peak(const remat_session *session, rm_peak *out);
void rm_peak_free(rm_peak *peak);

#endif
