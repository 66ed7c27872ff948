/* rnn_tanh.c: the op `rnn_tanh`: the readable definition of the cell, and its descriptor. Training runs the float
 * kernels in cpu/; plain_rnn.h has the code that it shares with rnn_relu, and recurrent.c that of all cells. */
#include "ops/recurrent/plain_rnn.h"

RM_PLAIN_RNN(rnn_tanh, tanh, 25, 5)
