/* presets.c: see presets.h. The rows are MLPerf's reference convergence points for ResNet-50 with LARS (training 4.0,
 * mlcommons/logging, rcps_resnet.json): values known to reach 75.9 % on ImageNet at each batch size. MLPerf's rules fix the final
 * learning rate, the power and epsilon (1e-4, 2, 0). For another network the rows are a starting point: they show how learning
 * rate, warm-up and momentum depend on the batch size. */
#include "train/flags/presets.h"

#include "train/run/setup.h"

#include <string.h>

/* Momentum and learning rate as published; they were found by search. */
static const struct {
    int64_t batch;
    const char *lr, *warmup_epochs, *momentum, *weight_decay, *decay_steps;
} rows[] = {
    {1632, "7.4", "2", "0.9", "5e-5", "27476"},          {3264, "10.5", "2", "0.9", "5e-5", "14523"},
    {4096, "10", "5", "0.9", "2e-4", "13137"},           {8192, "17", "5", "0.9", "2e-4", "6095"},
    {13056, "12.8", "9", "0.9", "2.5e-5", "4710"},       {32768, "21.2", "16", "0.94", "2.5e-5", "2267"},
    {49152, "19.405", "24", "0.951807", "1e-4", "1846"}, {58880, "23.246", "29", "0.951807", "1e-4", "1785"},
    {65536, "24.699", "31", "0.951807", "1e-4", "1133"}, {67840, "24.699", "31", "0.951807", "1e-4", "1133"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static rm_preset preset_of(int row) {
    rm_preset p = {.batch = rows[row].batch};
    snprintf(p.name, sizeof p.name, "mlperf-resnet-%lld", (long long)p.batch);
    char batch[24];
    snprintf(batch, sizeof batch, "%lld", (long long)p.batch);
    const char *const values[RM_PRESET_VALUES][2] = {
        {"optimizer", "lars"},
        {"lr", rows[row].lr},
        {"base-batch", batch},
        {"lr-schedule", "poly"},
        {"power", "2"},
        {"end-lr", "1e-4"},
        {"warmup-epochs", rows[row].warmup_epochs},
        {"decay-steps", rows[row].decay_steps},
        {"momentum", rows[row].momentum},
        {"weight-decay", rows[row].weight_decay},
        {"trust-coefficient", "0.001"},
    };
    for (int i = 0; i < RM_PRESET_VALUES; i++) {
        p.value[i].flag = values[i][0];
        snprintf(p.value[i].value, sizeof p.value[i].value, "%s", values[i][1]);
    }
    return p;
}

remat_status rm_preset_find(const char *name, rm_preset *out) {
    char known[256] = "";
    for (int i = 0; i < ROWS; i++) {
        *out = preset_of(i);
        if (!strcmp(out->name, name)) return REMAT_OK;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%lld", i ? ", " : "", (long long)out->batch);
    }
    FAIL(INVALID, "there is no preset '%.60s': use mlperf-resnet-N with N = %s; --preset=list shows them", name, known);
}

void rm_presets_print(FILE *out) {
    fputs(
        "Presets: defaults under your own flags, each for one global batch (--batch x ranks x --accumulate-steps).\n"
        "MLPerf's reference convergence points for ResNet-50 on ImageNet; docs/large_batch.md says how to read them.\n",
        out);
    for (int i = 0; i < ROWS; i++) {
        rm_preset p = preset_of(i);
        fprintf(out, "\n%s  (a global batch of %lld)\n ", p.name, (long long)p.batch);
        for (int k = 0; k < RM_PRESET_VALUES; k++)
            fprintf(out, "%s --%s=%s", k == 6 ? "\n " : "", p.value[k].flag, p.value[k].value);
        fputc('\n', out);
    }
}

/* ---- The batch ---------------------------------------------------------------------------------------------------- */

/* "--batch=64 x 16 ranks x --accumulate-steps=4", without factors of one. */
static const char *factors(const rm_options *o, char text[120]) {
    int n = snprintf(text, 120, "--batch=%lld", (long long)o->order.batch);
    if (o->world_size > 1) n += snprintf(text + n, 120 - (size_t)n, " x %lld ranks", (long long)o->world_size);
    if (o->order.micro_steps > 1 && !o->order.shards)
        snprintf(text + n, 120 - (size_t)n, " x --accumulate-steps=%lld", (long long)o->order.micro_steps);
    return text;
}

/* If the batch is too small, more micro steps also help. */
static void find_remedy(const rm_options *o, const rm_preset *p, int64_t others, char text[120]) {
    int64_t ranks = o->order.batch * o->world_size;
    if (p->batch % others)
        snprintf(text, 120, "%lld is not divisible by %lld, the ranks times the micro steps: change their number",
                 (long long)p->batch, (long long)others);
    else if (p->batch % ranks == 0 && ranks < p->batch && !o->order.shards)
        snprintf(text, 120, "use --batch=%lld or --accumulate-steps=%lld", (long long)(p->batch / others),
                 (long long)(p->batch / ranks));
    else
        snprintf(text, 120, "use --batch=%lld", (long long)(p->batch / others));
}

static remat_status disagree(const rm_options *o, const rm_preset *p, int64_t others) {
    char remedy[120], these[120], made[160] = "";
    find_remedy(o, p, others, remedy);
    factors(o, these);
    if (strchr(these, ' ')) snprintf(made, sizeof made, " (%s)", these);
    FAIL(INVALID,
         "--preset=%s is for %lld samples per update, and this run has %s%lld%s: %s, or --scale-lr=linear to scale the "
         "learning rate to this batch",
         p->name, (long long)p->batch, *made ? "" : "--batch=", (long long)(o->order.batch * others), made, remedy);
}

/* With --deterministic-world the shards are parts of --batch, so micro steps do not multiply it. */
remat_status rm_preset_share_batch(rm_options *o) {
    rm_preset preset;
    if (!o->preset) return REMAT_OK;
    TRY(rm_preset_find(o->preset, &preset));
    int64_t ranks = rm_setup_ranks(o);
    int64_t others = ranks * (o->order.shards ? 1 : o->order.micro_steps);
    bool scaled = o->rate.scale != RM_SCALE_NONE;
    if (!rm_options_given(o, "batch") && preset.batch % others == 0) o->order.batch = preset.batch / others;
    rm_options as_one = *o;
    as_one.world_size = ranks;
    return scaled || o->order.batch * others == preset.batch ? REMAT_OK : disagree(&as_one, &preset, others);
}
