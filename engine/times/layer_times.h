/* layer_times.h: measured times of a network's layers, by which a pipeline is cut. Private to the session. */
#ifndef RM_LAYER_TIMES_H
#define RM_LAYER_TIMES_H

#include "engine/session/session.h"

struct rm_layer_times {
    const char *file; /* as remat_config.calibration */
    double *node_ns;  /* by node: forward and backward, in all tiles. Freed with rm_free; NULL: not measured yet */
};

/* Cuts the network wherever a pipeline may be cut, and times the stages' programs of each part, in memory for that part
 * alone, for RM_CALIBRATION_SECONDS together. Times that the file has are not measured again. The nodes of a part share
 * its time as their counted work is divided. The session must have no chain yet. MEMORY; DEVICE. */
remat_status rm_session_time_layers(remat_session *session, int32_t loss, const int32_t *keep, int n_keep,
                                    const rm_chain_config *config, rm_layer_times *times);

#endif
