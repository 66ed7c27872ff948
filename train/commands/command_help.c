/* command_help.c: `remat help --man` and `remat help --completion=bash|zsh`: the manual page and shell completions, generated from
 * the tables that --help prints. CMake runs both during the build. Main entry: rm_command_help. */
#include "train/commands/commands.h"
#include "train/file.h"
#include "train/flags/options_table.h"

#include <ctype.h>
#include <string.h>

/* A flag of options_table.c or of launch's table. */
typedef struct {
    const char *name, *value, *help; /* value NULL: a switch */
    const char *group;               /* the title above it, or NULL */
    bool bare;                       /* the value is optional */
    char about[RM_ABOUT_BYTES];      /* of options_table.c: with the default */
} flag;

/* Flag i of a command; name NULL: a flag of other commands only. False: past the end. */
static bool flag_at(rm_command command, int i, flag *out) {
    *out = (flag){0};
    if (!command) return rm_command_launch_flag(i, &out->name, &out->value, &out->help);
    if (i == rm_n_options) *out = (flag){.name = "help", .help = "print the flags"};
    if (i >= rm_n_options) return i == rm_n_options;
    const rm_option *line = &rm_option_table[i];
    if (line->commands & command)
        *out = (flag){.name = line->name,
                      .value = line->value,
                      .help = line->help,
                      .group = rm_option_group(line),
                      .bare = line->bare && !rm_option_is_switch(line)};
    (void)rm_option_about(line, out->about);
    return true;
}

/* Writes the words among a flag's values into `text`: "a b" for "N|a|b"; "": none. */
static const char *choices(const flag *f, char *text, size_t bytes) {
    size_t at = 0;
    *text = 0;
    for (const char *word = f->value ? f->value : ""; *word;) {
        size_t length = strcspn(word, "|");
        if (islower((unsigned char)*word) && at + length + 2 < bytes)
            at += (size_t)sprintf(text + at, "%s%.*s", at ? " " : "", (int)length, word);
        word += length + (word[length] == '|');
    }
    return strchr(f->value ? f->value : "", '|') ? text : "";
}

/* ---- The manual page ------------------------------------------------------------------------------------------------- */

/* Writes copyable minus signs and single spaces. */
static void put_roff(const char *text, FILE *out) {
    if (*text == '.' || *text == '\'') fputs("\\&", out);
    for (; *text; text++) {
        bool space = isspace((unsigned char)*text);
        if (space && isspace((unsigned char)text[1])) continue;
        if (space)
            fputc(' ', out);
        else if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else if (*text == '~')
            fputs("\\(ti", out);
        else
            fputc(*text, out);
    }
}

static void put_roff_flag(const flag *f, FILE *out) {
    fputs(".TP\n.B ", out);
    const char *parts[] = {
        "--", f->name, f->bare ? "[" : "", f->value ? "=" : "", f->value ? f->value : "", f->bare ? "]" : ""};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) put_roff(parts[i], out);
    fputc('\n', out);
    put_roff(*f->about ? f->about : f->help, out);
}

static void put_commands_of(int bits, const rm_command_line *commands, int n, FILE *out) {
    const char *before = " (";
    for (int i = 0; i < n; i++)
        if (commands[i].command & bits) fprintf(out, "%s%s", before, commands[i].name), before = ", ";
    fputs(")\n", out);
}

static void print_manual(const rm_command_line *commands, int n, FILE *out) {
    flag f;
    fprintf(
        out,
        ".\\\" Made by `remat help --man`.\n"
        ".TH REMAT 1 \"\" \"Remat " REMAT_VERSION "\" \"User Commands\"\n.ad l\n"
        ".SH NAME\nremat \\- train recurrent networks on very long sequences in a small, known number of bytes\n"
        ".SH SYNOPSIS\n.B remat\n.I COMMAND\n[\\fB\\-\\-\\fIflag\\fR=\\fIvalue\\fR ...]\n"
        ".SH DESCRIPTION\n"
        "Remat trains recurrent networks with exact back\\-propagation through sequences whose activations do not fit "
        "in "
        "memory. It plans which activations to keep and which to recompute, and reports the bytes that this takes "
        "before the first step.\n"
        ".SH COMMANDS\n");
    for (int i = 0; i < n; i++) {
        fprintf(out, ".TP\n.B remat %s\n", commands[i].name);
        put_roff(commands[i].doc, out);
        fputc('\n', out);
    }
    fputs(".SH OPTIONS\nEach option is followed by its default, in brackets, and the commands that accept it.\n", out);
    for (int i = 0; i < rm_n_options; i++) {
        flag_at((rm_command)rm_option_table[i].commands, i, &f);
        if (f.group) fputs(".SS ", out), put_roff(f.group, out), fputc('\n', out);
        put_roff_flag(&f, out);
        put_commands_of(rm_option_table[i].commands, commands, n, out);
    }
    fputs(".SH OPTIONS OF LAUNCH\nGive them before the command to start.\n", out);
    for (int i = 0; flag_at(0, i, &f); i++)
        if (f.help) put_roff_flag(&f, out), fputc('\n', out);
    fputs(".SH EXIT STATUS\n"
          "0: success. 1: failure. 2: the request is invalid, or this machine cannot fulfil it. 3: another rank "
          "failed. "
          "128 + n: stopped by signal n.\n"
          ".SH EXAMPLES\n.nf\n"
          "remat train \\-\\-data=book.txt \\-\\-checkpoint\\-segments=32\n"
          "remat train \\-\\-data=book.txt \\-\\-memory\\-budget=512MiB\n"
          "remat launch \\-\\-nproc\\-per\\-node=2 \\-\\- remat train \\-\\-data=book.txt\n.fi\n"
          ".SH SEE ALSO\nThe documents that are installed with Remat:\n.IR share/doc/remat .\n",
          out);
}

/* ---- Completion ------------------------------------------------------------------------------------------------------ */

static void print_bash(const rm_command_line *commands, int n, FILE *out) {
    flag f;
    char words[200];
    fputs("# Made by `remat help --completion=bash`.\n"
          "_remat() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} flag='' words=''\n"
          "    if [[ $word == = ]]; then\n        flag=$before word=''\n"
          "    elif [[ $before == = ]]; then\n        flag=${COMP_WORDS[COMP_CWORD - 2]}\n    fi\n"
          "    if ((COMP_CWORD == 1)); then\n        words='help",
          out);
    for (int i = 0; i < n; i++) fprintf(out, " %s", commands[i].name);
    fputs("'\n    elif [[ $flag ]]; then\n        case ${COMP_WORDS[1]},$flag in\n", out);
    for (int c = 0; c < n; c++)
        for (int i = 0; flag_at(commands[c].command, i, &f); i++)
            if (f.name && *choices(&f, words, sizeof words))
                fprintf(out, "        %s,--%s) words='%s' ;;\n", commands[c].name, f.name, words);
    fputs("        esac\n    else\n        case ${COMP_WORDS[1]} in\n", out);
    for (int c = 0; c < n; c++) {
        fprintf(out, "        %s) words='", commands[c].name);
        for (int i = 0, any = 0; flag_at(commands[c].command, i, &f); i++)
            if (f.name && f.help) any = fprintf(out, "%s--%s%s", any ? " " : "", f.name, f.value && !f.bare ? "=" : "");
        fputs("' ;;\n", out);
    }
    fputs("        esac\n    fi\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
          "    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace\n"
          "}\n"
          "complete -o default -F _remat remat\n",
          out);
}

/* Escapes text inside '...' and inside [...] of _arguments. */
static void put_zsh(const char *text, FILE *out) {
    for (; *text; text++) {
        if (isspace((unsigned char)*text) && isspace((unsigned char)text[1])) continue;
        if (strchr("[]:\\", *text)) fputc('\\', out);
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fputc(*text == '\n' ? ' ' : *text, out);
    }
}

static void print_zsh(const rm_command_line *commands, int n, FILE *out) {
    flag f;
    char words[200];
    fputs("#compdef remat\n# Made by `remat help --completion=zsh`.\nlocal -a commands\ncommands=(\n", out);
    for (int i = 0; i < n; i++)
        fprintf(out, "    '%s:", commands[i].name), put_zsh(commands[i].doc, out), fputs("'\n", out);
    fputs(")\nif ((CURRENT == 2)); then\n    _describe command commands\n    return\nfi\n"
          "shift words\n((CURRENT--))\ncase $words[1] in\n",
          out);
    for (int c = 0; c < n; c++) {
        fprintf(out, "%s)\n    _arguments \\\n", commands[c].name);
        for (int i = 0; flag_at(commands[c].command, i, &f); i++) {
            if (!f.name || !f.help) continue;
            fprintf(out, "        '--%s%s[", f.name, f.bare ? "=-" : f.value ? "=" : "");
            put_zsh(f.help, out);
            fputs("]", out);
            if (*choices(&f, words, sizeof words))
                fprintf(out, ":value:(%s)", words);
            else if (f.value)
                fprintf(out, "%s:value:%s", f.bare ? ":" : "",
                        !strcmp(f.value, "DIR")    ? "_files -/"
                        : !strcmp(f.value, "FILE") ? "_files"
                                                   : "");
            fputs("' \\\n", out);
        }
        fputs(commands[c].command ? "        '*:file:_files'\n    ;;\n" : "        '*::command:_normal'\n    ;;\n",
              out);
    }
    fputs("esac\n", out);
}

/* ---------------------------------------------------------------------------------------------------------------------- */

/* ---- The library's layers ----------------------------------------------------------------------------------------- */

/* remat_conv2d(x, w, [b], [stride[2]], ..): arguments in brackets may be left out. */
static void print_builders(FILE *out) {
    remat_builder b;
    for (int64_t i = 0; i < remat_builder_count() && !remat_builder_info(i, &b); i++) {
        fprintf(out, "%s(", b.name);
        for (int k = 0; k < b.n_arguments; k++) {
            const remat_argument *a = &b.arguments[k];
            fprintf(out, "%s%s%s", k ? ", " : "", a->optional ? "[" : "", a->name);
            if (a->length) fprintf(out, "[%d]", a->length);
            if (a->length_is) fprintf(out, "[%s]", a->length_is);
            fputs(a->optional ? "]" : "", out);
        }
        fputs(")\n", out);
    }
}

remat_status rm_command_help(const char *what, const rm_command_line *commands, int n) {
    if (!strcmp(what, "--man"))
        print_manual(commands, n, stdout);
    else if (!strcmp(what, "--completion=bash"))
        print_bash(commands, n, stdout);
    else if (!strcmp(what, "--completion=zsh"))
        print_zsh(commands, n, stdout);
    else if (!strcmp(what, "--builders"))
        print_builders(stdout);
    else
        FAIL(INVALID,
             "%.60s is not one of its flags, which are --man, --builders, --completion=bash and --completion=zsh",
             what);
    return rm_file_flush_output();
}
