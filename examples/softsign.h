/* softsign.h: an external op (softsign.c), and the same op with a mistake in its backward, each in both precisions. */
#ifndef SOFTSIGN_H
#define SOFTSIGN_H

#include <remat_op.h>

extern const remat_op softsign, softsign_f64, broken_softsign, broken_softsign_f64;

#endif
