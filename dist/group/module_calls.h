/* module_calls.h: the functions that modules call in the library that opened them. In the library, each of these names
 * is the function itself; in a module, which includes this file last, it is an entry of the table that the module was
 * given. */
#ifndef RM_MODULE_CALLS_H
#define RM_MODULE_CALLS_H

#include "dist/group/agree.h"
#include "dist/group/contribute.h"
#include "dist/group/failure.h"
#include "dist/group/joining.h"
#include "dist/group/module.h"
#include "dist/group/scratch.h"
#include "dist/group/side_thread.h"
#include "dist/group/slices.h"
#include "dist/store/bootstrap.h"
#include "memory/host.h"

#define RM_MODULE_CALLS(X)                                                                                             \
    X(remat_last_error)                                                                                                \
    X(rm_agree)                                                                                                        \
    X(rm_failure_abort)                                                                                                \
    X(rm_failure_begin)                                                                                                \
    X(rm_failure_end)                                                                                                  \
    X(rm_failure_find)                                                                                                 \
    X(rm_failure_find_rank)                                                                                            \
    X(rm_failure_look)                                                                                                 \
    X(rm_failure_wait)                                                                                                 \
    X(rm_failure_waited)                                                                                               \
    X(rm_calloc)                                                                                                       \
    X(rm_collective_in_bytes)                                                                                          \
    X(rm_collective_out_bytes)                                                                                         \
    X(rm_contribute)                                                                                                   \
    X(rm_fail)                                                                                                         \
    X(rm_fail_in)                                                                                                      \
    X(rm_fingerprint_of)                                                                                               \
    X(rm_free)                                                                                                         \
    X(rm_bootstrap_join)                                                                                               \
    X(rm_bootstrap_serve)                                                                                              \
    X(rm_is_sliced)                                                                                                    \
    X(rm_joining_get)                                                                                                  \
    X(rm_joining_left_ms)                                                                                              \
    X(rm_joining_look)                                                                                                 \
    X(rm_joining_step)                                                                                                 \
    X(rm_kind_text)                                                                                                    \
    X(rm_kv_add)                                                                                                       \
    X(rm_kv_address)                                                                                                   \
    X(rm_kv_close)                                                                                                     \
    X(rm_kv_get)                                                                                                       \
    X(rm_kv_set)                                                                                                       \
    X(rm_malloc)                                                                                                       \
    X(rm_scratch_free)                                                                                                 \
    X(rm_scratch_take)                                                                                                 \
    X(rm_side_thread_doze)                                                                                             \
    X(rm_side_thread_end)                                                                                              \
    X(rm_side_thread_lock)                                                                                             \
    X(rm_side_thread_start)                                                                                            \
    X(rm_side_thread_unlock)                                                                                           \
    X(rm_slices_reduce)                                                                                                \
    X(rm_wire_bytes)

#define RM_MODULE_NAME(name) #name " "
#define RM_MODULE_NAMES RM_MODULE_CALLS(RM_MODULE_NAME)

struct rm_module_calls {
#define RM_MODULE_MEMBER(name) __typeof__(name) *name;
    RM_MODULE_CALLS(RM_MODULE_MEMBER)
#undef RM_MODULE_MEMBER
};

#ifdef RM_IS_MODULE
static const rm_module_calls *rm_calls;
#define remat_last_error (*rm_calls->remat_last_error)
#define rm_agree (*rm_calls->rm_agree)
#define rm_failure_abort (*rm_calls->rm_failure_abort)
#define rm_failure_begin (*rm_calls->rm_failure_begin)
#define rm_failure_end (*rm_calls->rm_failure_end)
#define rm_failure_find (*rm_calls->rm_failure_find)
#define rm_failure_find_rank (*rm_calls->rm_failure_find_rank)
#define rm_failure_look (*rm_calls->rm_failure_look)
#define rm_failure_wait (*rm_calls->rm_failure_wait)
#define rm_failure_waited (*rm_calls->rm_failure_waited)
#define rm_calloc (*rm_calls->rm_calloc)
#define rm_collective_in_bytes (*rm_calls->rm_collective_in_bytes)
#define rm_collective_out_bytes (*rm_calls->rm_collective_out_bytes)
#define rm_contribute (*rm_calls->rm_contribute)
#define rm_fail (*rm_calls->rm_fail)
#define rm_fail_in (*rm_calls->rm_fail_in)
#define rm_fingerprint_of (*rm_calls->rm_fingerprint_of)
#define rm_free (*rm_calls->rm_free)
#define rm_bootstrap_join (*rm_calls->rm_bootstrap_join)
#define rm_bootstrap_serve (*rm_calls->rm_bootstrap_serve)
#define rm_is_sliced (*rm_calls->rm_is_sliced)
#define rm_joining_get (*rm_calls->rm_joining_get)
#define rm_joining_left_ms (*rm_calls->rm_joining_left_ms)
#define rm_joining_look (*rm_calls->rm_joining_look)
#define rm_joining_step (*rm_calls->rm_joining_step)
#define rm_kind_text (*rm_calls->rm_kind_text)
#define rm_kv_add (*rm_calls->rm_kv_add)
#define rm_kv_address (*rm_calls->rm_kv_address)
#define rm_kv_close (*rm_calls->rm_kv_close)
#define rm_kv_get (*rm_calls->rm_kv_get)
#define rm_kv_set (*rm_calls->rm_kv_set)
#define rm_malloc (*rm_calls->rm_malloc)
#define rm_scratch_free (*rm_calls->rm_scratch_free)
#define rm_scratch_take (*rm_calls->rm_scratch_take)
#define rm_side_thread_doze (*rm_calls->rm_side_thread_doze)
#define rm_side_thread_end (*rm_calls->rm_side_thread_end)
#define rm_side_thread_lock (*rm_calls->rm_side_thread_lock)
#define rm_side_thread_start (*rm_calls->rm_side_thread_start)
#define rm_side_thread_unlock (*rm_calls->rm_side_thread_unlock)
#define rm_slices_reduce (*rm_calls->rm_slices_reduce)
#define rm_wire_bytes (*rm_calls->rm_wire_bytes)
#endif

#endif
