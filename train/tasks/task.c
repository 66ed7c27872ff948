/* task.c: see task.h. */
#include "train/tasks/task.h"

#include <string.h>

#include "memory/words.h"

#define TASK(name, help) extern const rm_task rm_task_##name;
#include "train/tasks/tasks.def"
#undef TASK

static const rm_task *const tasks[] = {
#define TASK(name, help) &rm_task_##name,
#include "train/tasks/tasks.def"
#undef TASK
};
enum { TASKS = sizeof tasks / sizeof *tasks };

const rm_task *rm_task_find(const char *name) {
    for (int i = 0; i < TASKS; i++)
        if (!strcmp(tasks[i]->name, name)) return tasks[i];
    return NULL;
}

const rm_task *rm_task_of_images(void) {
    int i = 0;
    while (!tasks[i]->images) i++;
    return tasks[i];
}

const rm_task *rm_task_of_pairs(void) {
    int i = 0;
    while (!tasks[i]->pairs) i++;
    return tasks[i];
}

bool rm_task_uses(const rm_task *task, const char *flag) { return rm_has_word(task->flags, flag); }

bool rm_task_generates(const rm_task *task, const rm_data_source *source) {
    bool asked = !source->data && source->generate && strcmp(source->generate, "none");
    return rm_task_uses(task, "samples") && (asked || !rm_task_uses(task, "data"));
}

remat_status rm_task_open(const char *name, const rm_data_source *source, rm_dataset **out) {
    const rm_task *task = rm_task_find(name);
    *out = NULL;
    REQUIRE(task, INVALID, "there is no task '%s': `remat help train` lists them", name);
    return task->kind ? rm_data_open(task->kind, source, out) : task->open(source, out);
}

remat_status rm_task_needs_data(const rm_task *task) {
    FAIL(INVALID, "--task=%s needs --data=FILE and --labels=FILE", task->name);
}

remat_status rm_task_shape(const rm_task *task, const rm_data_source *source, rm_data_shape *out) {
    return task->shape ? task->shape(source, out) : rm_task_needs_data(task);
}
