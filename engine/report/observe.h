/* observe.h: how sessions, groups and the program report an event to an observer (engine/remat/observe.h), if there is
 * one: an observer without `event` costs a comparison.
 *
 *     uint64_t begin_ns = rm_observe(&observer);
 *     ...
 *     rm_observed(&observer, begin_ns, (remat_event){.kind = REMAT_EVENT_FORWARD, .number = stage}); */
#ifndef RM_OBSERVE_H
#define RM_OBSERVE_H

#include "engine/remat.h"
#include "memory/clock.h"

static inline uint64_t rm_observe(const remat_observer *observer) { return observer->event ? rm_now_ns() : 0; }

static inline void rm_observed(const remat_observer *observer, uint64_t begin_ns, remat_event event) {
    if (!observer->event) return;
    event.begin_ns = begin_ns;
    event.end_ns = rm_now_ns();
    observer->event(observer->context, &event);
}

/* A copy of a program's observer, which may be NULL; then nothing is observed. INVALID as rm_take. */
remat_status rm_take_observer(const remat_observer *from, remat_observer *out);

#endif
