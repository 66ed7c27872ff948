/* test_pytorch_rows.c: each row of docs/coming_from_pytorch.md is a line of the table below, in the same order. A row
 * about networks names them: the parameters that its flags make have the names and shapes of PyTorch's, at their usual
 * sizes (tests/golden/make_shapes.py). The other rows name the tests that compare them. */
#include "engine/graph/graph.h"
#include "train/flags/options.h"
#include "train/run/setup.h"

#include "tests/train/train_test.h"

#define TEXT "--task=lm --layers=2 --hidden=24 --seq-len=8 "
#define PHOTO "--task=classify --image-size=224 --classes=1000 "
#define DIGIT "--task=classify --image-size=28 --channels=1 --classes=10 "
#define SCENE "--task=classify --image-size=64 --channels=3 --classes=2 --layers=4 --hidden=64 "

static const struct {
    const char *row;           /* how its first cell begins */
    const char *network[4][2]; /* a line of shapes.txt, and flags; NULL after the last */
    const char *tests;         /* "FOLDER/FILE FOLDER/FILE" */
} rows[] = {
    {"`torch.utils.checkpoint`", {{NULL}}, "engine/test_bits.c"},
    {"`nn.LSTM`, `nn.GRU`, `nn.RNN`",
     {{"lstm", TEXT "--model=lstm"},
      {"gru", TEXT "--model=gru"},
      {"rnn", TEXT "--model=rnn"},
      {"rnn", TEXT "--model=rnn_relu"}},
     "engine/test_golden.c ops/test_cells.c"},
    {"`nn.LSTM(proj_size=P)`; `bias=False`; `bidirectional=True`",
     {{"lstm proj_size", TEXT "--model=lstm --proj-size=5"},
      {"lstm bias=False", TEXT "--model=lstm --no-bias"},
      {"lstm bidirectional", "--task=adding --layers=2 --hidden=24 --model=lstm --bidirectional"}},
     "engine/test_golden.c train/test_model_golden.c"},
    {"`model.head.weight = model.embedding.weight`",
     {{"lstm tied", TEXT "--model=lstm --tie-embeddings"}},
     "train/test_model_golden.c"},
    {"`GPT2LMHeadModel`",
     {{"gpt2", TEXT "--model=gpt2 --heads=2 --positions=64"},
      {"gpt2 untied", TEXT "--model=gpt2 --heads=2 --positions=64 --no-tie"}},
     "train/test_model_golden.c train/test_tied.c"},
    {"nanoGPT's `GPT`", {{NULL}}, "train/test_export.c train/test_saved_models.c"},
    {"`MambaForCausalLM` (transformers)", {{"mamba", TEXT "--model=mamba"}}, "train/test_model_golden.c"},
    {"`Mamba2ForCausalLM`", {{NULL}}, "train/test_model_golden.c ops/test_recurrences.c engine/test_recurrences.c"},
    {"`Qwen3NextForCausalLM`", {{NULL}}, "train/test_model_golden.c ops/test_recurrences.c engine/test_recurrences.c"},
    {"`RecurrentGemmaForCausalLM`", {{NULL}}, "train/test_model_golden.c engine/test_recurrences.c"},
    {"`xLSTMLMModel`, backend `vanilla`",
     {{NULL}},
     "train/test_model_golden.c ops/test_recurrences.c engine/test_recurrences.c"},
    {"`xLSTMForCausalLM` (transformers)", {{NULL}}, "train/test_model_golden.c ops/test_recurrences.c"},
    {"`M2RNN` (xma, lm-engine)",
     {{NULL}},
     "train/test_model_golden.c ops/test_recurrences.c engine/test_recurrences.c"},
    {"RWKV-LM's v7", {{NULL}}, "train/test_model_golden.c ops/test_recurrences.c engine/test_recurrences.c"},
    {"`minLM(enable_conv=True)` (minGRU-pytorch); `minLM(...)`",
     {{"minGRU enable_conv", TEXT "--model=mingru"},
      {"minGRU", TEXT "--model=mingru --no-conv"},
      {"minLSTM", TEXT "--model=minlstm --no-conv"}},
     "train/test_model_golden.c"},
    {"`torchvision.models.resnet18`, `34`, `50`",
     {{"resnet18", PHOTO "--model=resnet18"},
      {"resnet34", PHOTO "--model=resnet34"},
      {"resnet50", PHOTO "--model=resnet50"}},
     "train/test_model_image.c"},
    {"PyTorch's MNIST example; an MLP",
     {{"mnist", DIGIT "--model=cnn --dropout=0.5"}, {"mlp", DIGIT "--model=mlp --layers=2 --hidden=24"}},
     "train/test_model_image.c"},
    {"`UNet(3, 2, bilinear=True)` (milesial); `UNet(3, 2)`",
     {{"unet bilinear", SCENE "--model=unet"}, {"unet", SCENE "--model=unet --up=transposed"}},
     "train/test_model_image.c train/test_masks.c"},
    {"`scaled_dot_product_attention", {{NULL}}, "engine/test_golden.c"},
    {"`tokenizers`' `tokenizer.json`", {{NULL}}, "train/test_tokenizer.c"},
    {"`generate(temperature=, top_k=, top_p=)`", {{NULL}}, "train/test_draw.c"},
    {"truncated BPTT", {{NULL}}, "engine/test_golden.c train/test_tbptt.c"},
    {"`cross_entropy(weight=, ignore_index=, label_smoothing=)`",
     {{NULL}},
     "engine/test_loss_mean.c ops/test_losses.c"},
    {"`cross_entropy(...) + dice_loss(", {{NULL}}, "ops/test_losses.c train/test_masks.c"},
    {"`mse_loss`, `l1_loss`, `huber_loss`, `BCEWithLogitsLoss`", {{NULL}}, "ops/test_losses.c train/test_values.c"},
    {"top-5 accuracy from `logits.topk(5)`", {{NULL}}, "engine/test_correct.c train/test_images_run.c"},
    {"`nn.CTCLoss()`", {{NULL}}, "engine/test_ctc.c train/test_transcribe.c"},
    {"an encoder and a decoder with attention", {{NULL}}, "train/test_seq2seq.c"},
    {"a label for each timestep", {{NULL}}, "train/test_tags.c"},
    {"`pack_padded_sequence(x, lengths)`", {{NULL}}, "engine/test_golden.c train/test_lengths.c"},
    {"`SGD`, `Adam`, `AdamW`", {{NULL}}, "ops/test_optimizers.c engine/test_golden.c"},
    {"`CosineAnnealingLR`, `CosineAnnealingWarmRestarts`", {{NULL}}, "dist/test_learning_rate.c train/test_watch.c"},
    {"`LinearLR` and `CosineAnnealingLR`", {{NULL}}, "dist/test_learning_rate.c"},
    {"Lightning's `EarlyStopping", {{NULL}}, "train/test_watch.c"},
    {"`AveragedModel", {{NULL}}, "train/test_ema.c"},
    {"`ImageFolder(DIR)`, `CIFAR10`, `MNIST`",
     {{NULL}},
     "train/test_folder.c train/test_images_run.c train/test_idx.c"},
    {"`RandomCrop(32, padding=4)`", {{NULL}}, "train/test_images.c"},
    {"`DataLoader(num_workers=4)`", {{NULL}}, "train/test_workers.c"},
    {"`Adam([{'params': model.fc.parameters()}])`", {{NULL}}, "train/test_effects.c"},
    {"`model.fc = nn.Linear(512, 10)`, all else frozen", {{NULL}}, "train/test_part.c"},
    {"`SummaryWriter(DIR)", {{NULL}}, "train/test_tensorboard.c"},
    {"`nn.DataParallel(model)`; `mp.spawn(...)`", {{NULL}}, "train/test_ranks.c"},
    {"`DistributedDataParallel(model", {{NULL}}, "dist/test_ddp.c dist/test_ddp_sessions.c"},
    {"`torchrun --nproc_per_node=4", {{NULL}}, "dist/test_launch.c dist/test_module.c"},
    {"`mpirun -np 8 -H", {{NULL}}, "dist/test_launch_hosts.c"},
    {"`init_process_group(backend", {{NULL}}, "dist/test_group.c dist/test_job.c"},
    {"`RANK`, `WORLD_SIZE`", {{NULL}}, "dist/test_rendezvous.c"},
    {"`NCCL_SOCKET_IFNAME`", {{NULL}}, "dist/test_bootstrap.c"},
    {"`SyncBatchNorm`", {{NULL}}, "engine/test_sync_batch_norm.c"},
    {"`DistributedSampler`, `set_epoch`", {{NULL}}, "dist/test_sampler.c train/test_loader.c"},
    {"`model.no_sync()`; `ZeroRedundancyOptimizer`", {{NULL}}, "train/test_optimizer_shards.c dist/test_ddp.c"},
    {"`if rank == 0: torch.save(...)`", {{NULL}}, "train/test_state.c train/test_resume.c"},
    {"`find_unused_parameters`, `static_graph`", {{NULL}}, "engine/test_buckets.c"},
    {"`torchrun --max-restarts=3`", {{NULL}}, "train/test_restarts.c"},
    {"a handler for the signal", {{NULL}}, "train/test_interrupt.c"},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- The page ----------------------------------------------------------------------------------------------------- */

static FILE *open_source(const char *name, char path[512]) {
    snprintf(path, 512, "%s/%s", RM_SOURCE_DIR, name);
    return fopen(path, "r");
}

START_TEST(every_row_of_the_page_has_a_test) {
    char path[512], line[2048];
    FILE *file = open_source("docs/coming_from_pytorch.md", path);
    int row = 0;
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        if (*line != '|' || !strcmp(line, "| PyTorch | Remat |\n") || !strncmp(line, "|--", 3)) continue;
        ck_assert_msg(row < ROWS, "the page has a row that is not tested: %s", line);
        ck_assert_msg(!strncmp(line + 2, rows[row].row, strlen(rows[row].row)), "row %d does not begin with %s: %s",
                      row, rows[row].row, line);
        row++;
    }
    fclose(file);
    ck_assert_int_eq(row, ROWS);
}
END_TEST

START_TEST(tests_of_a_row_exist) {
    char list[256], name[300], path[512];
    snprintf(list, sizeof list, "%s", rows[_i].tests);
    for (char *test = strtok(list, " "); test; test = strtok(NULL, " ")) {
        snprintf(name, sizeof name, "tests/%s", test);
        FILE *file = open_source(name, path);
        ck_assert_msg(file != NULL, "%s: there is no %s", rows[_i].row, path);
        fclose(file);
    }
}
END_TEST

/* ---- Networks ----------------------------------------------------------------------------------------------------- */

static void build(const char *flags, rm_model *model) {
    static rm_options o;
    char copy[512], *argv[32];
    int argc = 0;
    rm_model_spec spec;
    snprintf(copy, sizeof copy, "%s", flags);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    ck_ok(rm_options_parse(&o, RM_PLAN, argc, argv));
    ck_ok(rm_setup_spec(&o, NULL, &spec));
    ck_ok(rm_model_build(&spec, 2, false, model));
    rm_options_free(&o);
}

/* Consumes " NAME DIM..."; its parameter must be in the graph, with this shape. */
static void find_parameter(const remat_graph *graph, const char *network, const char *line) {
    char name[96];
    int used;
    ck_assert_int_eq(sscanf(line, "%95s%n", name, &used), 1);
    for (int32_t v = 1; v < graph->n_values; v++) {
        const rm_value *value = &graph->value[v];
        if (value->origin != RM_VALUE_PARAM || strcmp(value->name, name)) continue;
        char *rest = (char *)line + used;
        for (int d = 0; d < value->desc.rank; d++)
            ck_assert_msg(strtoll(rest, &rest, 10) == value->desc.dim[d], "%s: %s has another shape", network, line);
        ck_assert_msg(*rest == '\n', "%s: %s has a lower rank", network, line);
        return;
    }
    ck_abort_msg("%s: the parameter %s is missing", network, name);
}

static int count_parameters(const remat_graph *graph) {
    int n = 0;
    for (int32_t v = 1; v < graph->n_values; v++) n += graph->value[v].origin == RM_VALUE_PARAM;
    return n;
}

static void compare(const char *network, const char *flags) {
    char path[512], line[256], head[64];
    FILE *file = open_source("tests/golden/shapes.txt", path);
    rm_model model;
    int n = 0;
    ck_assert_ptr_nonnull(file);
    build(flags, &model);
    snprintf(head, sizeof head, "%s\n", network);
    while (fgets(line, sizeof line, file) && strcmp(line, head)) continue;
    for (; fgets(line, sizeof line, file) && *line == ' '; n++) find_parameter(model.graph, network, line);
    fclose(file);
    ck_assert_msg(n && n == count_parameters(model.graph), "%s: %d parameters, not %d", network,
                  count_parameters(model.graph), n);
    rm_model_free(&model);
}

START_TEST(names_and_shapes_of_a_row_are_pytorchs) {
    for (int i = 0; i < 3 && rows[_i].network[i][0]; i++) compare(rows[_i].network[i][0], rows[_i].network[i][1]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("pytorch_rows");
    tcase_add_test(tests, every_row_of_the_page_has_a_test);
    tcase_add_loop_test(tests, tests_of_a_row_exist, 0, ROWS);
    tcase_add_loop_test(tests, names_and_shapes_of_a_row_are_pytorchs, 0, ROWS);
    return run_suite("pytorch_rows", tests);
}
