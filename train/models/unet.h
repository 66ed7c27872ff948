/* unet.h: U-Net (Ronneberger et al. 2015) for a class at each pixel, as milesial's Pytorch-UNet with bilinear=True has it, names,
 * shapes and starting distributions: twice a 3x3 convolution, batch norm and relu at each level, max_pool 2 down, enlarging
 * by 2 up, and what was made on the way down beside it:
 *
 *     inc ──────────────────────────────── up4 ─ outc
 *       down1 ────────────────────── up3
 *           down2 ──────────── up2               --layers: how often it goes down; --hidden: channels of inc
 *               down3 ── up1
 *                   down4
 */
#ifndef RM_MODELS_UNET_H
#define RM_MODELS_UNET_H

#include "train/models/model.h"

/* Pictures can be halved so often, and channels once. */
remat_status rm_unet_check(const rm_model_spec *spec);
/* (B,H*W,K) of the input. */
remat_value rm_unet_logits(remat_graph *g, const rm_model_spec *spec, remat_value x);

#endif
