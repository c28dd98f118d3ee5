/* Sends the matrix products of MLX's CPU wheel for Linux to the OpenBLAS that numpy's wheel carries.

   The MLX wheel links the reference BLAS: one thread, no vector code. Loaded with LD_PRELOAD, the functions below stand
   before it under the same names. numpy's library is the 64-bit-integer build (every function name ends in 64_ and every
   dimension is 64 bits wide), so nothing here clashes with it: each call only widens its integers.

   mlxcel/native/build.py compiles this file. The enum values are those of the CBLAS standard. */

#include <stdint.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef int64_t wide;

extern void scipy_cblas_sgemm64_(int, int, int, wide, wide, wide, float, const float *, wide, const float *, wide, float,
                                 float *, wide);
extern void scipy_cblas_dgemm64_(int, int, int, wide, wide, wide, double, const double *, wide, const double *, wide,
                                 double, double *, wide);
extern void scipy_cblas_cgemm64_(int, int, int, wide, wide, wide, const void *, const void *, wide, const void *, wide,
                                 const void *, void *, wide);
extern void scipy_cblas_sgemv64_(int, int, wide, wide, float, const float *, wide, const float *, wide, float, float *,
                                 wide);

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc)
{
    /* Decoding one token multiplies one row by a weight matrix. As matrix times vector the weights are read once, in
       place; the general product would first copy them into packed panels. A row of B' * a is a column of the result. */
    if (m == 1 && order == ROW_MAJOR) {
        wide step_a = trans_a == NO_TRANS ? 1 : lda;
        if (trans_b == NO_TRANS)
            scipy_cblas_sgemv64_(ROW_MAJOR, TRANS, k, n, alpha, b, ldb, a, step_a, beta, c, 1);
        else
            scipy_cblas_sgemv64_(ROW_MAJOR, NO_TRANS, n, k, alpha, b, ldb, a, step_a, beta, c, 1);
        return;
    }
    scipy_cblas_sgemm64_(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc)
{
    scipy_cblas_dgemm64_(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc)
{
    scipy_cblas_cgemm64_(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
