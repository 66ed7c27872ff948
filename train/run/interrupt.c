/* interrupt.c: see interrupt.h. */
#include "train/run/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t caught, asked_to_save;
static volatile time_t caught_s, asked_s;

/* The first signal lets the current step finish and be saved; a second one ends the program. But Slurm signals every
 * process of a job step, and the launcher forwards the signal, so signals within about a second count as one. */
static void remember(int number) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (caught && now.tv_sec > caught_s + 1) {
        signal(number, SIG_DFL);
        raise(number);
    } else if (!caught) {
        caught_s = now.tv_sec;
        caught = number;
    }
}

static void remember_save(int number) {
    struct timespec now;
    (void)number;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (asked_s && now.tv_sec <= asked_s + 1) return; /* the same signal again */
    asked_s = now.tv_sec;
    asked_to_save = 1;
}

/* An ignored SIGHUP or SIGUSR1 stays ignored: nohup ignores SIGHUP for the program that it starts. */
static void catch_one(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    sigaction(number, NULL, &before);
    if (before.sa_handler != SIG_IGN || number == SIGINT || number == SIGTERM) sigaction(number, &action, NULL);
}

void rm_interrupt_catch_save(void) { catch_one(SIGUSR1, remember_save); }

static void deferred_signals(sigset_t *out) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigemptyset(out);
    for (int i = 0; i < 4; i++) sigaddset(out, numbers[i]);
}

void rm_interrupt_catch(void) {
    sigset_t deferred;
    catch_one(SIGINT, remember);
    catch_one(SIGTERM, remember);
    catch_one(SIGHUP, remember);
    deferred_signals(&deferred);
    pthread_sigmask(SIG_UNBLOCK, &deferred, NULL);
}

/* Sets the whole mask: the caller may be a thread that blocks all signals, and the next program inherits its mask. */
void rm_interrupt_defer(void) {
    sigset_t deferred;
    deferred_signals(&deferred);
    pthread_sigmask(SIG_SETMASK, &deferred, NULL);
    if (caught) kill(getpid(), caught);
    if (asked_to_save) kill(getpid(), SIGUSR1);
}

int rm_interrupt_caught(void) { return caught; }

bool rm_interrupt_take_save(void) {
    if (!asked_to_save) return false; /* clearing it here would lose a signal that arrives meanwhile */
    asked_to_save = 0;
    return true;
}
