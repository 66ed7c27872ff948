/* text.c: see text.h. */
#include "train/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/clock.h"

static const char *scaled(double value, double base, const char *const unit[], int units, char text[RM_TEXT]) {
    int i = 0;
    for (; value >= base * 0.9995 && i < units - 1; i++) value /= base;
    snprintf(text, RM_TEXT, i ? "%.1f%s" : "%.0f%s", value, unit[i]);
    return text;
}

const char *rm_bytes_text(uint64_t bytes, char text[RM_TEXT]) {
    static const char *const unit[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
    return scaled((double)bytes, 1024, unit, 6, text);
}

const char *rm_count_text(double count, char text[RM_TEXT]) {
    static const char *const unit[] = {"", " k", " M", " G", " T"};
    return scaled(count, 1000, unit, 5, text);
}

const char *rm_duration_text(double seconds, char text[RM_TEXT]) {
    if (!(seconds >= 0 && seconds < 1e9)) seconds = 0;
    long long s = (long long)(seconds + 0.5);
    if (s < 3600)
        snprintf(text, RM_TEXT, "%lld:%02lld", s / 60, s % 60);
    else
        snprintf(text, RM_TEXT, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return text;
}

remat_status rm_text_whole(const char *where, const char *value, int64_t low, int64_t high, int64_t *out) {
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    const char *digits = value + (*value == '-'); /* -1 is an integer, too, but too small */
    REQUIRE(*digits >= '0' && *digits <= '9' && !*end, INVALID, "%s=%.60s: is not a whole number", where, value);
    REQUIRE(!errno && number >= low && number <= high, INVALID, "%s=%.60s: must be from %lld to %lld", where, value,
            (long long)low, (long long)high);
    *out = number;
    return REMAT_OK;
}

bool rm_text_ends(const char *text, const char *with) {
    size_t length = strlen(text), n = strlen(with);
    return length > n && !strcmp(text + length - n, with);
}

const char *rm_shell_quote(const char *word, char *out, size_t bytes) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:=,+%@";
    if (*word && !word[strspn(word, plain)]) {
        snprintf(out, bytes, "%s", word);
        return out;
    }
    size_t n = 0;
    out[n++] = '\'';
    for (; *word && n + 6 <= bytes; word++) {
        bool quote = *word == '\'';
        n += (size_t)snprintf(out + n, bytes - n, "%.4s", quote ? "'\\''" : (char[]){*word, 0});
    }
    snprintf(out + n, bytes - n, "'");
    return out;
}

double rm_now_s(void) { return 1e-9 * (double)rm_now_ns(); }

/* Not getrusage: its ru_maxrss includes what the parent process had before it became this program. */
uint64_t rm_rss_peak_bytes(void) {
    char status[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, status, sizeof status - 1);
    close(fd);
    status[got > 0 ? got : 0] = 0;
    const char *line = strstr(status, "VmHWM:");
    return line ? strtoull(line + 6, NULL, 10) * 1024 : 0;
}
