/* softsign_f64.c: softsign.c compiled in double: remat_op_check compares the two and takes finite differences of this one. */
#define IN_DOUBLE
#include "softsign.c"
