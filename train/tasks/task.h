/* task.h: tasks by name: how a task opens its data, which flags it uses, how predictions are evaluated and written. A task is an
 * rm_task in a file of this folder and a line in tasks.def; no other code compares task names. The shape of the data determines
 * the loss (data/answers.def). */
#ifndef RM_TASK_H
#define RM_TASK_H

#include "train/data/dataset.h"

/* The output of `remat predict` for a sample, and of `remat sample` for a prompt. */
typedef enum { RM_ROW_NONE, RM_ROW_CLASSES, RM_ROW_OUTPUTS } rm_task_row;
typedef enum { RM_WRITES_NOTHING, RM_WRITES_TEXT, RM_WRITES_LINES } rm_task_writing;

typedef struct {
    const char *name;
    /* The task-specific flags that have an effect with this task: " data vocab ". */
    const char *flags;
    const rm_data_kind
        *kind; /* the data's kind; NULL: `open` opens the data. INVALID: wrong flags; IO: wrong file */
    remat_status (*open)(const rm_data_source *, rm_dataset **);
    /* The shape of the data if the flags determine it; NULL: they never do. */
    remat_status (*shape)(const rm_data_source *, rm_data_shape *);
    rm_task_row row;
    rm_task_writing writes;
    bool next_token; /* targets are the next tokens, so evaluations report perplexity */
    bool pairs;      /* sequence to sequence */
    bool images;     /* for image models */
} rm_task;

/* NULL: unknown. --task has been checked. */
const rm_task *rm_task_find(const char *name);
const rm_task *rm_task_of_images(void);
const rm_task *rm_task_of_pairs(void);

bool rm_task_uses(const rm_task *task, const char *flag);
/* Whether the task generates its data. */
bool rm_task_generates(const rm_task *task, const rm_data_source *source);

remat_status rm_task_open(const char *task, const rm_data_source *source, rm_dataset **out);
/* The shape of absent data, from the flags. INVALID: the flags do not determine it. */
remat_status rm_task_shape(const rm_task *task, const rm_data_source *source, rm_data_shape *out);
remat_status rm_task_needs_data(const rm_task *task);

#endif
