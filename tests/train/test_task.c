/* test_task.c: the table of tasks: each is found by its name, its flags exist, and tasks with their own shapes can be
 * built. */
#include "train/flags/options_table.h"
#include "train/tasks/task.h"

#include <string.h>

#include "tests/train/train_test.h"

static const char *const names[] = {
#define TASK(name, help) #name,
#include "train/tasks/tasks.def"
#undef TASK
};
enum { TASKS = sizeof names / sizeof *names };

START_TEST(tasks_are_found_by_name) {
    const rm_task *task = rm_task_find(names[_i]);
    ck_assert(task && !strcmp(task->name, names[_i]) && !task->kind == !!task->open);
    ck_assert_ptr_null(rm_task_find("nothing"));
    ck_assert(rm_task_of_images()->images && rm_task_of_pairs()->pairs);
}
END_TEST

START_TEST(flags_of_tasks_exist) {
    const rm_task *task = rm_task_find(names[_i]);
    ck_assert(*task->flags == ' ' && task->flags[strlen(task->flags) - 1] == ' ');
    for (const char *at = task->flags + 1; *at; at += strcspn(at, " ") + 1)
        ck_assert_msg(rm_option_find(at, strcspn(at, " ")) != NULL, "%s: there is no flag %s", task->name, at);
    ck_assert(rm_task_uses(task, "data") || rm_task_uses(task, "samples"));
}
END_TEST

/* "labels" is no part of "eval-labels". */
START_TEST(flags_are_compared_as_whole_words) {
    const rm_task *regress = rm_task_find("regress"), *lm = rm_task_find("lm");
    ck_assert(rm_task_uses(regress, "loss") && !rm_task_uses(lm, "loss"));
    ck_assert(rm_task_uses(lm, "document-end") && !rm_task_uses(regress, "document-end"));
    ck_assert(!rm_task_uses(regress, "label") && !rm_task_uses(lm, "end"));
}
END_TEST

START_TEST(data_are_generated_or_read) {
    const rm_data_source none = {.generate = "none"}, sorted = {.generate = "sort"},
                         texts = {.generate = "sort", .data = "x"};
    ck_assert(rm_task_generates(rm_task_find("s5"), &none) && !rm_task_generates(rm_task_find("lm"), &none));
    const rm_task *pairs = rm_task_of_pairs();
    ck_assert(!rm_task_generates(pairs, &none) && rm_task_generates(pairs, &sorted));
    ck_assert(!rm_task_generates(pairs, &texts));
}
END_TEST

START_TEST(models_have_the_shape_of_the_data) {
    const rm_task *task = rm_task_find(names[_i]);
    const rm_data_source source = {.samples = 2, .generate = "none"};
    rm_data_shape shape;
    rm_dataset *data;
    if (!task->kind || !task->shape || !rm_task_uses(task, "samples")) return;
    ck_ok(rm_task_shape(task, &source, &shape));
    ck_ok(rm_task_open(task->name, &source, &data));
    ck_assert(!memcmp(&shape, &data->shape, sizeof shape));
    rm_dataset_close(data);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("task");
    tcase_add_loop_test(tests, tasks_are_found_by_name, 0, TASKS);
    tcase_add_loop_test(tests, flags_of_tasks_exist, 0, TASKS);
    tcase_add_test(tests, flags_are_compared_as_whole_words);
    tcase_add_test(tests, data_are_generated_or_read);
    tcase_add_loop_test(tests, models_have_the_shape_of_the_data, 0, TASKS);
    return run_suite("train/task", tests);
}
