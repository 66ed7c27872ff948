/* scan.h: remat_scan's nodes: each has an op of its own, made from its attributes (ops/scan/scan.h). */
#ifndef RM_ENGINE_SCAN_H
#define RM_ENGINE_SCAN_H

#include "engine/graph/graph.h"

/* The node, whose attr is an rm_scan, gets an op that is described by it. */
remat_status rm_node_own_op(rm_node *node);

#endif
