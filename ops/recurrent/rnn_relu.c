/* rnn_relu.c: the op `rnn_relu`: the readable definition of the cell, and its descriptor. Training runs the float
 * kernels in cpu/; plain_rnn.h has the code that it shares with rnn_tanh, and recurrent.c that of all cells. */
#include "ops/recurrent/plain_rnn.h"

RM_PLAIN_RNN(rnn_relu, relu, 6, 3)
