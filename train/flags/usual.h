/* usual.h: default settings of the optimizers: PyTorch's, except for the learning rate of sgd, which PyTorch
 * requires, and for lars, which has MLPerf's. */
#ifndef RM_USUAL_H
#define RM_USUAL_H

typedef struct {
    const char *optimizer;
    double lr, epsilon, alpha;
} rm_usual;

const rm_usual *rm_usual_of(const char *optimizer);

#endif
