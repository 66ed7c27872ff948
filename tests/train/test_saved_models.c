/* test_saved_models.c: every kind of model is saved and resumed, and --init recognises it by its weights. */
#include "tests/train/train_test.h"

#define SMALL "--hidden=8 --layers=1 --seq-len=16 --batch=2 --threads=1 "

START_TEST(bidirectional_models_are_saved_and_resumed) {
    const char *st = in_scratch("st"),
               *line = "--task=adding --seq-len=60 --hidden=6 --layers=2 --batch=4 --samples=16 --seed=3";
    ck_runs("train %s --bidirectional --checkpoint=sqrt --tile=16 --steps=2 --save=%s", line, st);
    ck_runs("train --resume=%s --steps=3", st);
    ck_runs("eval --resume=%s", st);
    ck_refuses(2, "--bidirectional=false", "train --resume=%s --steps=4 --bidirectional=false", st);
    ck_runs("plan %s --bidirectional --init=%s/step-00000002/model.safetensors", line, st);
    ck_runs("plan %s --init=%s/step-00000002/model.safetensors", line, st); /* the file implies the flag */
    ck_refuses(2, "--bidirectional", "plan --bidirectional");
}
END_TEST

static int cmp_files(const char *a, const char *b) {
    char command[700];
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", a, b);
    return system(command);
}

START_TEST(a_projected_lstm_is_saved_and_resumed) {
    const char *text = make_text("text", 4096), *st = in_scratch("st"), *straight = in_scratch("straight");
    const char *again = in_scratch("again");
    const char *line = "train --data=%s " SMALL "--proj-size=3 --stateful --checkpoint=sqrt --tile=8 --seed=3 ";
    char command[500], init[320], a[300], b[300];
    snprintf(command, sizeof command, "%s%s", line, "--steps=4 --save=%s");
    ck_runs(command, text, straight);
    snprintf(command, sizeof command, "%s%s", line, "--steps=2 --save=%s");
    ck_runs(command, text, st);
    ck_refuses(2, "--proj-size=4", "train --resume=%s --steps=4 --proj-size=4", st);
    ck_runs("train --resume=%s --steps=4", st);
    snprintf(a, sizeof a, "%s/step-00000004/model.safetensors", st);
    snprintf(b, sizeof b, "%s/step-00000004/model.safetensors", straight);
    ck_assert_msg(!cmp_files(a, b), "%s is not %s", a, b);
    ck_runs("sample --resume=%s --length=8", st);
    snprintf(init, sizeof init, "--init=%s", a);
    ck_runs("train --data=%s " SMALL "%s --steps=1 --save=%s", text, init, again); /* the file implies the flag */
    ck_refuses(2, "--proj-size=0|model", "plan --proj-size=0 %s", init);
    ck_refuses(2, "--proj-size=6|--hidden=6", "plan --hidden=6 --proj-size=6");
    ck_refuses(2, "--proj-size|--model=gru", "plan --model=gru --proj-size=6");
}
END_TEST

/* The training state contains the flag, and a file of weights implies it. */
START_TEST(a_model_without_biases_is_saved_and_resumed) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --data=%s " SMALL "--no-bias --steps=2 --save=%s", text, st);
    ck_runs("train --resume=%s --steps=3", st);
    ck_runs("sample --resume=%s --length=8", st);
    const char *line = "eval --data=%s --init=%s/step-00000002/model.safetensors " SMALL "%s";
    ck_runs(line, text, st, "--no-bias");
    ck_runs(line, text, st, "");
    ck_refuses(2, "--no-bias=false", "train --resume=%s --steps=4 --no-bias=false", st);
    char init[300];
    snprintf(init, sizeof init, "--init=%s/step-00000002/model.safetensors", st);
    ck_refuses(2, "--no-bias=false|model", "plan %s --no-bias=false", init);
}
END_TEST

START_TEST(weights_identify_their_model) {
    const char *text = make_text("text", 4096), *data = "--seq-len=16 --batch=2 --threads=1 --steps=1";
    char init[300];
    snprintf(init, sizeof init, "--init=%s/st/step-00000001/model.safetensors", scratch());
    ck_runs("train --data=%s %s --model=gru --layers=1 --hidden=8 --embed=5 --save=%s", text, data, in_scratch("st"));
    ck_runs("train --data=%s %s %s", text, data, init);
    ck_says_all(program_output, "gru, 1 x 8: ");
    ck_runs("train --data=%s %s %s --hidden=8", text, data, init);
    ck_refuses(2, "--hidden=9|model", "train --data=%s %s %s --hidden=9", text, data, init);
    ck_refuses(2, "embed=5", "plan %s --embed=8", init);
    ck_runs("plan %s", init);
    ck_runs("eval --data=%s --seq-len=16 --batch=2 %s", text, init);
    ck_runs("sample --length=3 %s", init);
    ck_refuses(2, "rnn.weight_ih_l0", "train --task=adding %s", init);
    ck_refuses(1, "torch.save|Python", "train --data=%s --init=%s", text, make_file("m.pt", "PK\3\4\0\0\x8\x8\0", 9));
    ck_refuses(1, "numpy.load(", "train --data=%s --init=%s", text,
               make_file("m.npz", "PK\3\4\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0w.npyxxx", 38));
    ck_refuses(1, "pickle", "train --data=%s --init=%s", text, make_file("m.pkl", "\x80\4\x95\x90\11\0\0\0\0", 9));
}
END_TEST

/* rnn and rnn_relu have the same arrays. */
START_TEST(given_model_is_preferred_to_another_with_its_arrays) {
    const char *text = make_text("text", 4096), *data = "--seq-len=16 --batch=2 --threads=1 --steps=1";
    char init[300];
    snprintf(init, sizeof init, "--init=%s/st/step-00000001/model.safetensors", scratch());
    ck_runs("train --data=%s %s --model=rnn_relu --layers=1 --hidden=8 --save=%s", text, data, in_scratch("st"));
    ck_runs("train --data=%s %s %s", text, data, init);
    ck_says_all(program_output, "rnn, 1 x 8: ");
    ck_runs("train --data=%s %s %s --model=rnn_relu", text, data, init);
    ck_says_all(program_output, "rnn_relu, 1 x 8: ");
    ck_refuses(2, "--model=gru|rnn", "train --data=%s %s %s --model=gru", text, data, init);
}
END_TEST

/* Weights of image models also identify the model, its task and its sizes. */
static const char *const image_models[][2] = {{"mlp", "--layers=3 --hidden=5"},
                                              {"cnn", ""},
                                              {"resnet18", "--stem=cifar"},
                                              {"unet", "--layers=2 --hidden=2"},
                                              {"unet", "--layers=2 --hidden=3 --up=transposed"}};

START_TEST(weights_identify_their_image_model) {
    static uint8_t numbers[4 * 3 * 8 * 8];
    for (size_t i = 0; i < sizeof numbers; i++) numbers[i] = (uint8_t)(i % 3);
    const char *model = image_models[_i][0];
    bool pixels = !strcmp(model, "unet");
    const char *x = make_npy("x.npy", "|u1", "(4, 3, 8, 8)", numbers, sizeof numbers),
               *y = make_npy("y.npy", "|u1", pixels ? "(4, 8, 8)" : "(4,)", numbers, pixels ? 4 * 8 * 8 : 4);
    char rest[900], init[300];
    snprintf(rest, sizeof rest, "--data=%s --labels=%s --batch=4 --threads=1", x, y);
    snprintf(init, sizeof init, "--init=%s/step-00000001/model.safetensors", in_scratch("st"));
    ck_runs("train --model=%s %s %s --optimizer=sgd --steps=1 --save=%s", model, image_models[_i][1], rest,
            in_scratch("st"));
    ck_runs("train %s %s --optimizer=sgd --steps=1", init, rest);
    ck_says_all(program_output, model);
    ck_runs("eval %s %s", init, rest);
    ck_refuses(2, "--task=lm|model", "train %s %s --task=lm", init, rest);
}
END_TEST

/* Sets element 7 of the first array of a file to these bits. */
static void spoil(const char *path, uint32_t bits) {
    uint64_t header;
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(&header, sizeof header, 1, file), 1);
    ck_assert_int_eq(fseek(file, (long)(8 + header + 4 * 7), SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(&bits, sizeof bits, 1, file), 1);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(non_finite_weights_are_not_used) {
    const char *text = make_text("text", 3000), *path = in_scratch("st/step-00000001/model.safetensors");
    char says[80];
    ck_runs("train --data=%s " SMALL "--steps=1 --save=%s", text, in_scratch("st"));
    spoil(path, _i ? 0x7f800000 : 0x7fc00000);
    snprintf(says, sizeof says, "%s|element 7|diverged", _i ? "inf" : "nan");
    ck_refuses(1, says, "eval --data=%s --seq-len=16 --batch=2 --init=%s", text, path);
    ck_refuses(1, says, "train --data=%s " SMALL "--steps=1 --init=%s", text, path);
    ck_refuses(1, says, "sample --length=3 --init=%s", path);
}
END_TEST

START_TEST(language_models_are_saved_resumed_and_read) {
    static const char *const models[] = {"mingru",
                                         "minlstm",
                                         "mamba --state-size=5",
                                         "mamba2",
                                         "gdn",
                                         "xlstm",
                                         "xlstm --slstm-at=0",
                                         "m2rnn",
                                         "rwkv7",
                                         "recurrentgemma",
                                         "recurrentgemma --layers=2 --heads=2 --attention-at=1 --kv-heads=2",
                                         "xlstm_large"};
    const char *model = models[_i], *text = make_text("text", 4096), *st = in_scratch("st");
    char init[300];
    snprintf(init, sizeof init, "--init=%s/step-00000002/model.safetensors", st);
    ck_runs("train --data=%s " SMALL "--model=%s --steps=2 --save=%s", text, model, st);
    ck_runs("train --resume=%s --steps=3 --checkpoint=sqrt", st);
    ck_runs("sample --resume=%s --length=8", st);
    ck_runs("eval --data=%s --seq-len=16 --batch=2 %s", text, init); /* the file implies the flag */
    ck_refuses(2, "--model=lstm|model", "plan --model=lstm %s", init);
    ck_runs("train --task=adding " SMALL "--model=%s --steps=2 --eval-every=2", model);
}
END_TEST

/* Neither names nor shapes tell heads of attention and groups of heads; transformers' config.json beside the weights does. */
START_TEST(flags_follow_from_config_json) {
    static const struct {
        const char *model, *config, *wrong, *says;
    } of[] = {{"mamba2 --heads=4 --state-size=6 --n-groups=2", "{\"num_heads\": 4, \"state_size\": 6, \"n_groups\": 2}",
               "--n-groups=1", "--n-groups=1|n-groups=2"},
              {"recurrentgemma --layers=3 --attention-window=5", "{\"attention_window_size\": 5}",
               "--attention-window=6", "--attention-window=6|attention-window=5"},
              {"gpt2 --heads=2", "{\"n_head\": 2, \"n_inner\": null}", "--heads=4", "--heads=4|heads=2"}};
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    char init[300];
    snprintf(init, sizeof init, "--init=%s/step-00000001/model.safetensors", st);
    ck_runs("train --data=%s " SMALL "--model=%s --steps=1 --save=%s", text, of[_i].model, st);
    make_file("st/step-00000001/config.json", of[_i].config, strlen(of[_i].config));
    ck_runs("eval --data=%s --seq-len=16 --batch=2 %s", text, init);
    ck_assert_msg(!strstr(program_errors, "note"), "%s", program_errors);
    ck_refuses(2, of[_i].says, "eval --data=%s --seq-len=16 --batch=2 %s %s", text, init, of[_i].wrong);
    make_file("st/step-00000001/config.json", "{", 1);
    ck_refuses(1, "config.json|line 1", "eval --data=%s --seq-len=16 --batch=2 %s", text, init);
}
END_TEST

/* Constants that arrays do not tell, either: those of another network are refused. transformers' infinities are read. */
START_TEST(other_constants_in_config_json_are_refused) {
    static const struct {
        const char *model, *same, *other, *says;
    } of[] = {
        {"mamba",
         "{\"model_type\": \"mamba\", \"hidden_act\": \"silu\", \"layer_norm_epsilon\": 0.00001, \"rms\": null}",
         "{\"model_type\": \"falcon_mamba\"}", "config.json|model_type|falcon_mamba|--model=mamba|mamba"},
        {"mamba2", "{\"time_step_limit\": [0.0, Infinity], \"hidden_act\": null}",
         "{\"time_step_limit\": [0.001, Infinity]}", "time_step_limit|0.001"},
        {"mamba2", "{\"time_step_limit\": [0, {\"__float__\": \"Infinity\"}]}", "{\"time_step_limit\": [0.0, 0.5]}",
         "time_step_limit.1|0.5|Infinity"},
        {"gdn", "{\"rms_norm_eps\": 1e-6, \"linear_num_key_heads\": 1}", "{\"rms_norm_eps\": 1e-5}",
         "rms_norm_eps|1e-5|1e-06"},
        {"gdn", "{\"allow_neg_eigval\": false}", "{\"hidden_act\": \"gelu\"}", "hidden_act|gelu|silu"},
        {"xlstm_large", "{\"gate_soft_cap\": 15}", "{\"output_logit_soft_cap\": 20.5}",
         "output_logit_soft_cap|20.5|30"},
        {"recurrentgemma --layers=3", "{\"rope_parameters\": {\"rope_theta\": 10000.0}}",
         "{\"rope_parameters\": {\"rope_theta\": 500}}", "rope_theta|500|10000"},
        {"gpt2 --heads=1", "{\"activation_function\": \"gelu_pytorch_tanh\", \"scale_attn_weights\": true}",
         "{\"scale_attn_weights\": false}", "scale_attn_weights|false|true"},
    };
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    char init[300];
    snprintf(init, sizeof init, "--init=%s/step-00000001/model.safetensors", st);
    ck_runs("train --data=%s " SMALL "--model=%s --steps=1 --save=%s", text, of[_i].model, st);
    make_file("st/step-00000001/config.json", of[_i].same, strlen(of[_i].same));
    ck_runs("eval --data=%s --seq-len=16 --batch=2 %s", text, init);
    make_file("st/step-00000001/config.json", of[_i].other, strlen(of[_i].other));
    ck_refuses(2, of[_i].says, "eval --data=%s --seq-len=16 --batch=2 %s", text, init);
}
END_TEST

/* Of gdn's weights: heads that share a head of values. */
START_TEST(heads_in_config_json_win_over_guessed_ones) {
    static const char config[] = "{\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 2}";
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --data=%s " SMALL "--model=gdn --heads=1 --steps=1 --save=%s", text, st);
    make_file("st/step-00000001/config.json", config, strlen(config));
    ck_refuses(2, "linear_attn|(4,8)|(8,8)",
               "eval --data=%s --seq-len=16 --batch=2 --init=%s/step-00000001/model.safetensors", text, st);
}
END_TEST

/* Without a config.json a note says what is assumed, once the weights are loaded; not what is given, and of Remat's own states
 * no constants. */
START_TEST(assumed_values_are_named) {
    const char *text = make_text("text", 4096), *st = in_scratch("st"), *moved = in_scratch("model.safetensors");
    char init[300];
    snprintf(init, sizeof init, "--init=%s/step-00000001/model.safetensors", st);
    ck_runs("train --data=%s " SMALL "--model=mamba2 --heads=4 --state-size=64 --n-groups=2 --steps=1 --save=%s", text,
            st);
    ck_runs("eval --data=%s --seq-len=16 --batch=2 %s", text, init); /* 1 group of 128 states has the same shapes */
    ck_says_all(program_errors, "note|no config.json|--state-size default, --n-groups 1");
    ck_assert_msg(!strstr(program_errors, "hidden_act"), "%s", program_errors);
    ck_refuses(2, "in_proj", "train --data=%s --seq-len=16 --batch=2 --steps=1 %s --state-size=64", text, init);
    ck_assert_msg(!strstr(program_errors, "note"), "%s", program_errors);
    ck_runs("train --data=%s --seq-len=16 --batch=2 --steps=1 %s --state-size=64 --n-groups=2", text, init);
    ck_assert_msg(!strstr(program_errors, "note"), "%s", program_errors);
    ck_runs("train --data=%s --seq-len=16 --batch=2 --steps=1 %s", text, init);
    ck_says_all(program_errors, "note|--n-groups 1");
    ck_assert_int_eq(rename(init + strlen("--init="), moved), 0);
    ck_runs("eval --data=%s --seq-len=16 --batch=2 --init=%s", text, moved);
    ck_says_all(program_errors, "note|--n-groups 1|hidden_act silu|layer_norm_epsilon 1e-05");
    ck_refuses(2, "--seq-len", "eval --data=%s --seq-len=5000 --batch=2 --init=%s", text, moved);
    ck_assert_msg(!strstr(program_errors, "note"), "%s", program_errors);
}
END_TEST

/* A file of weights tells whether the model has convolutions. */
START_TEST(weights_without_convolutions_imply_no_conv) {
    const char *model = _i ? "minlstm" : "mingru", *text = make_text("text", 4096);
    char with[300], without[300];
    snprintf(with, sizeof with, "%s/step-00000001/model.safetensors", in_scratch("with"));
    snprintf(without, sizeof without, "%s/step-00000001/model.safetensors", in_scratch("without"));
    ck_runs("train --data=%s " SMALL "--model=%s --steps=1 --save=%s", text, model, in_scratch("with"));
    ck_runs("train --data=%s " SMALL "--model=%s --no-conv --steps=1 --save=%s", text, model, in_scratch("without"));
    ck_runs("eval --data=%s --seq-len=16 --batch=2 --init=%s", text, without);
    ck_refuses(2, "--no-conv", "eval --data=%s --seq-len=16 --batch=2 --init=%s --no-conv", text, with);
    ck_refuses(2, "--no-conv|--model=lstm", "plan --model=lstm --no-conv");
}
END_TEST

START_TEST(diverging_run_stops_before_saving) {
    ck_refuses(1, "--lr",
               "train --task=adding --seq-len=10 --hidden=8 --threads=1 --optimizer=sgd --lr=1e6 "
               "--steps=60 --save-every=1 --save=%s",
               in_scratch("st"));
    int status = run_program("train --resume=%s --steps=1", in_scratch("st")); /* the saved state is finite */
    ck_assert_msg(status == 0, "exit %d: %s", status, program_errors);
}
END_TEST

/* The loss of step 4 is still finite, but the weights after its update are not. */
START_TEST(non_finite_weights_are_not_saved) {
    const char *text = make_text("text", 3000), *st = in_scratch("st");
    char last[300];
    int status =
        run_program("train --data=%s " SMALL "--seed=3 --optimizer=sgd --lr=1e6 --weight-decay=1e6 --save-every=1 "
                    "--keep=1 --steps=9 --save=%s %s",
                    text, st, _i ? "--devices=cpu:2" : "");
    ck_assert_msg(status == 1, "exit %d: %s", status, program_errors);
    ck_says_all(program_errors, "step 4|not saved|embedding.weight");
    ck_says_all(program_errors, "--lr");
    snprintf(last, sizeof last, "%s/step-00000003/model.safetensors", st);
    ck_runs("train --data=%s " SMALL "--init=%s --lr=0 --steps=1", text, last);
    ck_runs("train --resume=%s --lr=0 --weight-decay=0 --steps=4", st);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("saved_models");
    tcase_add_test(tests, a_model_without_biases_is_saved_and_resumed);
    tcase_add_test(tests, bidirectional_models_are_saved_and_resumed);
    tcase_add_test(tests, a_projected_lstm_is_saved_and_resumed);
    tcase_add_test(tests, weights_identify_their_model);
    tcase_add_test(tests, given_model_is_preferred_to_another_with_its_arrays);
    tcase_add_loop_test(tests, weights_identify_their_image_model, 0, 4);
    tcase_add_loop_test(tests, non_finite_weights_are_not_used, 0, 2);
    tcase_add_loop_test(tests, language_models_are_saved_resumed_and_read, 0, 12);
    tcase_add_loop_test(tests, flags_follow_from_config_json, 0, 3);
    tcase_add_loop_test(tests, other_constants_in_config_json_are_refused, 0, 8);
    tcase_add_test(tests, heads_in_config_json_win_over_guessed_ones);
    tcase_add_test(tests, assumed_values_are_named);
    tcase_add_loop_test(tests, weights_without_convolutions_imply_no_conv, 0, 2);
    tcase_add_test(tests, diverging_run_stops_before_saving);
    tcase_add_loop_test(tests, non_finite_weights_are_not_saved, 0, 2);
    return run_suite("train/saved_models", tests);
}
