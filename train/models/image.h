/* image.h: image models, for inputs (B,C,H,W), with PyTorch's names, shapes and initial distributions.
 *
 *     mlp    nn.Sequential(Linear, ReLU, Linear, ReLU, ..., Linear) of the image as one row: --layers hidden layers of
 *            --hidden; parameters 0.weight, 0.bias, 2.weight, ...
 *     cnn    PyTorch's example for MNIST: conv1 3x3 to 32, relu; conv2 3x3 to 64, relu; max_pool 2; dropout; fc1 to
 *            128, relu; dropout; fc2. The example drops a quarter and a half; here half of --dropout and --dropout
 */
#ifndef RM_MODELS_IMAGE_H
#define RM_MODELS_IMAGE_H

#include "train/models/model.h"

/* PyTorch's Linear, x (B,in) -> (B,out), with parameters NAME.weight and NAME.bias. */
remat_value rm_image_linear(remat_graph *g, const char *name, remat_value x, int64_t in, int64_t out);

#endif
