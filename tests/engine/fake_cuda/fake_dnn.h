/* fake_dnn.h: what the two files of the fake cuDNN share: fake_dnn.c (handles, tensors, the RNN) and fake_conv.c. */
#ifndef FAKE_DNN_H
#define FAKE_DNN_H

#include <cudnn.h>
#include <stddef.h>

struct cudnnTensorStruct {
    cudnnDataType_t type;
    int n, dim[4], stride[4];
};

cudnnStatus_t fake_dnn_answer(void); /* the status of a valid call */
cudaStream_t fake_dnn_stream(cudnnHandle_t handle);
void *fake_dnn_make(const char *what, size_t bytes, cudnnStatus_t *status);
cudnnStatus_t fake_dnn_unmake(void *handle);

#define FAKE_DNN_LIFE(Create, Destroy, type)                                                                           \
    cudnnStatus_t Create(type *out) {                                                                                  \
        cudnnStatus_t status;                                                                                          \
        *out = fake_dnn_make(#Create, sizeof **out, &status);                                                          \
        return status;                                                                                                 \
    }                                                                                                                  \
    cudnnStatus_t Destroy(type it) { return fake_dnn_unmake(it); }

#endif
