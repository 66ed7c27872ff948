/* progress.c: see progress.h. */
#include "train/report/progress.h"

#include "train/report/terminal.h"
#include "train/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void rm_progress_start(rm_progress *p, FILE *out, int64_t first, int64_t last, int64_t log_every) {
    int64_t twentieth = (last - first) / 20;
    *p = (rm_progress){.out = out, .terminal = out && rm_terminal_columns(out), .first = first, .last = last};
    p->every = log_every ? log_every : twentieth > 1 ? twentieth : 1;
    p->started_s = p->shown_s = rm_now_s();
}

static void erase_bar(rm_progress *p) {
    if (p->bar_shown) fputs("\r\033[K", p->out);
    p->bar_shown = false;
}

/* A closed pipe (`| head`) or a full disk does not end the run. */
static void flush(rm_progress *p) {
    if (!fflush(p->out) && !ferror(p->out)) return;
    p->out = NULL;
    rm_progress_warn(p, "cannot write the output: %s; the run goes on without it", strerror(errno));
}

void rm_progress_warn(rm_progress *p, const char *format, ...) {
    va_list arguments;
    if (p->out) erase_bar(p), flush(p);
    va_start(arguments, format);
    fputs("remat train: ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void rm_progress_say(rm_progress *p, const char *format, ...) {
    va_list arguments;
    if (!p->out) return;
    erase_bar(p);
    va_start(arguments, format);
    vfprintf(p->out, format, arguments);
    va_end(arguments);
    fputc('\n', p->out);
    flush(p);
}

static double left_s(const rm_progress *p, int64_t step) {
    double per_step = (rm_now_s() - p->started_s) / (double)(step - p->first);
    return per_step * (double)(p->last - step);
}

static void print_line(rm_progress *p, const rm_step_event *e) {
    char memory[RM_TEXT], speed[RM_TEXT], left[RM_TEXT], loss[80] = "", accuracy[24] = "";
    if (e->computed) snprintf(loss, sizeof loss, "  loss %.9g  grad norm %.4g", e->loss, e->grad_norm);
    if (e->accuracy >= 0) snprintf(accuracy, sizeof accuracy, "  accuracy %.1f %%", 100 * e->accuracy);
    fprintf(p->out, "step %6lld/%lld%s%s  %.1f ms  %s %s/s  memory %s  left %s\n", (long long)e->step,
            (long long)p->last, loss, accuracy, e->step_ms, rm_count_text(e->tokens_per_s, speed),
            e->unit ? e->unit : "tokens", rm_bytes_text(e->rss_peak_bytes, memory),
            rm_duration_text(left_s(p, e->step), left));
}

static void draw_bar(rm_progress *p, const rm_step_event *e) {
    char memory[RM_TEXT], speed[RM_TEXT], left[RM_TEXT], loss[64] = "", tail[200];
    if (e->computed) snprintf(loss, sizeof loss, "  loss %.5f", e->loss);
    int length = snprintf(tail, sizeof tail, " %lld/%lld%s  %s %s/s  %s  %s left", (long long)e->step,
                          (long long)p->last, loss, rm_count_text(e->tokens_per_s, speed), e->unit ? e->unit : "tok",
                          rm_bytes_text(e->rss_peak_bytes, memory), rm_duration_text(left_s(p, e->step), left));
    int room = rm_terminal_columns(p->out) - length - 3, width = room > 40 ? 40 : room;
    fputs("\r", p->out);
    if (width >= 5) {
        int full = (int)((double)width * (double)e->step / (double)p->last);
        fputc('[', p->out);
        for (int i = 0; i < width; i++) fputc(i < full ? '#' : '.', p->out);
        fputc(']', p->out);
    }
    fprintf(p->out, "%.*s\033[K", rm_terminal_columns(p->out) - (width >= 5 ? width + 3 : 1), tail);
    p->bar_shown = true;
}

void rm_progress_step(rm_progress *p, const rm_step_event *e) {
    double now = rm_now_s();
    bool last = e->step == p->last;
    if (!p->out) return;
    if (p->terminal) {
        if (now - p->shown_s < 0.1 && !last && p->bar_shown) return;
        draw_bar(p, e);
        if (last) fputc('\n', p->out);
        if (last) p->bar_shown = false;
    } else {
        bool due = e->step == p->first + 1 || e->step % p->every == 0 || last || now - p->shown_s > 30;
        if (!due) return;
        print_line(p, e);
    }
    flush(p);
    p->shown_s = now;
}
