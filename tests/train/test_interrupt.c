/* test_interrupt.c: signals as requests: none is lost. */
#include "train/run/interrupt.h"

#include "tests/train/train_test.h"

#include <pthread.h>
#include <time.h>

/* Called only by the handler. This clock replaces the C library's, so that every signal seems to come long after the
 * one before. */
static volatile sig_atomic_t handled;
int clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){.tv_sec = 2 * ++handled};
    return 0;
}

enum { SIGNALS = 300 };
static volatile sig_atomic_t taken;

static void *send(void *reader) {
    for (int i = 1; i <= SIGNALS && taken >= i - 1; i++) {
        pthread_kill(*(pthread_t *)reader, SIGUSR1);
        for (int waited = 0; taken < i && waited < 1000000; waited++)
            if (waited > 995000) usleep(1000); /* five seconds on a busy machine */
    }
    pthread_kill(*(pthread_t *)reader, SIGTERM); /* ends the test */
    return NULL;
}

/* A request may come at any time, also during the check for requests. */
START_TEST(every_request_to_save_is_served) {
    pthread_t self = pthread_self(), sender;
    rm_interrupt_catch();
    rm_interrupt_catch_save();
    ck_assert_int_eq(pthread_create(&sender, NULL, send, &self), 0);
    while (!rm_interrupt_caught())
        if (rm_interrupt_take_save()) taken++;
    pthread_join(sender, NULL);
    ck_assert_int_eq(taken, SIGNALS);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("interrupt");
    tcase_add_test(tests, every_request_to_save_is_served);
    return run_suite("train/interrupt", tests);
}
