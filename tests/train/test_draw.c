/* test_draw.c: `sample` draws from a few classes: temperature, top-k and top-p work as in Hugging Face's generate(). */
#include "train/commands/draw.h"

#include "tests/train/train_test.h"

#include <math.h>

enum { CLASSES = 4, DRAWS = 1000 };
static const double probability[CLASSES] = {0.1, 0.4, 0.2, 0.3};

/* Counts how many of DRAWS evenly spaced uniform numbers give each class. */
static void count(const double *p, rm_draw_rule rule, int *times) {
    float logit[CLASSES];
    rm_draw_room room;
    ck_ok(rm_draw_room_create(CLASSES, &room));
    for (int i = 0; i < CLASSES; i++) logit[i] = (float)log(p[i]);
    memset(times, 0, CLASSES * sizeof *times);
    for (int i = 0; i < DRAWS; i++) times[rm_draw(logit, &rule, (i + 0.5) / DRAWS, &room)]++;
    rm_draw_room_free(&room);
}

/* The frequencies are the probabilities of the kept classes, scaled to sum 1. */
static const struct {
    rm_draw_rule rule;
    int times[CLASSES];
} cases[] = {
    {{1, 0, 1}, {100, 400, 200, 300}},
    {{0, 0, 1}, {0, 1000, 0, 0}},
    {{0.5, 0, 1}, {33, 534, 133, 300}}, /* squares: 1, 16, 4, 9 of 30 */
    {{1, 1, 1}, {0, 1000, 0, 0}},
    {{1, 2, 1}, {0, 571, 0, 429}},
    {{1, 3, 1}, {0, 444, 222, 334}},
    {{1, 4, 1}, {100, 400, 200, 300}},
    {{1, 9, 1}, {100, 400, 200, 300}},
    {{1, 0, 0.01}, {0, 1000, 0, 0}}, /* at least one class is kept */
    {{1, 0, 0.39}, {0, 1000, 0, 0}},
    {{1, 0, 0.41}, {0, 571, 0, 429}},
    {{1, 0, 0.71}, {0, 444, 222, 334}},
    {{1, 0, 0.89}, {0, 444, 222, 334}},
    {{1, 0, 0.91}, {100, 400, 200, 300}},
    {{1, 2, 0.5}, {0, 1000, 0, 0}}, /* of the two classes kept by top-k, the first has 4/7 */
    {{1, 2, 0.6}, {0, 571, 0, 429}},
    {{0.5, 0, 0.5}, {0, 1000, 0, 0}}, /* after the temperature the first has 16/30 */
};

START_TEST(frequencies_are_those_of_the_kept_classes) {
    int times[CLASSES];
    count(probability, cases[_i].rule, times);
    for (int i = 0; i < CLASSES; i++)
        ck_assert_msg(abs(times[i] - cases[_i].times[i]) <= 1, "case %d: class %d was drawn %d times, not %d", _i, i,
                      times[i], cases[_i].times[i]);
}
END_TEST

/* Hugging Face drops classes less likely than the k-th one; of equally likely classes, top-p keeps no more than it
 * needs. */
START_TEST(equally_likely_classes_are_kept_or_dropped) {
    static const double equal[CLASSES] = {0.2, 0.4, 0.2, 0.2};
    int times[CLASSES];
    count(equal, (rm_draw_rule){1, 2, 1}, times);
    ck_assert(times[0] == times[2] && times[2] == times[3] && times[0] == 200);
    count(equal, (rm_draw_rule){1, 0, 0.5}, times);
    ck_assert(abs(times[0] - 333) <= 1 && times[2] == 0 && times[3] == 0);
}
END_TEST

/* There are more tokens than bytes. */
START_TEST(most_likely_of_many_classes_are_kept) {
    enum { MANY = 5000, KEPT = 300 };
    static float logit[MANY];
    rm_draw_room room;
    int least = MANY, most = 0;
    ck_ok(rm_draw_room_create(MANY, &room));
    for (int i = 0; i < MANY; i++) logit[i] = (float)(i * 7 % MANY) * 1e-3f;
    for (int i = 0; i < DRAWS; i++) {
        int rank = rm_draw(logit, &(rm_draw_rule){1, KEPT, 1}, (i + 0.5) / DRAWS, &room) * 7 % MANY;
        least = rank < least ? rank : least;
        most = rank > most ? rank : most;
    }
    ck_assert_int_ge(least, MANY - KEPT);
    ck_assert_int_lt(least, MANY - KEPT + 10);
    ck_assert_int_ge(most, MANY - 10);
    rm_draw_room_free(&room);
}
END_TEST

START_TEST(nan_logits_draw_a_class) {
    float logit[CLASSES] = {NAN, NAN, NAN, NAN};
    rm_draw_room room;
    ck_ok(rm_draw_room_create(CLASSES, &room));
    int class = rm_draw(logit, &(rm_draw_rule){1, 2, 0.5}, 0.5, &room);
    ck_assert(class >= 0 && class < CLASSES);
    rm_draw_room_free(&room);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("draw");
    tcase_add_loop_test(tests, frequencies_are_those_of_the_kept_classes, 0, sizeof cases / sizeof *cases);
    tcase_add_test(tests, equally_likely_classes_are_kept_or_dropped);
    tcase_add_test(tests, most_likely_of_many_classes_are_kept);
    tcase_add_test(tests, nan_logits_draw_a_class);
    return run_suite("draw", tests);
}
