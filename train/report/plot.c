/* plot.c: checks file names, writes the common part of scripts, runs gnuplot and writes the chart. See plot.h. */
#include "train/report/plot.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { SVG, PNG, HTML, FORMATS };
static const char *const ending[FORMATS] = {".svg", ".png", ".html"};

static int format_of(const char *path) {
    size_t length = strlen(path);
    for (int i = 0; i < FORMATS; i++) {
        size_t n = strlen(ending[i]);
        if (length > n && !strcmp(path + length - n, ending[i])) return i;
    }
    return FORMATS;
}

/* ---- Before anything runs --------------------------------------------------------------------------------------- */

remat_status rm_plot_check(const char *path) {
    if (!path) return REMAT_OK;
    REQUIRE(format_of(path) < FORMATS, INVALID, "--plot=%.200s: give a file name that ends in .svg, .png or .html",
            path);
    REQUIRE(rm_path_has_program("gnuplot"), MISSING,
            "--plot needs gnuplot, which is not installed: install it (on Debian, apt-get install gnuplot-nox)");
    bool there = rm_path_exists(path);
    if (there && !rm_path_is_file(path) && !access(path, W_OK))
        return REMAT_OK; /* opening and closing a pipe would end its reader */
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    REQUIRE(fd >= 0, IO, "cannot create %s: %s: choose another path for --plot", path, strerror(errno));
    close(fd);
    if (!there) rm_file_remove(path);
    return REMAT_OK;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------ */

/* In double quotes, gnuplot runs `commands`, expands @macros, and ends the string at a line feed; in single quotes,
 * version 5.4 does not handle every doubled quote. So special characters are written as octal escapes. Unprintable
 * bytes become '?', because the terminals would write malformed files. */
const char *rm_plot_quote(const char *text, char *out, size_t bytes) {
    size_t n = 0;
    out[n++] = '"';
    for (const unsigned char *c = (const unsigned char *)text; *c && n + 6 < bytes; c++) {
        bool control = *c < ' ' || *c == 0x7f, plain = *c >= 0x80 || isalnum(*c) || strchr(" ,.:;=-+_/()%", *c);
        n += (size_t)snprintf(out + n, bytes - n, control ? "?" : plain ? "%c" : "\\%03o", *c);
    }
    snprintf(out + n, bytes - n, "\"");
    return rm_printable(out);
}

/* Writes numbers as users type them: 0.2, not 0.20000000000000001; 64MiB, not 67108864; 6e+13. */
static void shorten(const char *name, char *value, size_t bytes) {
    static const char *const unit[2][5] = {{"", "KiB", "MiB", "GiB", "TiB"}, {"", "KB", "MB", "GB", "TB"}};
    char *end;
    double number = strtod(value, &end);
    int u = 0, decimal = fmod(number, 1000) == 0 && fmod(number, 1024) != 0;
    if (*end || end == value) return;
    if (strchr(value, '.')) snprintf(value, bytes, "%.6g", number);
    if (!strstr(name, "memory") && strncmp(name, "assume", 6)) return;
    if (strstr(name, "memory"))
        for (; u < 4 && number >= (decimal ? 1000 : 1024); u++) number /= decimal ? 1000 : 1024;
    snprintf(value, bytes, "%.5g%s", number, unit[decimal][u]);
}

void rm_plot_flags(const rm_options *o, char *text, size_t bytes) {
    size_t n = 0;
    *text = 0;
    for (int i = 0; i < rm_options_count() && n + 1 < bytes; i++) {
        char value[RM_PATH_BYTES], word[128], quoted[4 * sizeof word + 3];
        bool device = !strcmp(rm_options_name(i), "device") || !strncmp(rm_options_name(i), "assume", 6);
        if (!o->given[i] || (rm_options_memory(i) == RM_FORGOTTEN && !device)) continue;
        rm_options_text(o, i, value, sizeof value);
        bool on = !strcmp(value, "true");
        shorten(rm_options_name(i), value, sizeof value);
        snprintf(word, sizeof word, "--%s%s%.60s", rm_options_name(i), on ? "" : "=", on ? "" : value);
        n += (size_t)snprintf(text + n, bytes - n, "%s%s", n ? " " : "", rm_shell_quote(word, quoted, sizeof quoted));
    }
    if (n + 1 >= bytes) strcpy(text + bytes - 4, "...");
    (void)rm_printable(text);
}

void rm_plot_row(rm_plot *plot, const char *name, const char *format, ...) {
    if (plot->n_rows == RM_PLOT_ROWS) return;
    va_list arguments;
    va_start(arguments, format);
    snprintf(plot->row[plot->n_rows].name, sizeof plot->row[0].name, "%s", name);
    vsnprintf(plot->row[plot->n_rows].value, sizeof plot->row[0].value, format, arguments);
    (void)rm_printable(plot->row[plot->n_rows++].value);
    va_end(arguments);
}

double rm_plot_bytes_unit(double most, const char **name) {
    static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double size = 1;
    int i = 0;
    for (; i < 4 && most >= 1024 * size; i++) size *= 1024;
    *name = unit[i];
    return size;
}

/* ---- The script ------------------------------------------------------------------------------------------------- */

static void in_directory(const rm_plot *plot, const char *name, char path[RM_PATH_BYTES]) {
    snprintf(path, RM_PATH_BYTES, "%s/%s", plot->directory, name);
}

static void remove_directory(const rm_plot *plot) {
    static const char *const names[] = {"script", "chart", "errors"};
    char path[RM_PATH_BYTES];
    for (int i = 0; i < 3; i++) {
        in_directory(plot, names[i], path);
        unlink(path);
    }
    rmdir(plot->directory);
}

/* Writes a line of text above the chart, left-aligned. */
static void write_line(const rm_plot *plot, int tag, double y, const char *font, const char *colour, const char *text) {
    char quoted[4 * sizeof plot->flags];
    fprintf(plot->script, "set label %d %s at screen 0.025,%.3f left noenhanced font '%s' textcolor rgb '%s'\n", tag,
            rm_plot_quote(text, quoted, sizeof quoted), y, font, colour);
}

/* Splits long flags into two lines. Returns the position of the next line. */
static double write_flags(const rm_plot *plot) {
    enum { LINE = 150 };
    char first[sizeof plot->flags];
    size_t length = strlen(plot->flags), cut = length;
    if (length > LINE)
        for (cut = LINE; cut > 0 && plot->flags[cut] != ' ';) cut--;
    if (!cut) cut = length;
    snprintf(first, sizeof first, "%.*s", (int)cut, plot->flags);
    write_line(plot, 102, 0.925, ",11", "#555555", first);
    if (cut == length) return 0.886;
    write_line(plot, 103, 0.896, ",11", "#555555", plot->flags + cut + 1);
    return 0.86;
}

static void write_head(const rm_plot *plot) {
    const char *font = "DejaVu Sans,Verdana,Helvetica,sans-serif";
    if (plot->format == PNG)
        fprintf(plot->script,
                "set terminal pngcairo size 1600,900 font 'DejaVu Sans,12' fontscale 1.15 linewidth 1.4\n");
    else
        fprintf(plot->script,
                "set terminal svg size 1280,720 dynamic font '%s,12' linewidth 1.2 background '#ffffff'\n", font);
    fprintf(plot->script, "set border 3 linecolor rgb '#888888'\nset tics nomirror out textcolor rgb '%s'\n",
            RM_PLOT_INK);
    fprintf(plot->script, "set grid y linecolor rgb '#dddddd' linewidth 0.8\nset style fill solid 1 noborder\n");
    fprintf(plot->script, "set tmargin at screen 0.82\nset lmargin at screen 0.075\nset rmargin at screen 0.965\n"
                          "set bmargin at screen 0.185\n");
    fprintf(plot->script,
            "set key at screen 0.52,0.03 center bottom horizontal Left reverse noenhanced samplen 2 font ',11' width "
            "-2 textcolor rgb '%s'\n",
            RM_PLOT_INK);
    write_line(plot, 101, 0.962, ",16", RM_PLOT_INK, plot->heading);
    double y = write_flags(plot);
    size_t length = strlen(plot->numbers); /* long lines get a smaller font */
    write_line(plot, 104, y, length < 150 ? ",11" : length < 170 ? ",10" : ",9", RM_PLOT_INK, plot->numbers);
}

remat_status rm_plot_begin(const char *path, rm_plot *plot) {
    char script[RM_PATH_BYTES];
    const char *temporary = getenv("TMPDIR");
    plot->path = path;
    plot->format = format_of(path);
    snprintf(plot->directory, sizeof plot->directory, "%.200s/remat_plot_XXXXXX", temporary ? temporary : "/tmp");
    REQUIRE(mkdtemp(plot->directory), IO, "cannot create %s: %s: set TMPDIR to another directory", plot->directory,
            strerror(errno));
    in_directory(plot, "script", script);
    plot->script = fopen(script, "we");
    if (!plot->script) {
        int error = errno;
        remove_directory(plot);
        FAIL(IO, "cannot create %s: %s", script, strerror(error));
    }
    write_head(plot);
    return REMAT_OK;
}

/* ---- Drawing ---------------------------------------------------------------------------------------------------- */

enum { MOST_SECONDS = 60 };

static volatile sig_atomic_t stopped_by;
static void remember(int signal) { stopped_by = signal; }

/* False: gnuplot was killed because it took too long or a signal arrived. */
static bool wait_for(pid_t child, int *status) {
    for (int i = 0; i < MOST_SECONDS * 200 && !stopped_by; i++) {
        pid_t found = waitpid(child, status, WNOHANG);
        if (found == child || (found < 0 && errno != EINTR)) return found == child;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    kill(child, SIGKILL);
    while (waitpid(child, status, 0) < 0 && errno == EINTR) continue;
    return false;
}

/* Reports gnuplot's error output, or how it ended if there is none. */
static remat_status say_reason(const rm_plot *plot, const char *errors, bool in_time, int status) {
    uint8_t *text = NULL;
    size_t size = 0;
    char ended[80];
    if (stopped_by)
        snprintf(ended, sizeof ended, "it was stopped by a signal");
    else if (!in_time)
        snprintf(ended, sizeof ended, "it did not finish in %d seconds", MOST_SECONDS);
    else if (WIFSIGNALED(status))
        snprintf(ended, sizeof ended, "signal %d ended it without a message", WTERMSIG(status));
    else
        snprintf(ended, sizeof ended, "it ended with status %d without a chart or a message", WEXITSTATUS(status));
    bool said = in_time && !rm_file_read(errors, 1 << 20, &text, &size) && size > 0;
    rm_fail(REMAT_INTERNAL, "gnuplot could not draw %s: %.300s", plot->path, said ? (char *)text : ended);
    rm_free(text);
    return REMAT_INTERNAL;
}

/* gnuplot uses its standard streams for script, chart and errors, because it runs some paths as commands. */
static remat_status run_gnuplot(const rm_plot *plot) {
    char script[RM_PATH_BYTES], chart[RM_PATH_BYTES], errors[RM_PATH_BYTES];
    in_directory(plot, "script", script);
    in_directory(plot, "chart", chart);
    in_directory(plot, "errors", errors);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, script, O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, chart, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    char *argument[] = {"gnuplot", "-d", NULL}; /* -d: ignore the user's settings */
    pid_t child;
    int error = posix_spawnp(&child, "gnuplot", &files, NULL, argument, environ), status = 0;
    posix_spawn_file_actions_destroy(&files);
    REQUIRE(!error, MISSING, "cannot run gnuplot: %s", strerror(error));
    bool in_time = wait_for(child, &status);
    struct stat drawn;
    if (in_time && WIFEXITED(status) && !WEXITSTATUS(status) && !stat(chart, &drawn) && drawn.st_size) return REMAT_OK;
    return say_reason(plot, errors, in_time, status);
}

static void write_escaped(FILE *out, const char *text) {
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(out, "&#%d;", *text);
        else
            fputc(*text, out);
}

/* Writes the drawing without its XML header, and the table below it. */
static void write_page(FILE *out, const rm_plot *plot, const char *svg) {
    const char *drawing = strstr(svg, "<svg");
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", out);
    write_escaped(out, plot->heading);
    fputs("</title>\n<style>body{font:15px/1.5 'DejaVu Sans',Verdana,sans-serif;color:#222;max-width:1280px;margin:2em "
          "auto;"
          "padding:0 1em}svg{width:100%;height:auto}table{border-collapse:collapse;margin:1em 0}"
          "td{padding:.2em 1.2em .2em 0;border-bottom:1px solid #e4e4e4}td+td{text-align:right;"
          "font-variant-numeric:tabular-nums}code{color:#555}</style></head>\n<body>\n",
          out);
    fputs(drawing ? drawing : svg, out);
    fputs("\n<p><code>", out);
    write_escaped(out, plot->flags);
    fputs("</code></p>\n<table>\n", out);
    for (int i = 0; i < plot->n_rows; i++) {
        fputs("<tr><td>", out);
        write_escaped(out, plot->row[i].name);
        fputs("</td><td>", out);
        write_escaped(out, plot->row[i].value);
        fputs("</td></tr>\n", out);
    }
    fputs("</table>\n</body></html>\n", out);
}

static remat_status write_file(const rm_plot *plot, const void *data, size_t size) {
    rm_file_writer writer;
    TRY(rm_file_replace(plot->path, &writer));
    remat_status status = rm_file_write(&writer, data, size);
    if (!status) status = rm_file_finish(&writer);
    rm_file_abandon(&writer);
    return status;
}

static remat_status deliver(const rm_plot *plot) {
    char chart[RM_PATH_BYTES], *page = NULL;
    uint8_t *drawn;
    size_t size, page_size = 0;
    in_directory(plot, "chart", chart);
    TRY(rm_file_read(chart, 1 << 30, &drawn, &size));
    bool html = plot->format == HTML;
    FILE *out = html ? open_memstream(&page, &page_size) : NULL;
    if (out) write_page(out, plot, (char *)drawn);
    bool bad = html && (!out || fclose(out) || !page);
    remat_status status = bad ? rm_fail(REMAT_MEMORY, "no memory for %s", plot->path) : REMAT_OK;
    if (!status) status = write_file(plot, page ? page : (char *)drawn, page ? page_size : size);
    rm_free(drawn);
    free(page);
    return status;
}

/* A signal during the run of gnuplot kills it and removes the directory; then the signal is raised again with its old
 * handler. */
static remat_status run_interruptibly(const rm_plot *plot) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before[3], action = {.sa_handler = remember};
    sigemptyset(&action.sa_mask);
    stopped_by = 0;
    for (int i = 0; i < 3; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(signals[i], &action, NULL);
    }
    remat_status status = run_gnuplot(plot);
    if (!status && !stopped_by) status = deliver(plot);
    remove_directory(plot);
    for (int i = 0; i < 3; i++) sigaction(signals[i], &before[i], NULL);
    if (stopped_by) raise(stopped_by);
    return status;
}

remat_status rm_plot_finish(rm_plot *plot) {
    bool bad = ferror(plot->script);
    bad = fclose(plot->script) || bad;
    plot->script = NULL;
    if (!bad) return run_interruptibly(plot);
    remove_directory(plot);
    FAIL(IO, "cannot write to %s: free some space, or set TMPDIR", plot->directory);
}
