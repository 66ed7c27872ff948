/* options.c: where the value of a flag comes from, and which source wins: the defaults, a preset, a config file, the command line, a
 * training state. See options.h; options_check.c refuses flags that cannot be combined. */
#include "train/flags/options_table.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/flags/other_names.h"
#include "train/flags/presets.h"
#include "train/tasks/task.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- Names ------------------------------------------------------------------------------------------------------ */

/* The Levenshtein distance of names of at most 31 characters. */
static int distance(const char *a, size_t n, const char *b, size_t m) {
    int row[33];
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int gap = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = change < gap ? change : gap;
        }
    }
    return row[m];
}

static const char *nearest(const char *name, size_t length, int for_commands) {
    const char *best = NULL;
    int best_distance = 4;
    for (int i = 0; i < rm_n_options && length <= 31; i++) {
        int d = distance(name, length, rm_option_table[i].name, strlen(rm_option_table[i].name));
        if (d < best_distance && (rm_option_table[i].commands & for_commands) && d < (int)length) {
            best = rm_option_table[i].name;
            best_distance = d;
        }
    }
    return best;
}

/* Compares only the name; a value or words may follow it. */
static bool is_flag_of(const char *ours, int for_commands) {
    const rm_option *line = rm_option_find(ours, strcspn(ours, "=,"));
    return line && line->commands & for_commands;
}

static remat_status unknown(const char *before, const char *name, size_t length, int for_commands) {
    const char *other = rm_other_name(name, length, false);
    const char *near = other && is_flag_of(other, for_commands) ? other : nearest(name, length, for_commands);
    int shown = length < RM_OPTION_SHOWN ? (int)length : RM_OPTION_SHOWN;
    REQUIRE(
        !rm_is_of_launch(name, length), INVALID,
        "%s%.*s is a flag of remat launch, which starts ranks: put it after `remat launch`, and the command after `--`",
        before, shown, name);
    if (near) FAIL(INVALID, "%s%.*s is not a flag; did you mean --%s?", before, shown, name, near);
    FAIL(INVALID, "%s%.*s is not a flag; --help lists them", before, shown, name);
}

/* ---- The config file -------------------------------------------------------------------------------------------- */

/* Strips spaces from both ends; returns the new length. */
static size_t trim(const char **text, size_t length) {
    while (length && isspace((unsigned char)**text)) (*text)++, length--;
    while (length && isspace((unsigned char)(*text)[length - 1])) length--;
    return length;
}

/* The length without the comment. A comment starts at the start of the text or after a space: "book#2.txt" has none. */
static size_t without_comment(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (text[i] == '#' && (!i || isspace((unsigned char)text[i - 1]))) return i;
    return length;
}

/* Quotes preserve spaces and #; only a comment may follow the closing quote. */
static remat_status unquote(const char **text, size_t *length, const char *before) {
    const char *end = memchr(*text + 1, **text, *length - 1);
    REQUIRE(end, INVALID, "%sthe value starts with %c and has no closing quote: add it", before, **text);
    const char *rest = end + 1;
    size_t left = *length - (size_t)(rest - *text);
    left = trim(&rest, without_comment(rest, left));
    REQUIRE(!left, INVALID, "%sremove %.*s after the quoted value", before,
            left < RM_OPTION_SHOWN ? (int)left : RM_OPTION_SHOWN, rest);
    *length = (size_t)(end - ++*text);
    return REMAT_OK;
}

/* The value after the equals sign; `length` counts the sign. */
static remat_status find_value(const char *equals, size_t length, const char *before, const char **value,
                               size_t *value_length) {
    *value = equals + 1;
    *value_length = trim(value, length - 1);
    if (*value_length && (**value == '"' || **value == '\'')) return unquote(value, value_length, before);
    *value = equals + 1;
    *value_length = trim(value, without_comment(equals, length) - 1);
    return REMAT_OK;
}

static remat_status parse_line(rm_options *o, const char *text, size_t length, const char *before) {
    length = trim(&text, length);
    size_t plain = without_comment(text, length);
    if (!plain) return REMAT_OK;
    const char *equals = memchr(text, '=', plain);
    REQUIRE(equals, INVALID, "%swrite `name = value`", before);
    const char *name = text, *value;
    size_t name_length = trim(&name, (size_t)(equals - text)), value_length;
    TRY(find_value(equals, length - (size_t)(equals - text), before, &value, &value_length));
    if (name_length > 2 && !memcmp(name, "--", 2)) name += 2, name_length -= 2;
    const rm_option *line = rm_option_find(name, name_length);
    if (!line) return unknown(before, name, name_length, ~0);
    REQUIRE(strcmp(line->name, "config"), INVALID, "%sa config file cannot name another", before);
    REQUIRE(!o->given[line - rm_option_table], INVALID, "%s%s is set for the second time in this file: remove one",
            before, line->name);
    char *copy = rm_malloc(value_length + 1);
    REQUIRE(copy, MEMORY, "%sno memory for %zu bytes", before, value_length + 1);
    memcpy(copy, value, value_length);
    copy[value_length] = 0;
    remat_status status = rm_option_set(o, line, copy, (rm_option_place){before, " = "});
    rm_free(copy);
    return status;
}

remat_status rm_options_parse_config(rm_options *o, const char *text, size_t size, const char *file) {
    REQUIRE(!memchr(text, 0, size), INVALID, "%s is not a text file: it should hold `name = value` lines", file);
    int number = 1;
    size_t mark = size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* the byte order mark of some editors */
    for (size_t start = mark; start < size; number++) {
        char before[300];
        const char *end = memchr(text + start, '\n', size - start);
        size_t length = end ? (size_t)(end - text) - start : size - start;
        snprintf(before, sizeof before, "%.250s:%d: ", file, number);
        TRY(parse_line(o, text + start, length, before));
        start += length + 1;
    }
    return REMAT_OK;
}

static remat_status read_config(rm_options *o, const char *path) {
    uint8_t *text;
    size_t size;
    TRY(rm_file_read(path, 1 << 20, &text, &size));
    remat_status status = rm_options_parse_config(o, (const char *)text, size, path);
    rm_free(text);
    return status;
}

/* ---- The command line ------------------------------------------------------------------------------------------- */

/* `plan` takes every flag of `train`, so that a command line needs no change. Flags that do not affect the plan are checked
 * like the others. */
static bool takes(rm_command command, const rm_option *line) {
    return line->commands & (command == RM_PLAN ? RM_PLAN | RM_TRAIN : command);
}

/* One flag at argv[*i]; steps over its value when that is the next argument. */
static remat_status parse_flag(rm_options *o, rm_command command, int argc, char **argv, int *i) {
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const rm_option *line = rm_option_find(name, length);
    if (!line) return unknown("--", name, length, command);
    REQUIRE(takes(command, line), INVALID, "--%s is not a flag of `remat %s`; it belongs to `remat %s`", line->name,
            rm_option_command(command), rm_option_command(line->commands));
    const char *value = equals ? equals + 1 : NULL;
    if (!value) value = line->bare;
    if (!value && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2)) value = argv[++*i];
    REQUIRE(value, INVALID, "--%s needs a value: --%s=%s", line->name, line->name, line->value);
    return rm_option_set(o, line, value, (rm_option_place){"--", "="});
}

/* Such as mpirun's -np, and short flags of PyTorch's examples. */
static remat_status not_a_flag(const char *text, rm_command command) {
    size_t length = *text == '-' ? strcspn(text + 1, "=") : 0;
    if (rm_other_name(text + 1, length, false)) return unknown("-", text + 1, length, command);
    FAIL(INVALID, "'%.*s' is not a flag: flags are written --name=value", RM_OPTION_SHOWN, text);
}

static remat_status parse_arguments(rm_options *o, rm_command command, int argc, char **argv) {
    o->argument = argv; /* positional arguments are moved to the front */
    o->n_arguments = 0;
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            o->help = true;
        } else if (!strncmp(argv[i], "--", 2)) {
            TRY(parse_flag(o, command, argc, argv, &i));
        } else {
            if (command != RM_REPORT) return not_a_flag(argv[i], command);
            o->argument[o->n_arguments++] = argv[i];
        }
    }
    return REMAT_OK;
}

/* The last --config of the command line; everything else is ignored. */
static const char *find_config(int argc, char **argv) {
    const char *path = NULL;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "--config=", 9)) path = argv[i] + 9;
        if (!strcmp(argv[i], "--config") && i + 1 < argc) path = argv[i + 1];
    }
    return path;
}

remat_status rm_options_defaults(rm_options *o) {
    *o = (rm_options){.rate.lr = -1, .world_size = -1, .rank = -1, .local_rank = -1, .session = REMAT_CONFIG_INIT};
    for (int i = 0; i < rm_n_options; i++) {
        const rm_option *line = &rm_option_table[i];
        if (rm_option_is_text(line))
            *(const char **)rm_option_member(o, line) = NULL; /* the session's default is a constant */
        const char *begins = line->type == RM_OPTION_NO ? "false" : line->default_text;
        if (begins) TRY(rm_option_set(o, line, begins, (rm_option_place){"--", "="}));
    }
    memset(o->given, 0, sizeof o->given);
    return REMAT_OK;
}

/* The flag that excludes `name`: the one on the command line replaces the one that was saved or is in a config file. */
static const char *rival(const char *name) {
    static const char *const pairs[][2] = {
        {"steps", "epochs"}, {"checkpoint", "checkpoint-segments"}, {"warmup-steps", "warmup-epochs"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int j = 0; j < 2; j++)
            if (!strcmp(name, pairs[i][j])) return pairs[i][1 - j];
    return NULL;
}

/* Restores the default; rivals without a default are integers, where 0 means not given. */
static remat_status reset(rm_options *o, const rm_option *line) {
    if (line->default_text) return rm_option_set(o, line, line->default_text, (rm_option_place){"--", "="});
    *(int64_t *)rm_option_member(o, line) = 0;
    return REMAT_OK;
}

/* A flag on the command line replaces its rival in a config file: --epochs=1 replaces `steps = 4`. On entry o->given marks flags
 * on the command line; on return, flags from either. */
static remat_status command_line_wins(rm_options *o, const bool *in_file) {
    bool on_line[RM_MAX_FLAGS];
    memcpy(on_line, o->given, sizeof on_line);
    for (int i = 0; i < rm_n_options; i++) {
        if (!in_file[i] || on_line[i]) continue;
        o->in_file[i] = true;
        const char *other = rival(rm_option_table[i].name);
        bool replaced = other && on_line[rm_option_named(other) - rm_option_table];
        bool agrees =
            !strcmp(rm_option_table[i].name, "checkpoint-segments") && !strcmp(o->session.strategy, "segments");
        if (replaced && !agrees) TRY(reset(o, &rm_option_table[i]));
        o->given[i] = !replaced || agrees;
    }
    return REMAT_OK;
}

/* ---- A preset --------------------------------------------------------------------------------------------------- */

/* A preset sets flags that were not given and whose rivals were not given. `set_by_preset` marks them. */
static remat_status apply_preset(rm_options *o, bool *set_by_preset) {
    rm_preset preset;
    memset(set_by_preset, 0, RM_MAX_FLAGS * sizeof *set_by_preset);
    if (!o->preset || !strcmp(o->preset, "list")) return REMAT_OK;
    TRY(rm_preset_find(o->preset, &preset));
    for (int i = 0; i < RM_PRESET_VALUES; i++) {
        const rm_preset_value *value = &preset.value[i];
        const rm_option *line = rm_option_named(value->flag);
        const char *other = rival(value->flag);
        if (o->given[line - rm_option_table] || (other && rm_options_given(o, other))) continue;
        TRY(rm_option_set(o, line, value->value, (rm_option_place){"--", "="}));
        o->given[line - rm_option_table] = false;
        set_by_preset[line - rm_option_table] = true;
    }
    return REMAT_OK;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* Image models have one task. */
static remat_status follow_model(rm_options *o) {
    const rm_option *task = rm_option_named("task");
    if (!rm_model_is(o->model.name, "images") || o->given[task - rm_option_table]) return REMAT_OK;
    return rm_option_set(o, task, rm_task_of_images()->name, (rm_option_place){"--", "="});
}

remat_status rm_options_parse(rm_options *o, rm_command command, int argc, char **argv) {
    TRY(rm_options_defaults(o));
    const char *config = find_config(argc, argv);
    bool in_file[RM_MAX_FLAGS];
    if (config) TRY(read_config(o, config));
    memcpy(in_file, o->given, sizeof in_file);
    memset(o->given, 0, sizeof o->given);
    TRY(parse_arguments(o, command, argc, argv));
    TRY(command_line_wins(o, in_file));
    memcpy(o->said, o->given, sizeof o->said);
    bool set_by_preset[RM_MAX_FLAGS];
    TRY(apply_preset(o, set_by_preset));
    TRY(follow_model(o));
    if (!o->help) TRY(rm_options_check_said(o));
    bool named = rm_options_given(o, "model") && rm_options_given(o, "task");
    bool more = o->resume || (o->init && !named); /* flags follow from a file: setup.c, main.c, trainer.c */
    if (!o->help && !more) TRY(rm_options_check(o, command));
    for (int i = 0; i < rm_n_options; i++) o->given[i] |= set_by_preset[i];
    return REMAT_OK;
}

void rm_options_free(rm_options *o) {
    for (int i = 0; i < rm_n_options; i++) rm_option_clear(o, &rm_option_table[i]);
}

const char *rm_options_idle(const rm_options *o, rm_command command, char *list, size_t bytes) {
    size_t at = 0;
    *list = 0;
    for (int i = 0; i < rm_n_options && at < bytes; i++)
        if (o->in_file[i] && !takes(command, &rm_option_table[i]))
            at += (size_t)snprintf(list + at, bytes - at, "%s%s", at ? ", " : "", rm_option_table[i].name);
    return list;
}

/* ---- Reading the table ------------------------------------------------------------------------------------------ */

int rm_options_count(void) { return rm_n_options; }
const char *rm_options_name(int index) { return rm_option_table[index].name; }
rm_option_memory rm_options_memory(int index) { return rm_option_table[index].memory; }

bool rm_options_has_value(const rm_options *o, int index) {
    const rm_option *line = &rm_option_table[index];
    return o->given[index] || line->default_text || rm_option_is_switch(line);
}
bool rm_options_has_default(int index) { return rm_option_table[index].default_text != NULL; }

bool rm_options_given(const rm_options *o, const char *name) {
    return o->given[rm_option_named(name) - rm_option_table];
}

bool rm_options_said(const rm_options *o, const char *name) { return o->said[rm_option_named(name) - rm_option_table]; }

void rm_options_mark(rm_options *o, const char *name, bool given) {
    o->given[rm_option_named(name) - rm_option_table] = given;
}

const char *rm_options_text(const rm_options *o, int index, char *text, size_t bytes) {
    return rm_option_text(o, &rm_option_table[index], text, bytes);
}

const char *rm_options_text_of(const rm_options *o, const char *name, char *text, size_t bytes) {
    return rm_option_text(o, rm_option_named(name), text, bytes);
}

remat_status rm_options_reset(rm_options *o, const char *name) {
    const rm_option *line = rm_option_named(name);
    TRY(reset(o, line));
    o->given[line - rm_option_table] = false;
    return REMAT_OK;
}

/* Compares values, not spellings: 1e-3 equals 0.001. */
static remat_status must_agree(const rm_options *o, const rm_option *line, const char *saved, const char *what,
                               const char *source) {
    char now[RM_PATH_BYTES];
    rm_options_text(o, (int)(line - rm_option_table), now, sizeof now);
    bool same = line->type == RM_OPTION_REAL ? strtod(now, NULL) == strtod(saved, NULL) : !strcmp(now, saved);
    REQUIRE(same, INVALID,
            "--%s=%.60s does not agree with the %s in %s, which has %s=%.60s: remove the flag, or start a new run",
            line->name, now, what, source, line->name, saved);
    return REMAT_OK;
}

remat_status rm_options_adopt(rm_options *o, rm_command command, const char *name, const char *saved,
                              const char *source) {
    const rm_option *line = rm_option_find(name, strlen(name));
    REQUIRE(line && line->memory != RM_FORGOTTEN, IO, "%s has a flag that this version does not save: %.60s", source,
            name);
    bool training = command == RM_TRAIN;
    if (!(line->commands & command) || (line->memory == RM_REMEMBERED && !training)) return REMAT_OK;
    if (rival(name) && rm_options_given(o, rival(name))) return REMAT_OK;
    if (!o->given[line - rm_option_table]) return rm_option_set(o, line, saved, (rm_option_place){source, ": "});
    bool binding = line->memory == RM_OF_MODEL || (line->memory == RM_OF_RUN && training);
    return binding ? must_agree(o, line, saved, "training state", source) : REMAT_OK;
}

remat_status rm_options_learn(rm_options *o, const char *name, const char *value, const char *source) {
    const rm_option *line = rm_option_named(name);
    char before[RM_PATH_BYTES];
    snprintf(before, sizeof before, "%.500s: ", source);
    if (o->given[line - rm_option_table]) return must_agree(o, line, value, "model", source);
    return rm_option_set(o, line, value, (rm_option_place){before, " = "});
}
