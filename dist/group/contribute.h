/* contribute.h: means over transports that only sum, shared by the engines mpi and gloo. */
#ifndef RM_SCALE_H
#define RM_SCALE_H

#include "dist/group/group.h"

/* to = this rank's contribution to the sum: `in`, or fl32(in * fl32(1/size)) for a mean. `to` may be `in`. */
void rm_contribute(const rm_collective *what, int32_t size, void *to);

#endif
