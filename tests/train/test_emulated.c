/* test_emulated.c: the program `remat` on the emulated device "cuda" (tests/cuda/program.c): flags, training, plans,
 * evaluation, training states, and ranks on several GPUs. No GPU is used. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef REMAT_EMULATED

#include "tests/says.h"
#include "tests/suite.h"

static char folder[64];

static void set_up(void) {
    strcpy(folder, "/tmp/remat-emulated-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}
static void tear_down(void) {
    char command[120];
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

/* Runs `remat COMMAND FLAGS` in the folder; its output goes to the file `out` there. */
static int run(const char *flags) {
    char command[1200];
    snprintf(command, sizeof command, "cd %s && OMP_NUM_THREADS=1 %s %s >out 2>&1 </dev/null", folder, REMAT_EMULATED,
             flags);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static const char *printed(void) {
    static char text[8000];
    char path[100];
    snprintf(path, sizeof path, "%s/out", folder);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

#define expect(status, flags)                                                                                          \
    do {                                                                                                               \
        int got_ = run(flags);                                                                                         \
        ck_assert_msg(got_ == (status), "remat %s: exit status %d\n%s", flags, got_, printed());                       \
    } while (0)
#define expect_words(words) ck_says_all(printed(), words)

static double last_loss(void) {
    const char *at = strstr(printed(), "done after step");
    ck_assert_msg(at && (at = strstr(at, "loss ")), "%s", printed());
    return atof(at + 5);
}

#define NET "--task=adding --hidden=6 --layers=2 --seq-len=24 --tile=8 --batch=4 --samples=40 --seed=3 "

START_TEST(plans_have_the_same_bits) {
    static const char *const ways[] = {"", "--checkpoint-segments=2", "--checkpoint=lean", "--checkpoint=sqrt",
                                       "--checkpoint=sqrt --recompute=exact-only"};
    char flags[400];
    for (int i = 0; i < 5; i++) {
        snprintf(flags, sizeof flags, "train " NET "--steps=4 --device=cuda --metrics=%d.jsonl %s", i, ways[i]);
        expect(0, flags);
        expect_words("device cuda");
    }
    expect(0, "report --require-identical 0.jsonl 1.jsonl 2.jsonl 3.jsonl 4.jsonl");
}
END_TEST

/* Losses are near the CPU's. */
START_TEST(losses_are_near_the_cpus) {
    expect(0, "train " NET "--steps=4 --device=cpu");
    double cpu = last_loss();
    expect(0, "train " NET "--steps=4 --device=auto");
    expect_words("device cuda");
    ck_assert_msg(fabs(last_loss() - cpu) <= 1e-4 * fabs(cpu), "%g, on the CPU %g", last_loss(), cpu);
}
END_TEST

/* An encoder and a decoder whose attention masks padding. */
#define PAIRS                                                                                                          \
    "train --task=seq2seq --generate=copy --hidden=12 --layers=1 --batch=4 --threads=1 --steps=4 --samples=50 "
START_TEST(seq2seq_losses_are_near_the_cpus) {
    expect(0, PAIRS "--bidirectional --device=cpu");
    double cpu = last_loss();
    expect(0, PAIRS "--bidirectional --device=cuda --checkpoint=sqrt --tile=8");
    expect_words("device cuda");
    ck_assert_msg(fabs(last_loss() - cpu) <= 1e-4 * fabs(cpu), "%g, on the CPU %g", last_loss(), cpu);
}
END_TEST

START_TEST(decoded_lines_match_the_cpus) {
    char cpu[100];
    expect(0, PAIRS "--device=cpu --steps=60 --lr=0.03 --save=pairs");
    expect(0, "sample --resume=pairs --device=cpu --prompt=ab --length=8 --beam=3");
    snprintf(cpu, sizeof cpu, "%.99s", printed());
    expect(0, "sample --resume=pairs --device=cuda --prompt=ab --length=8 --beam=3");
    ck_assert_str_eq(printed(), cpu);
}
END_TEST

/* Kernels for other GPUs are detected before the first step. With --device=auto the CPU trains instead. */
START_TEST(kernels_for_another_gpu_are_detected) {
    setenv("FAKE_KERNELS", "209", 1); /* cudaErrorNoKernelImageForDevice */
    expect(2, "train " NET "--steps=2 --device=cuda");
    expect_words("CMAKE_CUDA_ARCHITECTURES");
    expect(0, "train " NET "--steps=2 --device=auto");
    expect_words("--device=auto|CPU|GPU 0");
    expect_words("device cpu");
    unsetenv("FAKE_KERNELS");
}
END_TEST

START_TEST(states_are_resumed) {
    expect(0, "train " NET "--steps=6 --device=cuda --metrics=whole.jsonl");
    double whole = last_loss();
    expect(0, "train " NET "--steps=3 --device=cuda --save=run");
    expect(0, "train --resume=run --steps=6 --device=cuda");
    ck_assert_msg(last_loss() == whole, "%.9g, in one run %.9g", last_loss(), whole);
    expect(0, "eval --resume=run --device=cuda");
}
END_TEST

/* Slow paths are reported: after the second step the program prints once how products are computed and what is
 * recorded, and writes it to the metrics. */
START_TEST(gpu_statistics_are_reported) {
    expect(0, "train " NET "--steps=4 --device=cuda --metrics=gpu.jsonl");
    expect_words("0 fell back|cuBLAS|fp32");
    expect_words("calls|recorded");
    const char *told = strstr(printed(), "graphs: "), *second = strstr(printed(), "step      2/4");
    ck_assert_msg(told && second && second < told && told < strstr(printed(), "step      3/4"), "%s", printed());
    ck_assert_msg(!strstr(told + 1, "graphs: ") && !strstr(told, "recording has ended"), "%s", printed());
    expect(0, "report gpu.jsonl");
    char path[100], line[4096];
    snprintf(path, sizeof path, "%s/gpu.jsonl", folder);
    FILE *file = fopen(path, "r");
    int found = 0;
    while (file && fgets(line, sizeof line, file))
        found += strstr(line, "{\"event\":\"gpu\",\"step\":2,\"products\":{\"shapes\":") &&
                 strstr(line, "\"recorded\":") && strstr(line, "\"ended\":null");
    if (file) fclose(file);
    ck_assert_int_eq(found, 1);
    setenv("REMAT_CUDA_GRAPHS", "OFF", 1);
    setenv("FAKE_LT", "8", 1); /* FAKE_LT_KNOWS_NOTHING */
    expect(0, "train " NET "--steps=1 --device=cuda");
    expect_words("0 of 0 calls|recorded|16.0 MiB|REMAT_CUDA_GRAPHS=OFF");
    ck_assert_msg(!strstr(printed(), " 0 fell back"), "%s", printed());
    unsetenv("FAKE_LT");
    unsetenv("REMAT_CUDA_GRAPHS");
    expect(0, "train " NET "--steps=2 --device=cpu");
    ck_assert_msg(!strstr(printed(), "graphs: "), "%s", printed());
}
END_TEST

/* Products that stay in fp32 are reported once, after the first step. */
START_TEST(products_in_fp32_are_reported) {
    expect(0, "train " NET "--steps=3 --device=cuda --precision=bf16");
    expect_words("products|bf16");
    ck_assert_msg(!strstr(printed(), "--precision="), "%s", printed());
    setenv("FAKE_LT", "16", 1); /* FAKE_LT_NO_TENSOR_CORES */
    expect(0, "train " NET "--steps=3 --device=cuda --precision=bf16");
    expect_words("fp32|--precision=bf16");
    const char *first = strstr(printed(), "--precision=");
    ck_assert_msg(!strstr(first + 1, "--precision="), "%s", printed());
    expect(0, "train " NET "--steps=3 --device=cuda");
    ck_assert_msg(!strstr(printed(), "--precision="), "%s", printed());
    unsetenv("FAKE_LT");
}
END_TEST

/* Two ranks on GPUs, started by --devices and by the launcher, and two
 * ranks on CPUs. */
START_TEST(ranks_on_gpus_match_ranks_on_cpus) {
    expect(0, "train " NET "--steps=4 --devices=cpu:2 --device=cpu");
    double cpu = last_loss();
    expect(0, "train " NET "--steps=4 --devices=0,1 --bucket-cap-mb=0.001");
    expect_words("2 ranks|nccl");
    expect_words("device cuda");
    double cuda = last_loss();
    ck_assert_msg(fabs(cuda - cpu) <= 1e-4 * fabs(cpu), "%g, on the CPU %g", cuda, cpu);
    expect(0, "train " NET "--steps=4 --devices=0,1 --bucket-cap-mb=0.001 --checkpoint=sqrt --verify-recompute");
    ck_assert_msg(last_loss() == cuda, "verified %.9g, else %.9g", last_loss(), cuda);
    expect(0, "train " NET "--steps=4 --devices=0,1 --zero=1");
    ck_assert_msg(fabs(last_loss() - cuda) <= 1e-5 * fabs(cuda), "sharded %.9g, else %.9g", last_loss(), cuda);
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    expect(0,
           "launch --nproc-per-node=2 " REMAT_EMULATED " train " NET "--steps=4 --device=cuda --bucket-cap-mb=0.001");
    ck_assert_msg(last_loss() == cuda, "launched %.9g, else %.9g", last_loss(), cuda);
    unsetenv("CUDA_VISIBLE_DEVICES");
}
END_TEST

/* Training states after step 4, byte by byte. */
static void expect_same_states(const char *a, const char *b) {
    char command[300];
    snprintf(command, sizeof command,
             "cd %s && cmp %s/step-00000004/model.safetensors %s/step-00000004/model.safetensors", folder, a, b);
    ck_assert_msg(system(command) == 0, "%s and %s differ", a, b);
}

#define DEEP "train --hidden=8 --layers=3 --seq-len=24 --batch=4 --seed=3 --lr=0.01 --calibration=off --steps=4 "
#define COPY DEEP "--task=copy --tile=6 --samples=40 "
#define TEXT DEEP "--task=lm --data=text --model=gpt2 --heads=2 --no-tie "

static const struct {
    const char *flags, *one, *ranks;
} pipelines[] = {
    {COPY "--checkpoint=sqrt --verify-recompute", "--device=cuda", "--devices=0,1,2 --pipeline=3"},
    {TEXT "--accumulate-steps=4 --dropout=0.1 --checkpoint=sqrt --verify-recompute", "--device=cuda",
     "--devices=0,1 --pipeline=2"},
    {TEXT "--deterministic-world=4", "--device=cuda", "--devices=0,1 --pipeline=2"},
    {COPY "--checkpoint-segments=2 --zero=1", "--devices=0,1", "--devices=0,1,2,3 --pipeline=2"},
};
enum { PIPELINES = sizeof pipelines / sizeof *pipelines };

START_TEST(pipelines_on_gpus_have_the_bits_of_one_gpu) {
    char flags[600], path[100];
    snprintf(path, sizeof path, "%s/text", folder);
    FILE *text = fopen(path, "w");
    for (int i = 0; i < 3000; i++) fputc("abcde fgh\n"[i * i / 7 % 10], text);
    fclose(text);
    snprintf(flags, sizeof flags, "%s --save=one %s", pipelines[_i].flags, pipelines[_i].one);
    expect(0, flags);
    snprintf(flags, sizeof flags, "%s --save=parts %s", pipelines[_i].flags, pipelines[_i].ranks);
    expect(0, flags);
    expect_words("device cuda|pipeline");
    expect_same_states("one", "parts");
}
END_TEST

/* A training state moves between one GPU and a pipeline. */
START_TEST(states_of_pipelines_on_gpus_are_resumed) {
    expect(0, COPY "--device=cuda --save=one");
    expect(0, COPY "--steps=2 --devices=0,1 --pipeline=2 --save=parts");
    expect(0, "train --resume=parts --steps=3 --device=cuda --save=parts");
    expect(0, "train --resume=parts --steps=4 --devices=0,1 --pipeline=2 --save=parts");
    expect_same_states("one", "parts");
}
END_TEST

/* NCCL's memory counts, and so does CUDA's context on every rank. */
START_TEST(pipelines_on_gpus_are_planned) {
    char total[2][20];
    expect(0, "plan --task=copy --hidden=64 --layers=4 --seq-len=24 --pipeline=2 --device=cuda");
    const char *table = strstr(printed(), "activations        total");
    ck_assert_msg(table &&
                      sscanf(table, "%*[^\n]\n 0 %*f %*s %19s %*s %*[^\n]\n 1 %*f %*s %19s", total[0], total[1]) == 2,
                  "%s", printed());
    ck_assert_msg(atof(total[0]) > 300 && atof(total[1]) > 300, "%s", printed());
    expect(2, COPY "--device=cuda --pipeline=2");
    expect_words("--pipeline=2|2 ranks|--devices=0,1");
    expect(2, COPY "--devices=0,1,2,3 --pipeline=2 --deterministic-world=4");
    expect_words("--deterministic-world|GPU");
}
END_TEST

START_TEST(unsupported_gpu_settings_are_refused) {
    expect(2, "train " NET "--steps=4 --devices=0,1 --grad-compress=bf16");
    expect_words("gradients|host");
    setenv("CUDA_VISIBLE_DEVICES", "4", 1);
    expect(2, "train " NET "--steps=4 --devices=0,1");
    expect_words("GPU 1");
    unsetenv("CUDA_VISIBLE_DEVICES");
    expect(2, "train " NET "--steps=4 --device=cuda --memory-budget=100MiB");
    expect_words("needs|library workspaces|is the least that fits|give a larger budget");
    ck_assert_msg(!strstr(printed(), "--spill"), "%s", printed()); /* libraries alone need more */
}
END_TEST

int main(void) {
    TCase *c = tcase_create("emulated");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_test(c, plans_have_the_same_bits);
    tcase_add_test(c, losses_are_near_the_cpus);
    tcase_add_test(c, seq2seq_losses_are_near_the_cpus);
    tcase_add_test(c, decoded_lines_match_the_cpus);
    tcase_add_test(c, kernels_for_another_gpu_are_detected);
    tcase_add_test(c, states_are_resumed);
    tcase_add_test(c, gpu_statistics_are_reported);
    tcase_add_test(c, products_in_fp32_are_reported);
    tcase_add_test(c, ranks_on_gpus_match_ranks_on_cpus);
    tcase_add_loop_test(c, pipelines_on_gpus_have_the_bits_of_one_gpu, 0, PIPELINES);
    tcase_add_test(c, states_of_pipelines_on_gpus_are_resumed);
    tcase_add_test(c, pipelines_on_gpus_are_planned);
    tcase_add_test(c, unsupported_gpu_settings_are_refused);
    return run_cases("train/emulated", c);
}

#else

int main(void) { return puts("skipped: needs CUDA's and NCCL's headers, and a C++ compiler"), 77; }

#endif
