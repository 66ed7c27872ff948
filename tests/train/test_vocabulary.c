/* test_vocabulary.c: --tokenizer=words, chars and a plain list: the numbers are those of PyTorch's word_language_model and of nanoGPT's
 * shakespeare_char; unknown words become <unk>, or are refused; training states keep the vocabulary, and `remat sample` writes text. */
#include "train/data/dataset.h"
#include "train/data/tokenizer.h"
#include "train/tasks/task.h"

#include "memory/host.h"
#include "tests/train/train_test.h"

static const char text[] = "the cat sat\non  the\tmat .\n\na cat\n";

/* The tokenizer of a flag's value and of a text. */
static rm_tokenizer *make(const char *tokenizer, const char *from) {
    rm_tokenizer *t;
    uint8_t *json;
    size_t size;
    ck_ok(rm_vocabulary_json(tokenizer, &(rm_vocabulary_texts){{from, NULL}, 0}, &json, &size));
    ck_ok(rm_tokenizer_parse((const char *)json, size, tokenizer, &t));
    rm_free(json);
    return t;
}

static void expect(const rm_tokenizer *t, const char *words, const char *numbers) {
    rm_tokens tokens = {0};
    char got[256] = "";
    ck_ok(rm_tokenizer_encode(t, (const uint8_t *)words, strlen(words), &tokens));
    for (int64_t i = 0; i < tokens.count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "", tokens.id[i]);
    ck_assert_str_eq(got, numbers);
    rm_free(tokens.id);
}

/* Corpus of pytorch/examples/word_language_model/data.py:
 * {'the': 0, 'cat': 1, 'sat': 2, '<eos>': 3, 'on': 4, 'mat': 5, '.': 6, 'a': 7} */
START_TEST(words_are_numbered_as_by_word_language_model) {
    rm_tokenizer *t = make("words", make_file("text", text, sizeof text - 1));
    ck_assert_int_eq(rm_tokenizer_vocabulary(t), 9); /* and <unk> */
    expect(t, text, "0 1 2 3 4 0 5 6 3 3 7 1 3");
    expect(t, "a dog\xc2\xa0sat", "7 8 2"); /* a no-break space is white space, as to Python's split */
    rm_tokenizer_free(t);
    t = make("words", make_file("own", "the <unk> sat\n", 14));
    ck_assert_int_eq(rm_tokenizer_vocabulary(t), 4);
    expect(t, "the dog\n", "0 1 3");
    rm_tokenizer_free(t);
}
END_TEST

/* sorted(list(set(data))) */
START_TEST(chars_are_numbered_by_code_point) {
    rm_tokenizer *t = make("chars", make_file("text", "b\xc3\xa9 a\nz\xe2\x82\xac", 10));
    rm_tokens none = {0};
    expect(t, "a\nb z\xc3\xa9\xe2\x82\xac", "2 0 3 1 4 5 6");
    ck_fails(rm_tokenizer_encode(t, (const uint8_t *)"\xc3\xa8", 2, &none), REMAT_INVALID, "\xc3\xa8|<unk>");
    rm_free(none.id);
    rm_tokenizer_free(t);
}
END_TEST

START_TEST(lists_number_their_lines) {
    rm_tokenizer *t = make(make_file("words", "<unk>\ncat\r\n<eos>\nthe", 20), NULL);
    expect(t, "the cat\nsat", "3 1 2 0");
    rm_tokenizer_free(t);
    t = make(make_file("chars", "b\na\n<unk>\n\\n\n", 13), NULL);
    expect(t, "ab\nc", "1 0 3 2");
    rm_tokenizer_free(t);
    t = make(make_file("plain", "cat\nthe\n", 8), NULL);
    expect(t, "the\ncat", "1 0"); /* without <eos> a line's end is white space */
    rm_tokenizer_free(t);
}
END_TEST

static const struct {
    const char *list, *sentence;
} wrong[] = {{"a cat\nb\n", "line 1|a cat|white space"},
             {"cat\ndog\ncat\n", "line 3|cat"},
             {"cat\n\ndog\n", "line 2"},
             {"\xff\nab\n", "UTF-8|token 1 of its vocabulary"},
             {"", "empty"}};

START_TEST(wrong_lists_are_refused) {
    uint8_t *json;
    size_t size;
    const char *list = make_file("list", wrong[_i].list, strlen(wrong[_i].list));
    ck_fails(rm_vocabulary_json(list, NULL, &json, &size), REMAT_INVALID, wrong[_i].sentence);
    ck_fails(rm_vocabulary_json("words", NULL, &json, &size), REMAT_INVALID, "--tokenizer=words|--tokenizer=FILE");
}
END_TEST

/* ---- The program ---- */

#define SMALL "--hidden=12 --layers=1 --seq-len=5 --batch=2 --threads=1 "

START_TEST(word_models_write_words) {
    const char *data = make_text("data", 2000), *st = in_scratch("st"),
               *held_out = make_file("held", text, sizeof text - 1);
    ck_runs("train --data=%s --tokenizer=words " SMALL "--stateful --lr=0.02 --steps=150 --save=%s --eval-data=%s",
            data, st, held_out);
    ck_says_all(program_output, "eval|perplexity|per token"); /* its words are unknown */
    ck_assert(!strstr(program_output, "bits per byte"));
    ck_runs("sample --resume=%s --prompt=the --temperature=0 --length=4", st);
    ck_assert_str_eq(program_output, "the quick brown fox jumps\n");
    ck_runs("sample --resume=%s --temperature=0 --length=1", st); /* after the end of a line */
    ck_assert(*program_output != ' ' && *program_output != '\n');
    ck_runs("eval --resume=%s --data=%s", st, held_out);
    ck_runs("train --resume=%s --tokenizer=words --steps=151", st);
    ck_refuses(2, "--tokenizer=chars", "train --resume=%s --tokenizer=chars --steps=152", st);
    ck_refuses(2, "--tokenizer=words|--tokenizer=FILE",
               "sample --init=%s/step-00000150/model.safetensors "
               "--tokenizer=words",
               st);
}
END_TEST

/* A split's words are those of the whole text. */
START_TEST(char_models_report_bits_per_byte) {
    const char *data = make_text("data", 2000);
    ck_runs("train --data=%s --tokenizer=chars " SMALL "--steps=2 --eval-split=0.5", data);
    ck_says_all(program_output, "eval|bits per byte");
    ck_refuses(2, "--tokenizer=FILE|<unk>|held", "train --data=%s --tokenizer=chars " SMALL "--steps=2 --eval-data=%s",
               make_file("few", "abcabcabcabcabc", 15), make_file("held", "abcdabcdabcd", 12));
}
END_TEST

/* A text begins after a newline, which these vocabularies lack. */
START_TEST(texts_of_one_line_need_a_prompt) {
    const char *data = make_file("few", "a b a b a b a b a b a b", 23), *st = in_scratch("st");
    const char *tokens[] = {"chars", make_file("list", "a\nbb\n<unk>\n", 11)};
    for (int i = 0; i < 2; i++) {
        ck_runs("train --data=%s --tokenizer=%s " SMALL "--seq-len=2 --steps=2 --save=%s%d", data, tokens[i], st, i);
        ck_refuses(2, "newline|--prompt=TEXT", "sample --resume=%s%d", st, i);
        ck_runs("sample --resume=%s%d --prompt=a", st, i);
    }
}
END_TEST

START_TEST(lines_are_translated_word_by_word) {
    const char source[] = "one two\ntwo one one\n", target[] = "eins zwei\nzwei eins eins\n";
    ck_runs("train --task=seq2seq --data=%s --labels=%s --tokenizer=words --hidden=16 --layers=1 --batch=2 --threads=1 "
            "--lr=0.02 --steps=120 --save=%s",
            make_file("s", source, sizeof source - 1), make_file("t", target, sizeof target - 1), in_scratch("st"));
    ck_runs("sample --resume=%s --prompt=two_one_one", in_scratch("st")); /* an unknown word */
    FILE *lines = fopen(in_scratch("lines"), "w");
    fputs("two one one\n", lines);
    fclose(lines);
    ck_assert(freopen(in_scratch("lines"), "r", stdin) != NULL);
    ck_runs("sample --resume=%s", in_scratch("st"));
    ck_assert_str_eq(program_output, "zwei eins eins\n");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("vocabulary");
    tcase_add_test(tests, words_are_numbered_as_by_word_language_model);
    tcase_add_test(tests, chars_are_numbered_by_code_point);
    tcase_add_test(tests, lists_number_their_lines);
    tcase_add_loop_test(tests, wrong_lists_are_refused, 0, sizeof wrong / sizeof *wrong);
    tcase_add_test(tests, word_models_write_words);
    tcase_add_test(tests, char_models_report_bits_per_byte);
    tcase_add_test(tests, texts_of_one_line_need_a_prompt);
    tcase_add_test(tests, lines_are_translated_word_by_word);
    return run_suite("train/vocabulary", tests);
}
