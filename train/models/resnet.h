/* resnet.h: the models resnet18, resnet34 and resnet50 (He et al., "Deep residual learning", 2015), named, shaped and started as
 * torchvision's, so that its state_dict is read and written.
 *
 *     stem     conv1 7x7 to 64, stride 2; bn1; relu; max_pool 3x3, stride 2.  --stem=cifar: conv1 3x3, bn1, relu
 *     layer1   blocks, 64 wide
 *     layer2   blocks, 128 wide, the first with stride 2; so layer3, 256, and layer4, 512
 *     head     the mean over each plane; fc
 *
 *     basic block       conv1 3x3, bn1, relu, conv2 3x3, bn2                            resnet18, resnet34
 *     bottleneck        conv1 1x1, bn1, relu, conv2 3x3, bn2, relu, conv3 1x1 to 4 times the width, bn3      resnet50
 *     ... + x, or downsample of x: conv 1x1, bn, where shapes differ; relu
 */
#ifndef RM_MODELS_RESNET_H
#define RM_MODELS_RESNET_H

#include "train/models/model.h"

remat_value rm_resnet_logits(remat_graph *g, const rm_model_spec *spec, remat_value x); /* (B,K) */

#endif
