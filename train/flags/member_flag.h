/* member_flag.h: the flag that sets a member of the library's structs, for the library's messages (rm_set_member_names). */
#ifndef RM_MEMBER_FLAG_H
#define RM_MEMBER_FLAG_H

/* "--clip-grad-norm" for "clip_grad_norm". */
const char *rm_flag_of_member(const char *member);

#endif
