/* plan_report.h: what a session's plan does with each stage, and which buffers are alive at its peak. It is read from the checked plan,
 * so the report is what runs. describe.c prints it. */
#ifndef RM_PLAN_REPORT_H
#define RM_PLAN_REPORT_H

#include "engine/session/session.h"

typedef struct {
    int32_t forward_runs;
    int8_t first, kept; /* the option of the first forward run, RM_DROP included; the option kept last */
    bool
        checkpoint; /* the state from the stage before outlives a run without keeping, or follows one: a segment starts here */
    bool spilled, state_spilled; /* the saved block, or the state from the stage before, moves to the second tier */
    uint64_t saved_bytes;        /* in the option kept */
    uint64_t state_bytes;
} rm_stage_report;

/* One entry for each stage; free with rm_free. NULL: out of memory. */
rm_stage_report *rm_session_stage_reports(const remat_session *session);

/* Writes the name of the layer that a stage of a net without time runs into `text`: the name of one of its parameters without the last
 * part ("layer1.0.conv1" for layer1.0.conv1.weight). It takes the first stage with parameters from `first` on, or back from it if
 * `backwards`, not past `end`. "": no such stage. */
enum { RM_LAYER_TEXT = 48 };
const char *rm_session_layer(const remat_session *session, int64_t first, int64_t end, bool backwards,
                             char text[RM_LAYER_TEXT]);

/* The same name for a node of the session's graph; "": it reads no parameter. */
const char *rm_node_layer(const remat_session *session, const rm_node *node, char text[RM_LAYER_TEXT]);

/* Buffers of one kind and size that are alive at the peak */
typedef struct {
    uint8_t kind; /* remat_live */
    int64_t count;
    int32_t first, last; /* stages */
    uint64_t bytes;      /* each */
} rm_peak_group;

typedef struct {
    uint64_t bytes[REMAT_LIVE_KINDS];
    rm_peak_group *group; /* largest total first */
    int64_t n_groups, capacity;
} rm_peak;

/* False: out of memory. Free with rm_peak_free. */
bool rm_session_peak(const remat_session *session, rm_peak *out);
void rm_peak_free(rm_peak *peak);

#endif
