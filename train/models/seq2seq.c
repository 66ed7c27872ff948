/* seq2seq.c: see seq2seq.h. */
#include "train/models/seq2seq.h"

#include "train/models/recurrent.h"

#include <math.h>

remat_status rm_seq2seq_check(const rm_model_spec *spec) {
    char models[120];
    rm_model_list("seq2seq", models, sizeof models);
    REQUIRE(rm_model_is(spec->name, "seq2seq"), INVALID,
            "--task=seq2seq is for %s; --model=%s cannot start from the final states of an encoder", models,
            spec->name);
    return REMAT_OK;
}

/* Linear without a bias, initialised as PyTorch's nn.Linear. */
static remat_value dense(remat_graph *g, const char *name, remat_value x, int64_t from, int64_t to) {
    remat_init init = remat_init_uniform(1 / sqrt((double)from));
    return remat_linear(g, x, remat_param(g, name, 2, (int64_t[]){to, from}, init), REMAT_NONE);
}

/* The encoder's and the decoder's sequence after the layers built so far. */
typedef struct {
    remat_value encoded, decoded; /* encoded: in reversed time, in which lines run forwards */
    int64_t width;                /* of `encoded` */
} sides;

/* A layer of the encoder and one of the decoder. The decoder starts from the encoder's final states; built in two parts, its caller
 * passes them. */
static sides add_layer(remat_graph *g, const rm_model_spec *spec, int64_t layer, sides x) {
    rm_model_spec decoder = *spec;
    decoder.field[RM_BEGINS] = decoder.field[RM_ENDS] = REMAT_NONE;
    int64_t H = rm_recurrent_width(spec), states = rm_recurrent_states(spec);
    remat_value there = rm_recurrent_layer(g, spec, "rnn", layer, x.encoded, x.width, false), back = REMAT_NONE;
    if (spec->bidirectional)
        back = rm_recurrent_layer(g, spec, "rnn", layer, remat_reverse(g, x.encoded), x.width, true);
    remat_value y = rm_recurrent_layer(g, &decoder, "decoder_rnn", layer, x.decoded, layer ? H : spec->embed, false);
    for (int state = 0; state < (int)states; state++) {
        remat_value final = remat_final_state(g, there, state);
        if (spec->encoded)
            spec->encoded[1 + layer * states + state] = final;
        else
            remat_initial_state(g, y, state, final);
    }
    if (back.id) there = remat_concat(g, (remat_value[]){there, remat_reverse(g, back)}, 2);
    return (sides){there, y, spec->bidirectional ? 2 * H : H};
}

/* The op divides scores by sqrt(E), which Luong's scores are not, so queries are multiplied by it. */
static remat_value attend(remat_graph *g, const rm_model_spec *spec, sides x) {
    int64_t H = rm_recurrent_width(spec), E = x.width;
    remat_value q = remat_scale(g, dense(g, "attention.weight", x.decoded, H, E), sqrt((double)E));
    remat_value c = remat_cross_attention(g, q, x.encoded, x.encoded, 1, spec->field[RM_PADDING]);
    return remat_tanh(g, dense(g, "combine.weight", remat_concat(g, (remat_value[]){c, x.decoded}, 2), E + H, H));
}

/* Makes the encoder's output an input of the decoder, so that the two are separate parts. */
static sides cut(remat_graph *g, const rm_model_spec *spec, int64_t batch, sides x) {
    spec->encoded[0] = x.encoded;
    int64_t dim[] = {spec->data.timesteps, batch, x.width};
    x.encoded = remat_input(g, "encoded", REMAT_F32, REMAT_SEQUENCE, 3, dim);
    return x;
}

remat_value rm_seq2seq_logits(remat_graph *g, const rm_model_spec *spec, int64_t batch, remat_value input) {
    int64_t H = rm_recurrent_width(spec), K = spec->data.classes;
    remat_init init = remat_init_uniform(1 / sqrt((double)H));
    remat_value table =
        remat_param(g, "embedding.weight", 2, (int64_t[]){spec->data.vocabulary, spec->embed}, remat_init_normal(1));
    sides x = {remat_reverse(g, remat_embedding(g, input, table)), remat_embedding(g, spec->field[RM_PREVIOUS], table),
               spec->embed};
    rm_model_spec turned = *spec;
    turned.field[RM_BEGINS] = remat_reverse(g, spec->field[RM_BEGINS]);
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        if (layer && spec->dropout > 0) x.encoded = remat_dropout(g, x.encoded, spec->dropout);
        if (layer && spec->dropout > 0) x.decoded = remat_dropout(g, x.decoded, spec->dropout);
        x = add_layer(g, &turned, layer, x);
    }
    x.encoded = remat_reverse(g, x.encoded);
    if (spec->encoded) x = cut(g, spec, batch, x);
    remat_value w = remat_param(g, "head.weight", 2, (int64_t[]){K, H}, init);
    return remat_linear(g, attend(g, spec, x), w,
                        spec->no_bias ? REMAT_NONE : remat_param(g, "head.bias", 1, &K, init));
}
