/* condition.c: see condition.h. */
#include "train/flags/condition.h"

#include "dist/large_batch/learning_rate.h"
#include "memory/words.h"
#include "ops/optimizers/optimizer.h"
#include "train/file.h"
#include "train/models/loss.h"
#include "train/tasks/task.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const char *value, const char *other) { return !strcmp(value, other); }

/* Reads the word at *at of "a|b|c" and advances to the next; false at the end, and at a word with a sign. */
static bool next_word(const char **at, char word[32]) {
    size_t length = strcspn(*at, "|>=:");
    if (!length || ((*at)[length] && (*at)[length] != '|')) return false;
    snprintf(word, 32, "%.*s", (int)length, *at);
    *at += length + ((*at)[length] == '|');
    return true;
}

bool rm_condition_next(const char **at, rm_condition *c) {
    size_t length = strcspn(*at, ";"), plain = strcspn(*at, ";(");
    char word[32];
    *c = (rm_condition){.text = ""};
    if (!length) return false;
    if (plain < length) snprintf(c->why, sizeof c->why, "%.*s", (int)(length - plain - 2), *at + plain + 1);
    while (plain && (*at)[plain - 1] == ' ') plain--;
    snprintf(c->text, sizeof c->text, "%.*s", (int)plain, *at);
    c->line = rm_option_find(c->text, strcspn(c->text, ">=:|"));
    const char *last = c->text;
    while (next_word(&last, word)) continue;
    size_t name = strcspn(last, ">=:");
    c->sign = last[name];
    c->last = c->sign ? rm_option_find(last, name) : NULL;
    c->values = c->sign ? last + name + 1 : NULL;
    assert(c->line && (c->last || !c->sign));
    *at += length + strspn(*at + length, "; ");
    return true;
}

static bool is_among(const char *value, const char *words) {
    char word[32];
    while (next_word(&words, word))
        if (is(value, word)) return true;
    return false;
}

/* Whether the value turns something on: it is not "", 0, false or none. */
static bool is_set(const rm_options *o, const rm_option *line) {
    char text[RM_PATH_BYTES];
    return *rm_option_text(o, line, text, sizeof text) && !is_among(text, "0|false|none");
}

static bool task_reads(const char *name, const char *flag) { return rm_task_uses(rm_task_find(name), flag); }

static bool optimizer_reads(const char *name, const char *setting) {
    return rm_has_word(rm_optimizer_find(name)->settings, setting);
}

/* Whether this choice of the flag, such as "lars" of --optimizer, reads the setting or has the trait. */
static bool reads(const rm_option *line, const char *choice, const char *setting) {
    static const struct {
        const char *flag;
        bool (*reads)(const char *choice, const char *setting);
    } tables[] = {{"task", task_reads},
                  {"model", rm_model_is},
                  {"optimizer", optimizer_reads},
                  {"lr-schedule", rm_lr_schedule_reads},
                  {"loss", rm_loss_is}};
    int i = 0;
    while (!is(tables[i].flag, line->name)) i++;
    return tables[i].reads(choice, setting);
}

bool rm_condition_holds(const rm_options *o, const rm_condition *c) {
    char text[RM_PATH_BYTES], word[32];
    for (const char *at = c->text; next_word(&at, word);)
        if (is_set(o, rm_option_named(word))) return true;
    if (!c->sign) return false;
    rm_option_text(o, c->last, text, sizeof text);
    if (c->sign == '>') return strtod(text, NULL) > strtod(c->values, NULL);
    return c->sign == '=' ? is_among(text, c->values) : reads(c->last, text, c->values);
}

const rm_option *rm_condition_cause(const rm_options *o, const rm_condition *c) {
    char word[32];
    for (const char *at = c->text; next_word(&at, word);)
        if (is_set(o, rm_option_named(word))) return rm_option_named(word);
    return c->line;
}

/* ---- Words -------------------------------------------------------------------------------------------------------- */

/* Appends a term of "a, b or c". */
static void add(char *list, size_t bytes, const char *between, const char *term) {
    size_t n = strlen(list);
    snprintf(list + n, bytes - n, "%s%s", n ? between : "", term);
}

/* The choices that read the setting, "a|b|c"; or those that do not. */
static int list_readers(const rm_option *line, const char *setting, bool that_do, char *list, size_t bytes) {
    char word[32];
    int n = 0;
    *list = 0;
    for (const char *at = line->choices; next_word(&at, word);)
        if (reads(line, word, setting) == that_do) add(list, bytes, "|", word), n++;
    return n;
}

/* "a|b|c" with other separators. */
static const char *separated(const char *words, const char *before_last, char *list, size_t bytes) {
    char word[32];
    *list = 0;
    for (const char *at = words; next_word(&at, word);) add(list, bytes, *at ? ", " : before_last, word);
    return list;
}

void rm_condition_remedy(const rm_condition *c, char text[RM_REMEDY_BYTES]) {
    char names[200], list[200], term[240], word[32];
    *text = 0;
    for (const char *at = c->text; next_word(&at, word);) {
        const char *value = rm_option_named(word)->value;
        snprintf(term, sizeof term, "--%s%s%s", word, value ? "=" : "", value ? value : "");
        add(text, RM_REMEDY_BYTES, *at ? ", " : " or ", term);
    }
    if (!c->sign) return;
    if (c->sign == ':') list_readers(c->last, c->values, true, names, sizeof names);
    const char *values = separated(c->sign == ':' ? names : c->values, " or ", list, sizeof list);
    snprintf(term, sizeof term, c->sign == '>' ? "--%s above %s" : "--%s=%s", c->last->name, values);
    add(text, RM_REMEDY_BYTES, " or ", term);
}

const char *rm_condition_readers(const rm_option *line, char text[RM_READERS_BYTES]) {
    rm_condition c;
    size_t n = 0;
    *text = 0;
    for (const char *at = line->needs ? line->needs : ""; rm_condition_next(&at, &c);) {
        char names[200], list[200];
        if (c.sign != ':' || c.last != c.line || (is(c.last->name, "model") && !is(c.values, line->name))) continue;
        int with = list_readers(c.last, c.values, true, names, sizeof names);
        bool most = list_readers(c.last, c.values, false, list, sizeof list) < with;
        separated(most ? strcpy(names, list) : names, ", ", list, sizeof list);
        n += (size_t)snprintf(text + n, RM_READERS_BYTES - n, "; %sfor %s", most ? "not " : "", list);
    }
    return text;
}

void rm_option_now(const rm_options *o, const rm_option *line, char text[120]) {
    char value[RM_PATH_BYTES];
    rm_option_text(o, line, value, sizeof value);
    snprintf(text, 120, rm_option_is_switch(line) ? "--%s" : "--%s=%.60s", line->name, value);
}
